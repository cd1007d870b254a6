package bridge

import (
	"context"
	"time"

	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// take places the records of a batch.
func (f *feeder) take(ctx context.Context, b spool.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = time.Now()
	if g := b.Gap; g != nil && g.To > f.pos {
		lost := uint64(g.To - max(g.From, f.pos))
		f.r.counts.gap(g.Reason, lost)
		f.log.Error("records are gone before they were delivered", "from", max(g.From, f.pos), "to", g.To, "reason", g.Reason)
		if f.watch != nil {
			f.lostLocked(g)
		}
	}
	f.r.counts.expired.Add(uint64(b.Expired))
	for i := range b.Records {
		rec := f.r.record(&b.Records[i])
		if rec.Offset < f.pos {
			continue
		}
		if i%lockedRecords == lockedRecords-1 {
			f.kickLocked()
			f.mu.Unlock()
			f.mu.Lock() // acknowledgements go first
		}
		f.pos = rec.Offset
		if err := f.placeLocked(ctx, rec); err != nil {
			return err
		}
		f.pos = rec.Offset + 1
		if f.watch != nil {
			f.placedLocked(rec.Offset, f.placedOn)
		}
	}
	f.pos = max(f.pos, b.Next)
	if f.watch != nil {
		f.passLocked(f.pos)
	}
	f.headLocked(0)
	f.kickLocked()
	f.commitLocked()
	if f.detached > 0 {
		signal(f.catchC)
	}
	return nil
}

// placeLocked gives rec to its lane. It waits while the lane is full, and detaches a lane that would hold the others.
func (f *feeder) placeLocked(ctx context.Context, rec *spool.Record) error {
	o, d := f.decideLocked(f.tail, rec, false)
	f.placedOn = nil
	if d.Action == mapping.Refuse {
		f.placedOn = buried
		return f.entombLocked(ctx, rec, &d)
	}
	if o == nil {
		if d.Reason == mapping.None {
			f.r.counts.skipped.Add(1)
		}
		return nil
	}
	f.headLocked(rec.ReceivedAt)
	o.used, f.placing = f.now, o
	defer func() { f.placing = nil }()
	if f.pos == f.committed {
		f.progress = time.Now()
	}
	var since time.Time // we wait
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		// An upstream that is away holds the route, as a pause does: nothing is gained by detaching all its lanes.
		if f.r.isPaused() || !f.up.Up() {
			f.kickLocked()
			f.waitLocked(ctx, time.Second)
			f.now, since = time.Now(), time.Time{}
			continue
		}
		l := f.laneLocked(o, &d)
		f.placedOn = l
		if l.detached {
			o.owed++
			return nil // the catch-up comes to it
		}
		if l.hasRoom() && !o.draining() {
			if wait := f.limit(rec); wait > 0 {
				f.kickLocked()
				f.limitedLocked(ctx, wait)
				since = time.Time{}
				continue
			}
			l.add(f.tail, rec, &d)
			f.touched = append(f.touched, l)
			return nil
		}
		now := time.Now()
		if since.IsZero() {
			since = now
			f.kickLocked()
		}
		left := f.up.StallAfter() - now.Sub(since)
		if left <= 0 {
			if o.draining() {
				o.until = now // with the old number of partitions, until there is a moment without traffic
				continue
			}
			if f.detached < maxDetached && f.up.AliveSince(since) {
				f.detachLocked(l, rec.Offset)
				if len(o.lanes) > 0 && l.check == checked { // a topic that is being made, or a partition that is read back, is no stall
					f.r.counts.detached.Add(1)
				}
				if l.nextTime == 0 {
					l.nextTime = rec.ReceivedAt
				}
				o.owed++
				return nil
			}
			left = minWait
		}
		f.waitLocked(ctx, left)
		f.now = time.Now()
	}
}

const minWait = 50 * time.Millisecond

// waitLocked gives the lock away until something may have changed.
func (f *feeder) waitLocked(ctx context.Context, d time.Duration) {
	f.mu.Unlock()
	defer f.mu.Lock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-f.wakeC:
	case <-t.C:
	}
}

// limitedLocked waits for the route's rate, which is no stall.
func (f *feeder) limitedLocked(ctx context.Context, d time.Duration) {
	began := time.Now()
	f.waitLocked(ctx, min(d, time.Second))
	now := time.Now()
	f.r.counts.limited.Add(int64(now.Sub(began)))
	f.progress, f.now = now, now
}
