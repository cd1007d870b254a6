package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// The positions of lanes are state of the spool: one space for each route,
//
//	key    <spool partition>/<Kafka topic>/<Kafka partition, -1 while they are not known>
//	value  3 <kind> <next> <spread> <kafka> <mapping> <upstream>
//
//	3        the version
//	kind     d: the lane is detached, the cursor does not speak for it; a: attached, the entry only says what is delivered
//	next     offset: everything of the lane below is delivered
//	spread   number of Kafka partitions that keys are spread over
//	kafka    Kafka offset: nothing of the lane from next on is below it; negative while that is not known
//	mapping  hash of what decides which records are the lane's
//	upstream name of the one that the Kafka offset is of
//
// The spread says over which partitions the lane's position was counted: a topic that got more since then keeps the old
// number until its lanes are level with the tail. Version 2 had no upstream, version 1 only detached lanes: 1 <next> <spread>.
// See also rewind.
const positionsVersion = "3"

// hint is what an earlier run has left of an attached lane.
type hint struct {
	next      spool.Offset
	spread    int32
	kafkaNext int64
}

// mapping is a hash of what decides which records belong to a lane. Positions of another mapping say nothing about this one.
func (r *route) mapping() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q%s", r.cfg.Topic, r.cfg.Key, r.cfg.Filters, r.mapper.Places()))
	return hex.EncodeToString(sum[:4])
}

// saveEvery is the shortest time between two writes of positions. After a crash a detached lane repeats at most what it
// sent in it.
const saveEvery = 100 * time.Millisecond

const maxPartitions = 1 << 20 // of a Kafka topic: a damaged number cannot make us allocate more

func space(route string) string { return shortSpace("bridge/", route) }

func shortSpace(prefix, route string) string {
	longest := 64 - len(prefix) // of the spool's spaces
	if len(route) > longest {
		sum := sha256.Sum256([]byte(route))
		route = route[:longest-17] + "/" + hex.EncodeToString(sum[:8]) // no route has a / in its name
	}
	return prefix + route
}

func (l *lane) key() string {
	return fmt.Sprintf("%s%d/%s/%d", l.f.prefix, l.f.partition, l.out.topic.Name, l.partition)
}

// savedLane is one change on its way.
type savedLane struct {
	l        *lane
	attached bool
	at       spool.Offset
	next     int64
}

// maxHints is how many attached lanes of a feeder are written at once: an older entry only makes reading back longer.
const maxHints = 256

// collect returns the changes of f's lanes since the last save.
func (f *feeder) collect() (changes []spool.Change, saved []savedLane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retired {
		return nil, nil
	}
	in, mapping := f.space, f.r.mapping()
	changes = f.rewindChange(in)
	n := min(len(f.dropped), dropAtOnce)
	for _, key := range f.dropped[:n] {
		changes = append(changes, spool.Change{Space: in, Key: key})
	}
	if f.dropped = f.dropped[n:]; len(f.dropped) > 0 {
		defer signal(f.saveC)
	}
	put := func(l *lane, kind string, s savedLane) {
		value := fmt.Sprintf("%s %s %d %d %d %s %s", positionsVersion, kind, s.at, l.out.n, s.next, mapping, f.up.Name())
		changes = append(changes, spool.Change{Space: in, Key: l.key(), Value: []byte(value)})
		saved = append(saved, s)
		l.entry = true
		if len(f.dropped) > 0 { // a lane that is there again: what waits to be deleted is older
			f.dropped = slices.DeleteFunc(f.dropped, func(key string) bool { return key == l.key() })
		}
	}
	hints := 0
	for i := range f.lanes {
		l := f.lanes[(f.savedTo+i)%len(f.lanes)]
		s := savedLane{l, !l.detached, l.unacked(), l.known()}
		switch {
		case !l.detached && l.stored && s.at >= f.committed:
			// The cursor speaks for the lane again. From here on, should it be detached anew, the cursor waits for a new entry.
			l.stored, l.savedNext = false, -2
			put(l, "a", s)
		case l.detached && !l.stored, l.stored && l.savedAt != s.at:
			s.attached = false
			put(l, "d", s)
		case !l.detached && !l.stored && s.next != l.savedNext && hints < maxHints:
			if hints++; hints == maxHints {
				f.savedTo = (f.savedTo + i + 1) % len(f.lanes)
				defer signal(f.saveC)
			}
			put(l, "a", s)
		}
	}
	return changes, saved
}

