package bridge

import (
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// outlet is a Kafka topic of a feeder: how its records spread over lanes.
type outlet struct {
	topic *kafka.Topic
	n     int32     // partitions that keys are spread over; 0 while it is not known
	want  int32     // partitions that the topic has now, 0 when that is n
	until time.Time // so long the tail waits for the lanes to be empty
	lanes []*lane   // by partition, nil where no record was yet
	// restored is true until the topic's partitions are known again: lanes were made over those of another time, or another cluster.
	restored bool

	whole *lane     // stands for all partitions while n is not known; never has anything in the air
	used  time.Time // the tail's last record, about

	// owed is how many records the tail passed over for detached lanes, less those that the catch-up found. What is left
	// when every lane is level is what the spool had no more. It is not known for what an earlier process passed over.
	owed    int
	unknown bool
	lost    string // reason of a gap that the catch-up met
}

// level notes that a lane of o is level with the tail, and counts what is gone once all are.
func (f *feeder) levelLocked(o *outlet) {
	for _, l := range o.lanes {
		if l != nil && l.detached {
			return
		}
	}
	switch {
	case o.unknown || o.owed <= 0:
	case o.lost != "":
		f.r.counts.gap(o.lost, uint64(o.owed))
	default:
		f.r.counts.expired.Add(uint64(o.owed))
	}
	o.owed, o.unknown, o.lost = 0, false, ""
}

// idleTopic is how long a topic that a template made may be without records until its lanes are given up: they take a share
// of the upstream's memory, and each topic is looked up every minute.
const idleTopic = 10 * time.Minute

// dropIdle gives up topics without records. The next record makes their lanes anew.
func (f *feeder) dropIdle(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.hints) > 0 && now.Sub(f.began) > idleTopic {
		for _, l := range f.lanes {
			delete(f.hints, l.key())
		}
		for key := range f.hints { // of lanes that have had no records since the start
			f.dropped = append(f.dropped, key)
		}
		clear(f.hints)
		signal(f.saveC)
	}
	if f.r.mapper.Constant() {
		return
	}
	for name, o := range f.outlets {
		if o == f.placing || now.Sub(o.used) < idleTopic || slices.ContainsFunc(f.lanes, func(l *lane) bool {
			return l.out == o && (l.busy() || l.detached || l.stored)
		}) {
			continue
		}
		for _, l := range slices.Clone(f.lanes) {
			if l.out == o {
				f.removeLocked(l)
			}
		}
		delete(f.outlets, name)
		for d, to := range f.dests {
			if to == o {
				delete(f.dests, d)
			}
		}
		f.up.Release(o.topic)
	}
}

// soundLocked reports whether o's lanes are those of the topic as it is. Nothing is sent before.
func (f *feeder) soundLocked(o *outlet) bool {
	if o.restored && o.topic.Status().Partitions > 0 {
		o.restored = false
		f.respreadLocked()
	}
	return !o.restored
}

// draining reports whether the tail waits for the lanes to be empty, because the topic has got partitions: a key may move
// to another partition only when nothing of it is on its way.
func (o *outlet) draining() bool { return o.want > o.n && time.Now().Before(o.until) }

// shrinking reports whether the topic lost partitions: it was made anew, and nothing may be sent before the records are
// spread anew too.
func (o *outlet) shrinking() bool { return o.want != 0 && o.want < o.n }

// respreadLocked notes which topics have another number of partitions than their lanes.
func (f *feeder) respreadLocked() {
	for _, o := range f.outlets {
		if o.n == 0 {
			continue
		}
		n := o.topic.Status().Partitions
		switch {
		case n == o.n || n == 0:
			o.want = 0
		case n != o.want:
			o.want, o.until = n, time.Now().Add(f.up.StallAfter())
		}
	}
}

// adoptLocked spreads o's records over its new number of partitions, if this is the moment.
func (f *feeder) adoptLocked(o *outlet) {
	if o.want == 0 {
		return
	}
	if o.shrinking() {
		f.collapseLocked(o)
		return
	}
	for _, l := range o.lanes {
		if l != nil && (l.detached || l.busy()) {
			return
		}
	}
	f.log.Info("records are spread over more partitions", "topic", o.topic.Name, "partitions", o.want, "before", o.n)
	o.lanes = append(o.lanes, make([]*lane, o.want-o.n)...)
	o.n, o.want = o.want, 0
}

// collapseLocked takes back what the lanes of a topic have that was made anew with fewer partitions. What the first topic
// had is gone with it; of what the second got in the meantime some may come twice.
func (f *feeder) collapseLocked(o *outlet) {
	at := f.pos
	for _, l := range o.lanes {
		if l == nil {
			continue
		}
		if l.flight != nil {
			return
		}
		if l.busy() {
			at = min(at, l.unacked())
		}
	}
	f.log.Warn("topic was made anew with fewer partitions; its records are spread anew", "topic", o.topic.Name,
		"partitions", o.want, "before", o.n, "from", at)
	for _, l := range o.lanes {
		if l != nil {
			f.removeLocked(l)
		}
	}
	o.lanes, o.n, o.want, o.unknown = nil, 0, 0, true
	if at < f.pos {
		f.wholeLocked(o)
		f.detachLocked(o.whole, at)
	}
}

// spreadLocked makes lanes of what stood for the whole topic, now that it has n partitions.
func (f *feeder) spreadLocked(o *outlet, n int32) {
	o.n, o.want, o.lanes = n, 0, make([]*lane, n)
	w := o.whole
	if w == nil {
		return
	}
	f.removeLocked(w)
	o.whole = nil
	if !w.detached {
		return
	}
	for p := range n {
		l := f.addLaneLocked(o, p)
		f.detachLocked(l, w.next)
		l.nextTime = w.nextTime
		// The whole's entry speaks for the lane until it is replaced, in one step, by those of the lanes.
		l.stored, l.savedAt = w.stored, spool.NoOffset
	}
}

func (f *feeder) removeLocked(l *lane) {
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.detached {
		f.detached--
	}
	if l.entry || l.stored {
		delete(f.hints, l.key())
		f.dropped = append(f.dropped, l.key())
		signal(f.saveC)
	}
	l.forgetLocked()
	l.drop()
	f.lanes = slices.DeleteFunc(f.lanes, func(x *lane) bool { return x == l })
	f.up.lanes.Add(-1)
}
