package bridge

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// Reading back. After a crash the spool has records that may be in Kafka already: what was sent since the positions were last
// made durable. The same is true of what was in the air when a producer is replaced. A lane that meets such a record reads its
// Kafka partition from the last position on that is known, before it sends anything, and leaves out what it finds there, by the
// header forebay.id.
//
// That a crash has happened is told by an entry of the spool's state that a route has while it runs, and takes away when it
// ends with nothing in the air,
//
//	key    <route>
//	value  1
//
// where 1 is the version.
const (
	runningSpace   = "bridge-running"
	runningVersion = "1"
)

// check says what a lane knows of its partition.
type check uint8

const (
	checked  check = iota // nothing there that is not known
	checkDue              // what it has pending may be there
	checking
)

// markRunning writes, or takes away, that the routes run.
func (b *Bridge) markRunning(ctx context.Context, routes []*route, running bool) error {
	var changes []spool.Change
	for _, r := range routes {
		c := spool.Change{Space: runningSpace, Key: r.cfg.Name}
		if running {
			c.Value = []byte(runningVersion)
		}
		changes = append(changes, c)
	}
	if len(changes) == 0 {
		return nil
	}
	done := make(durable, 1)
	if err := b.source.Append(ctx, spool.Entry{Changes: changes, Done: done}); err != nil {
		return err
	}
	return done.wait(ctx)
}

// announce notes that the routes run.
func (b *Bridge) announce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return b.markRunning(ctx, b.routes, true)
}

// loadRunning finds the routes whose last run had no end.
func (b *Bridge) loadRunning() error {
	return b.source.Load(runningSpace, func(key string, value []byte) error {
		if string(value) != runningVersion {
			return fmt.Errorf("running %q: %w", key, spool.ErrUnsupported)
		}
		r := b.route(key)
		if r == nil || r.cfg.AfterCrash != ReadBack || r.cfg.Delivery == ExactlyOnce {
			return nil
		}
		b.log.Info("last run had no end; partitions are read back before anything is sent", "route", key)
		for _, f := range b.feeders {
			if f.r == r {
				_, f.crashEnd = f.source.Bounds(r.cfg.Stream, f.partition)
			}
		}
		return nil
	})
}

// ended lists the routes that have nothing in the air and nothing left to be read back.
func (b *Bridge) ended() (routes []*route) {
	for _, r := range b.routes {
		all := true
		for _, f := range b.feeders {
			all = all && (f.r != r || f.isEnded())
		}
		if all {
			routes = append(routes, r)
		}
	}
	return routes
}

func (f *feeder) isEnded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pos < f.crashEnd {
		return false
	}
	for _, l := range f.lanes {
		if l.flight != nil || l.check != checked || l.unacked() < f.crashEnd {
			return false
		}
	}
	return true
}

// knows reports whether the lane may send what it has pending; otherwise it reads its partition back.
func (l *lane) knows() bool {
	if l.check == checked && !l.looked && spool.Offset(l.pending[0].Offset) < l.f.crashEnd {
		l.check = checkDue
	}
	if l.check == checkDue {
		l.check = checking
		l.f.up.ReadBack(&kafka.Scan{
			Topic: l.out.topic, Partition: l.partition, From: l.kafkaNext, Since: l.f.r.mapper.OldestTime(l.pending[0].Received()),
			Header: headerID, Prefix: fmt.Sprintf("%s/%s/%d/", l.f.r.gatewayID, l.f.r.cfg.Stream, l.f.partition), Except: headerRedrive,
			Done: l.wasRead,
		})
	}
	return l.check == checked
}

// wasRead takes what the partition has.
func (l *lane) wasRead(found []uint64, next int64, err error) {
	f := l.f
	f.mu.Lock()
	l.check, l.looked = checked, true
	switch {
	case err != nil:
		f.r.counts.readBack[readRefused].Add(1)
		if f.r.unread.Swap(true) {
			break
		}
		f.log.Warn("partition cannot be read back; what was sent shortly before the stop may come twice", "topic", l.out.topic.Name,
			"kafka_partition", l.partition, "err", err, "hint", readHint)
	default:
		f.r.counts.readBack[readDone].Add(1)
		if next >= 0 {
			l.kafkaNext = next
		}
		// Only what may be ours: a spool that was restored from a copy gives offsets again that Kafka has seen before.
		l.there = slices.DeleteFunc(found, func(o uint64) bool { return spool.Offset(o) >= f.crashEnd && spool.Offset(o) >= l.sentTo })
		kept := l.pending[:0:0]
		for i := range l.pending {
			if !l.isThere(spool.Offset(l.pending[i].Offset)) {
				kept = append(kept, l.pending[i])
			}
		}
		if len(kept) < len(l.pending) {
			f.log.Info("records are in kafka already and are not sent again", "topic", l.out.topic.Name, "kafka_partition", l.partition,
				"records", len(l.pending)-len(kept))
		}
		l.pending, l.mixed = kept, true
		l.recount()
	}
	now := time.Now()
	l.progress = now
	l.kick(now)
	f.commitLocked()
	f.mu.Unlock()
	signal(f.saveC)
	signal(f.wakeC)
	signal(f.catchC)
}

const readHint = "allow this client to read the topic (ACL READ), or set after_crash: resend on the route"

// isThere reports whether a record of the lane is delivered, by what an earlier run has stored or by what was found. Offsets
// are asked for in ascending order, but what was asked for may come again.
func (l *lane) isThere(o spool.Offset) bool {
	if o < l.delivered {
		l.f.r.counts.found.Add(1)
		return true
	}
	if len(l.there) == 0 {
		return false
	}
	_, ok := slices.BinarySearch(l.there, uint64(o))
	if ok {
		l.f.r.counts.found.Add(1)
	}
	if uint64(o) > l.there[len(l.there)-1] && len(l.pending) == 0 && l.flight == nil {
		l.there = nil // behind all of it
	}
	return ok
}

// unknown notes that what is pending may have been written.
func (l *lane) unknown() {
	if l.f.r.cfg.AfterCrash == ReadBack && l.f.exactly == nil {
		l.check = checkDue
	}
}
