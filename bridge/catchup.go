package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// catchUp feeds the detached lanes until ctx ends. It reads the log once for all lanes that can take something, from the
// lowest of their positions, and gives a lane back to the tail when it has seen all that the tail has.
func (f *feeder) catchUp(ctx context.Context) {
	var r Reader
	defer func() {
		if r != nil {
			r.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.catchC:
		}
		for ctx.Err() == nil {
			from, ok := f.prepare()
			if !ok {
				break
			}
			err := f.scan(ctx, &r, from)
			if err == nil {
				continue
			}
			if ctx.Err() == nil {
				f.readFailed(err)
			}
			if r != nil {
				r.Close()
				r = nil
			}
			if !sleep(ctx, readPause) {
				return
			}
		}
		f.bury(ctx)
	}
}

// prepare chooses the lanes that take part in the next scan, and where it starts.
func (f *feeder) prepare() (from spool.Offset, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed {
		f.changed = false
		f.respreadLocked()
	}
	for _, o := range f.outlets {
		f.soundLocked(o)
		f.adoptLocked(o)
		if o.n == 0 && o.whole != nil {
			if n := o.topic.Status().Partitions; n > 0 {
				f.spreadLocked(o, n)
			}
		}
	}
	if f.r.isPaused() || f.exactly != nil && !f.opened || f.detached == 0 || f.stopping || !f.up.Up() {
		return 0, false
	}
	now := time.Now()
	if now.Before(f.catchFrom) {
		return 0, false
	}
	for _, l := range f.lanes {
		if !l.detached {
			continue
		}
		// Half full is soon enough: each scan reads from the lane's position on.
		l.scan = l.partition >= 0 && !l.out.restored && !l.poison && !l.paused && !now.Before(l.notBefore) && !l.out.shrinking() && 2*len(l.pending) <= l.window && l.hasRoom()
		if l.scan && l.next >= f.pos {
			l.scan = false
			if l.next == f.pos {
				f.attachLocked(l)
			}
			continue
		}
		if l.scan && (!ok || l.next < from) {
			from, ok = l.next, true
		}
	}
	return from, ok
}

// scan reads on from an offset for as long as a lane of the scan has room.
func (f *feeder) scan(ctx context.Context, r *Reader, from spool.Offset) error {
	if *r == nil {
		nr, err := f.source.NewReader(f.r.cfg.Stream, f.partition, from)
		if err != nil {
			return err
		}
		*r = nr
	} else {
		(*r).Seek(from)
	}
	for n := 0; ctx.Err() == nil; n++ {
		b, ok, err := (*r).TryNext()
		if err != nil {
			return err
		}
		if !ok {
			if n == 0 {
				return errors.New("nothing to read below the durable end")
			}
			return nil
		}
		if !f.offer(b) {
			return nil
		}
	}
	return nil
}

// offer gives the records of a batch to the lanes of the scan. It reports whether one of them wants more.
func (f *feeder) offer(b spool.Batch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopping {
		return false
	}
	if g := b.Gap; g != nil {
		f.r.counts.gap(g.Reason, 0)
		for _, l := range f.lanes {
			if l.scan {
				l.out.lost = g.Reason
			}
		}
		f.log.Error("records are gone; some may be of detached lanes", "from", g.From, "to", g.To, "reason", g.Reason)
	}
	for i := range b.Records {
		rec := f.r.record(&b.Records[i])
		if rec.Offset >= f.pos { // the tail has not come here
			break
		}
		o, d := f.decideLocked(f.behind, rec, true)
		if o == nil || o.n == 0 {
			continue
		}
		l := o.lanes[d.PartitionOf(o.n)]
		if l == nil || !l.scan || rec.Offset < l.next {
			continue
		}
		full := !l.hasRoom()
		if !full {
			if wait := f.limit(rec); wait > 0 {
				full = true
				f.restLocked(wait)
				for _, other := range f.lanes {
					if other.scan && other.flight == nil && len(other.pending) == 0 {
						other.progress = f.progress // it waits for the route's rate
					}
				}
			}
		}
		if full {
			l.scan, l.next, l.nextTime = false, rec.Offset, rec.ReceivedAt
			continue
		}
		l.add(f.behind, rec, &d)
		o.owed--
		l.next = rec.Offset + 1
	}
	end, more, now := min(b.Next, f.pos), false, time.Now()
	for _, l := range f.lanes {
		if l.scan {
			l.next, l.nextTime = max(l.next, end), 0
			if l.next == f.pos {
				l.scan = false
				f.attachLocked(l)
			}
			more = more || l.scan
		}
		if l.detached || len(l.pending) > 0 {
			l.kick(now)
		}
	}
	f.commitLocked()
	return more && b.Next < f.pos
}

// restLocked has the catch-up rest for the route's rate.
func (f *feeder) restLocked(d time.Duration) {
	if from := time.Now().Add(d); from.After(f.catchFrom) {
		f.catchFrom = from
		time.AfterFunc(d, func() { signal(f.catchC) })
	}
	f.progress = time.Now()
}