// stored notes that the positions are durable, and lets the cursor go on.
func (f *feeder) stored(saved []savedLane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rewind != nil {
		f.rewind.saved = true
	}
	for _, s := range saved {
		if s.attached {
			s.l.savedNext = s.next
			continue
		}
		// Also when the lane is attached by now: the entry has to be replaced.
		s.l.stored, s.l.savedAt, s.l.savedNext = true, s.at, -2
	}
	f.commitLocked()
}

// slowAfter is how long the cursor waits for a lane that others have passed. What they have delivered above the cursor
// would be doubled by a crash, and is not given back by retention.
const slowAfter = time.Second

// detachSlow leaves lanes to the catch-up that hold the cursor but are not full, so that they never hold the tail.
func (f *feeder) detachSlow(now time.Time) {
	if f.r.isPaused() || !f.up.Up() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lanes {
		if l.busy() && now.Sub(l.progress) > askAfter {
			l.out.topic.Ask() // for health to tell why
		}
	}
	if f.stopping || f.committed == f.pos {
		return
	}
	limit := max(f.up.StallAfter(), slowAfter)
	for _, l := range f.lanes {
		if !l.detached && l.busy() && now.Sub(l.progress) > limit && f.detached < maxDetached && f.up.AliveSince(l.progress) {
			f.detachLocked(l, f.pos)
			f.r.counts.detached.Add(1)
		}
	}
}

// askAfter is how long a lane may be without an acknowledgement until the cluster is asked how its partition stands.
const askAfter = 5 * time.Second

// save makes the positions of all feeders durable whenever they change, until ctx ends.
func (b *Bridge) save(ctx context.Context) {
	look := time.NewTicker(slowAfter / 2)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			for _, f := range b.feeders() {
				f.detachSlow(now)
				f.dropIdle(now)
			}
			continue
		case <-b.saveC:
		}
		if err := b.saveOnce(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("positions of detached lanes are not stored; cursors wait", "err", err)
			if !sleep(ctx, readPause) {
				return
			}
			signal(b.saveC)
		}
		if !sleep(ctx, saveEvery) {
			return
		}
	}
}

