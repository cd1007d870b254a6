package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/replay"
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
//	key    <route>/<upstream>
//	value  1
//
// where 1 is the version. A route that went on with another upstream while something was in the air leaves the entry for when it
// comes back. Earlier versions had <route> as key, for whatever upstream.
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

const lingerLook = 500 * time.Millisecond

func runningKey(r *route, up *upstream) string { return r.cfg.Name + "/" + up.Name() }

// running is what notes that r runs on up.
func running(r *route, up *upstream) spool.Change {
	return spool.Change{Space: runningSpace, Key: runningKey(r, up), Value: []byte(runningVersion)}
}

// announce notes that the routes run.
func (b *Bridge) announce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	var changes []spool.Change
	for _, st := range b.stints() {
		changes = append(changes, running(st.r, st.up))
		st.r.setUnclean(st.up, true)
		for _, up := range st.r.failover.list { // what an earlier version has noted of all
			if up != st.up && st.r.isUnclean(up) {
				changes = append(changes, running(st.r, up))
			}
		}
		changes = append(changes, spool.Change{Space: runningSpace, Key: st.r.cfg.Name})
		up, since, by, reason := st.r.failover.where()
		changes = append(changes, activeNow(st.r, up, since, by, reason))
	}
	return b.noted(ctx, changes...)
}

// unmark takes away that stints run: they have nothing in the air, and nothing left to be read back.
func (b *Bridge) unmark(ctx context.Context, stints []*stint) error {
	var changes []spool.Change
	for _, st := range stints {
		changes = append(changes, spool.Change{Space: runningSpace, Key: runningKey(st.r, st.up)})
	}
	if err := b.noted(ctx, changes...); err != nil {
		return err
	}
	for _, st := range stints {
		st.r.setUnclean(st.up, false)
	}
	return nil
}

// loadRunning finds the routes whose last run had no end.
func (b *Bridge) loadRunning() error {
	return b.source.Load(runningSpace, func(key string, value []byte) error {
		if string(value) != runningVersion {
			return fmt.Errorf("running %q: %w", key, spool.ErrUnsupported)
		}
		name, on, known := strings.Cut(key, "/")
		r := b.route(name)
		if r == nil {
			return nil
		}
		for _, up := range r.failover.list {
			if !known || up.Name() == on {
				r.setUnclean(up, true)
			}
		}
		return nil
	})
}

func (r *route) isUnclean(up *upstream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unclean[up.Name()]
}

func (r *route) setUnclean(up *upstream, unclean bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unclean[up.Name()] = unclean
}

// ended lists the stints that have nothing in the air and nothing left to be read back.
func (b *Bridge) ended() (stints []*stint) {
	for _, st := range b.stints() {
		if st.isEnded() {
			stints = append(stints, st)
		}
	}
	return stints
}

func (st *stint) isEnded() bool {
	for _, f := range st.feeders {
		if !f.isEnded() {
			return false
		}
	}
	return true
}

func (f *feeder) isEnded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pos < f.crashEnd || f.before != nil && f.before.inAir() {
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
	if l.f.before != nil && l.lingers() {
		l.retryIn(lingerLook)
		return false
	}
	if len(l.f.older) > 0 && l.overtakes() {
		l.progress = time.Now() // it is not this one that is stuck
		l.retryIn(lingerLook)
		return false
	}
	if l.check == checkDue {
		l.check, l.readFrom = checking, l.known()
		l.f.up.ReadBack(&kafka.Scan{
			Topic: l.out.topic, Partition: l.partition, From: l.readFrom, Since: l.f.r.mapper.OldestTime(l.pending[0].Received()),
			Header: headerID, Prefix: fmt.Sprintf("%s/%s/%d/", l.f.r.gatewayID, l.f.r.cfg.Stream, l.f.partition),
			Suffix: func(o uint64) string { return l.f.r.who.Suffix(uint16(l.f.partition), spool.Offset(o)) }, Except: []string{headerRedrive, replay.Header},
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

// known is the Kafka offset from which on the partition has what is not known to be delivered of the lane. While the lane has not met all
// that was found there, it is where that begins: whoever reads back next finds it again.
func (l *lane) known() int64 {
	if n := len(l.there); n > 0 && spool.Offset(l.there[n-1]) >= l.unacked() {
		return l.readFrom
	}
	return l.kafkaNext
}

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
