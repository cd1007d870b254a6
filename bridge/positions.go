package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// The positions of detached lanes are state of the spool: one space for each route,
//
//	key    <spool partition>/<Kafka topic>/<Kafka partition, -1 while they are not known>
//	value  1 <next offset to deliver> <number of Kafka partitions that keys are spread over>
//
// where 1 is the version. The number says over which partitions the lane's position was counted: a topic that got more
// since then keeps the old number until its lanes are level with the tail.
const positionsVersion = "1"

// saveEvery is the shortest time between two writes of positions. After a crash a detached lane repeats at most what it
// sent in it.
const saveEvery = 100 * time.Millisecond

const maxPartitions = 1 << 20 // of a Kafka topic: a damaged number cannot make us allocate more

func space(route string) string {
	const longest = 64 - len("bridge/") // of the spool's spaces
	if len(route) > longest {
		sum := sha256.Sum256([]byte(route))
		route = route[:longest-17] + "/" + hex.EncodeToString(sum[:8]) // no route has a / in its name
	}
	return "bridge/" + route
}

func (l *lane) key() string {
	return fmt.Sprintf("%d/%s/%d", l.f.partition, l.out.topic.Name, l.partition)
}

// savedLane is one change on its way.
type savedLane struct {
	l  *lane
	at spool.Offset
}

// collect returns the changes of f's lanes since the last save.
func (f *feeder) collect() (changes []spool.Change, saved []savedLane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := space(f.r.cfg.Name)
	for _, key := range f.dropped {
		changes = append(changes, spool.Change{Space: in, Key: key})
	}
	f.dropped = nil
	for _, l := range f.lanes {
		at := l.unacked()
		switch {
		case !l.detached && l.stored && at >= f.committed:
			// The cursor speaks for the lane again. From here on, should it be detached anew, the cursor waits for a new entry.
			l.stored = false
			changes = append(changes, spool.Change{Space: in, Key: l.key()})
		case l.detached && !l.stored, l.stored && l.savedAt != at:
			value := fmt.Sprintf("%s %d %d", positionsVersion, at, l.out.n)
			changes = append(changes, spool.Change{Space: in, Key: l.key(), Value: []byte(value)})
			saved = append(saved, savedLane{l, at})
		}
	}
	return changes, saved
}

// stored notes that the positions are durable, and lets the cursor go on.
func (f *feeder) stored(saved []savedLane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range saved {
		if s.l.detached || s.l.stored {
			s.l.stored, s.l.savedAt = true, s.at
		}
	}
	f.commitLocked()
}

// slowAfter is how long the cursor waits for a lane that others have passed. What they have delivered above the cursor
// would be doubled by a crash, and is not given back by retention.
const slowAfter = time.Second

// detachSlow leaves lanes to the catch-up that hold the cursor but are not full, so that they never hold the tail.
func (f *feeder) detachSlow(now time.Time) {
	if f.r.isPaused() || !f.r.up.Up() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopping || f.committed == f.pos {
		return
	}
	limit := max(f.r.up.StallAfter(), slowAfter)
	for _, l := range f.lanes {
		if !l.detached && l.busy() && now.Sub(l.progress) > limit && f.detached < maxDetached && f.r.up.AliveSince(l.progress) {
			f.detachLocked(l, f.pos)
			f.r.counts.detached.Add(1)
		}
	}
}

// save makes the positions of all feeders durable whenever they change, until ctx ends.
func (b *Bridge) save(ctx context.Context) {
	look := time.NewTicker(slowAfter / 2)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			for _, f := range b.feeders {
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
	for _, f := range b.feeders {
		changes, saved := f.collect()
		if len(changes) == 0 {
			continue
		}
		done := make(durable, 1)
		err := b.source.Append(ctx, spool.Entry{Changes: changes, Done: done})
		if err == nil {
			select {
			case err = <-done:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			f.unsaved(changes)
			return err
		}
		f.stored(saved)
	}
	return nil
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

// loadPositions gives the feeders of a route the detached lanes that they had.
func (b *Bridge) loadPositions(r *route, feeders map[int]*feeder) error {
	return b.source.Load(space(r.cfg.Name), func(key string, value []byte) error {
		head, rest, _ := strings.Cut(key, "/")
		i := strings.LastIndexByte(rest, '/')
		fields := strings.Fields(string(value))
		if i < 0 || len(fields) != 3 {
			return fmt.Errorf("route %s: position %q = %q is damaged", r.cfg.Name, key, value)
		}
		if fields[0] != positionsVersion {
			return fmt.Errorf("route %s: position %q: %w", r.cfg.Name, key, spool.ErrUnsupported)
		}
		partition, err1 := strconv.Atoi(head)
		lane, err2 := strconv.ParseInt(rest[i+1:], 10, 32)
		at, err3 := strconv.ParseUint(fields[1], 10, 64)
		n, err4 := strconv.ParseInt(fields[2], 10, 32)
		for _, err := range []error{err1, err2, err3, err4} {
			if err != nil {
				return fmt.Errorf("route %s: position %q = %q: %w", r.cfg.Name, key, value, err)
			}
		}
		if lane < -1 || lane >= 0 && lane >= n || n < 0 || n > maxPartitions {
			return fmt.Errorf("route %s: position %q = %q is damaged", r.cfg.Name, key, value)
		}
		if f, ok := feeders[partition]; ok {
			f.restore(rest[:i], int32(lane), spool.Offset(at), int32(n))
		}
		return nil
	})
}

// restore makes a detached lane as it was stored.
func (f *feeder) restore(topic string, partition int32, at spool.Offset, n int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.r.topic.constant() {
		f.r.admit(topic)
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
		o.n, o.lanes = n, make([]*lane, n)
	}
	l := f.addLaneLocked(o, partition)
	f.detachLocked(l, at)
	l.stored, l.savedAt = true, at
	o.unknown = true
}