func (b *Bridge) saveOnce(ctx context.Context) error {
	b.savingMu.Lock()
	defer b.savingMu.Unlock()
	for _, f := range b.feeders() {
		if _, err := b.saveFeeder(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// saveFeeder makes the changes of f's positions durable, false when there are none. Callers hold savingMu: what is older must not
// come behind what is newer.
func (b *Bridge) saveFeeder(ctx context.Context, f *feeder) (some bool, err error) {
	changes, saved := f.collect()
	if len(changes) == 0 {
		return false, nil
	}
	if err := b.noted(ctx, changes...); err != nil {
		f.unsaved(changes)
		return true, err
	}
	f.stored(saved)
	return true, nil
}

// unsaved keeps the deletions of a save that did not work; the rest is found again by comparing.
func (f *feeder) unsaved(changes []spool.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	live := make(map[string]bool)
	for _, l := range f.lanes {
		if l.detached || l.stored {
			live[l.key()] = true
		}
	}
	for _, c := range changes {
		if c.Value == nil && !live[c.Key] {
			f.dropped = append(f.dropped, c.Key)
		}
	}
}

// loadPositions gives feeders, by partition, the detached lanes that they had. Their keys begin with prefix.
func (b *Bridge) loadPositions(r *route, in, prefix string, feeders []*feeder) error {
	return b.source.Load(in, func(key string, value []byte) error {
		name, ours := strings.CutPrefix(key, prefix)
		if !ours {
			return nil
		}
		head, rest, _ := strings.Cut(name, "/")
		i := strings.LastIndexByte(rest, '/')
		damaged := func(err error) error {
			return fmt.Errorf("route %s: position %q = %q is damaged: %w", r.cfg.Name, key, value, err)
		}
		fields := strings.Fields(string(value))
		switch {
		case rest == rewindName:
			partition, err := strconv.Atoi(head)
			if err != nil {
				return damaged(err)
			}
			from, until, err := parseRewind(value)
			if err != nil {
				return damaged(err)
			}
			switch {
			case partition < 0 || partition >= len(feeders) || feeders[partition] == nil:
			case until <= feeders[partition].from: // of a backlog by now
				feeders[partition].drop(key)
			default:
				feeders[partition].rewound(from, until)
			}
			return nil
		case i < 0 || len(fields) == 0:
			return damaged(errFields)
		case fields[0] == "1" && len(fields) == 3:
			fields = []string{"1", "d", fields[1], fields[2], "-1", r.mapping(), ""}
		case fields[0] == "2" && len(fields) == 6:
			fields = append(fields, "")
		case fields[0] != "1" && fields[0] != "2" && fields[0] != positionsVersion:
			return fmt.Errorf("route %s: position %q: %w", r.cfg.Name, key, spool.ErrUnsupported)
		case len(fields) != 7 || fields[1] != "a" && fields[1] != "d":
			return damaged(errFields)
		}
		partition, err1 := strconv.Atoi(head)
		lane, err2 := strconv.ParseInt(rest[i+1:], 10, 32)
		at, err3 := strconv.ParseUint(fields[2], 10, 64)
		n, err4 := strconv.ParseInt(fields[3], 10, 32)
		next, err5 := strconv.ParseInt(fields[4], 10, 64)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return damaged(err)
		}
		if lane < -1 || lane >= 0 && lane >= n || n < 0 || n > maxPartitions {
			return damaged(errFields)
		}
		if partition < 0 || partition >= len(feeders) || feeders[partition] == nil {
			return nil
		}
		f := feeders[partition]
		if fields[1] == "d" && spool.Offset(at) < f.from { // of a backlog by now: see noteBacklog
			f.drop(key)
			return nil
		}
		if up := fields[6]; up != "" && up != f.up.Name() {
			next = -1 // an offset of another cluster
		}
		switch {
		case fields[5] != r.mapping():
			f.remap(key, fields[1] == "d", spool.Offset(at))
		case fields[1] == "a":
			f.hints[key] = hint{spool.Offset(at), int32(n), next}
		default:
			f.restore(rest[:i], int32(lane), spool.Offset(at), int32(n), next)
		}
		return nil
	})
}

var errFields = errors.New("its fields are not what they should be")

// drop has an entry deleted.
func (f *feeder) drop(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped = append(f.dropped, key)
}

// remap takes up what a lane of another topic, key or filters has left. Its records may belong to any lane now: the tail
// begins where they do.
func (f *feeder) remap(key string, detached bool, at spool.Offset) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped = append(f.dropped, key)
	if detached && at < f.pos {
		f.log.Warn("topic, key or filters of the route have changed; records from here on may come twice", "from", at, "before", f.pos)
		f.rewindLocked(at, rewind{from: at, until: f.committed})
	}
}

// restore makes a detached lane as it was stored.
func (f *feeder) restore(topic string, partition int32, at spool.Offset, n int32, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.r.mapper.Constant() {
		f.r.admit(topic, topic)
	}
	o := f.openLocked(topic)
	if o.n != 0 && (partition < 0 || partition >= o.n || n != o.n) {
		// Positions that were counted over different numbers of partitions: the lowest, over again, loses nothing.
		for _, l := range o.lanes {
			if l != nil {
				at = min(at, l.next)
				f.removeLocked(l)
			}
		}
		o.n, o.lanes, partition = 0, nil, -1
	}
	if o.whole != nil {
		o.whole.next = min(o.whole.next, at)
		return
	}
	if partition >= 0 && o.n == 0 {
		o.n, o.lanes, o.restored = n, make([]*lane, n), true
	}
	l := f.addLaneLocked(o, partition)
	f.detachLocked(l, at)
	l.stored, l.savedAt, l.kafkaNext = true, at, next
	o.unknown = true
}
