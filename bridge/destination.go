package bridge

import (
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// decideLocked is what becomes of rec and where it goes. There is no outlet when it goes nowhere: the filters do not match, and
// the decision has no reason, or the mapping says so.
func (f *feeder) decideLocked(s *mapping.Scratch, rec *spool.Record, again bool) (o *outlet, d mapping.Decision) {
	if f.r.wasDown(rec) {
		if !again {
			f.r.mapper.LeaveOut(mapping.CameDown)
		}
		return nil, mapping.Decision{Action: mapping.Leave, Reason: mapping.CameDown, Partition: -1}
	}
	if f.r.mapper.Plain() {
		if o = f.plainLocked(s, rec); o != nil {
			d = f.r.mapper.Decide(s, rec, again)
		}
		return o, d
	}
	if !f.r.matches(rec.Topic) {
		return nil, d
	}
	if d = f.r.mapper.Decide(s, rec, again); d.Action != mapping.Send {
		return nil, d
	}
	at := destination{name: d.Topic}
	o, ok := f.dests[at]
	if !ok {
		o = f.namedLocked(d.Topic, d.Overflow, d.Constant)
		f.rememberLocked(at, o)
	}
	return o, d
}

// plainLocked is where rec goes when MQTT topic and client ID decide that, nil when the route does not take it.
func (f *feeder) plainLocked(s *mapping.Scratch, rec *spool.Record) *outlet {
	at := destination{topic: rec.Topic}
	if f.r.mapper.UsesClient() {
		at.client = rec.ClientID
	}
	o, ok := f.dests[at]
	if ok {
		return o
	}
	if f.r.matches(rec.Topic) {
		name, overflow := f.r.mapper.Topic(s, rec)
		o = f.namedLocked(name, overflow, f.r.mapper.Constant())
	}
	// A copy: the record's strings may be part of a large piece of memory.
	f.rememberLocked(destination{topic: strings.Clone(at.topic), client: strings.Clone(at.client)}, o)
	return o
}

func (f *feeder) rememberLocked(at destination, o *outlet) {
	if len(f.dests) >= maxDestinations {
		clear(f.dests)
	}
	f.dests[at] = o
}

// namedLocked is the outlet of a name that a template has made, or the one that takes what is too much.
func (f *feeder) namedLocked(name, overflow string, constant bool) *outlet {
	first := false
	if !constant {
		name, first = f.r.admit(name, overflow)
	}
	if first {
		f.log.Warn("route has max_topics topics; records that need more go to the overflow topic",
			"max_topics", f.r.cfg.MaxTopics, "topic", name)
	}
	return f.openLocked(name)
}

func (f *feeder) openLocked(name string) *outlet {
	o, ok := f.outlets[name]
	if !ok {
		o = &outlet{topic: f.up.Topic(name, f.r.cfg.CreateTopics), used: time.Now()}
		f.outlets[name] = o
	}
	return o
}

// laneLocked is the lane of a record of o.
func (f *feeder) laneLocked(o *outlet, d *mapping.Decision) *lane {
	if f.changed {
		f.changed = false
		f.respreadLocked()
	}
	sound := !o.restored || f.soundLocked(o)
	if o.want != 0 {
		f.adoptLocked(o)
	}
	if o.n == 0 {
		n := o.topic.Status().Partitions
		if n == 0 {
			return f.wholeLocked(o)
		}
		f.spreadLocked(o, n)
	}
	p := d.PartitionOf(o.n)
	l := o.lanes[p]
	if l == nil {
		l = f.addLaneLocked(o, p)
	}
	if !sound && !l.detached {
		f.detachLocked(l, f.pos) // the catch-up waits
	}
	return l
}

func (f *feeder) addLaneLocked(o *outlet, partition int32) *lane {
	l := &lane{f: f, out: o, partition: partition, window: kafka.MaxFlightRecords, progress: time.Now(), kafkaNext: -1, savedNext: -1}
	if h, ok := f.hints[l.key()]; ok {
		l.kafkaNext, l.savedNext, l.entry = h.kafkaNext, h.kafkaNext, true
		if h.spread == o.n {
			l.delivered = h.next
		}
	}
	l.delivered = max(l.delivered, spool.Offset(f.exact[kafka.LaneKey(o.topic.Name, o.n, partition)]))
	if partition < 0 {
		o.whole = l
	} else {
		o.lanes[partition] = l
	}
	f.lanes = append(f.lanes, l)
	f.up.lanes.Add(1)
	l.look()
	return l
}

func (f *feeder) wholeLocked(o *outlet) *lane {
	if o.whole == nil {
		f.addLaneLocked(o, -1)
	}
	return o.whole
}

// laneMemory is what one lane may have pending; as much again may be in the air.
func (f *feeder) laneMemory() int {
	share := f.up.MaxBuffered() / (2 * max(f.up.lanes.Load(), 1))
	return int(min(max(share, minLaneMemory), maxLaneMemory))
}

// detachLocked leaves l to the catch-up, from at or what it has pending.
func (f *feeder) detachLocked(l *lane, at spool.Offset) {
	l.next, l.nextTime = at, 0
	if len(l.pending) > 0 {
		l.next, l.nextTime = spool.Offset(l.pending[0].Offset), l.pending[0].Received().UnixNano()
	}
	l.out.owed += len(l.pending)
	l.drop()
	l.detached, l.detachAt = true, time.Now()
	f.detached++
	f.log.Debug("lane is detached", "topic", l.out.topic.Name, "kafka_partition", l.partition, "offset", l.next)
	signal(f.saveC)
	signal(f.catchC)
}

// attachLocked gives l back to the tail. Its stored entry goes when the cursor cannot be ahead of it any more.
func (f *feeder) attachLocked(l *lane) {
	l.detached = false
	f.detached--
	f.levelLocked(l.out)
	f.log.Debug("lane is attached again", "topic", l.out.topic.Name, "kafka_partition", l.partition, "after", time.Since(l.detachAt))
	signal(f.saveC)
	signal(f.wakeC)
}
