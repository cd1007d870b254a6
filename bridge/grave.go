package bridge

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// graves are the records of a feeder that its mapping made dead letters, until they are durable as that. They hold the
// cursor, and nothing else: many may be on their way to the disk at once.
type graves struct {
	at      []spool.Offset // ascending; guarded by feeder.mu, as the next two
	err     error          // why a dead letter cannot be stored
	errAt   time.Time
	waiting sync.WaitGroup
	ctx     context.Context // ends when nobody waits any more
	end     context.CancelFunc
}

const maxGraves = 256

// entombLocked makes rec a dead letter. It waits only while many others are on their way.
func (f *feeder) entombLocked(ctx context.Context, rec *spool.Record, d *mapping.Decision) error {
	if f.r.dead { // it is a dead letter and stays one
		f.r.mapper.LeaveOut(d.Reason)
		return nil
	}
	dead, err := deadRecord(rec, f.deadMeta(rec, d.Reason.String(), d.Hint, d.Err))
	if err != nil {
		return err
	}
	for len(f.graves.at) >= maxGraves {
		if err := ctx.Err(); err != nil {
			return err
		}
		f.waitLocked(ctx, time.Second)
	}
	f.graves.at = append(f.graves.at, rec.Offset)
	// A copy of the pieces: the batch's memory goes with the record into the spool, as it does for every dead letter.
	done := make(durable, 1)
	f.mu.Unlock()
	err = f.source.Append(f.graves.ctx, spool.Entry{Record: dead, Stream: f.deadLetters, Done: done}) // in the order of the log
	f.mu.Lock()
	at := rec.Offset
	reason, hint, why := d.Reason, d.Hint, d.Err
	f.graves.waiting.Go(func() {
		if err == nil {
			err = done.wait(f.graves.ctx)
		}
		if err == nil || f.buryAgain(*dead, err) {
			f.buried(at, reason, hint, why)
		}
	})
	return nil
}

// buryAgain tries until the dead letter is durable. A dead letter that cannot be kept must not be lost.
func (f *feeder) buryAgain(dead spool.Record, err error) bool {
	for n := 1; ; n++ {
		f.mu.Lock()
		told := f.graves.err != nil
		f.graves.err = err
		if !told {
			f.graves.errAt = time.Now()
		}
		f.mu.Unlock()
		if !told && f.graves.ctx.Err() == nil {
			f.log.Error("dead letter cannot be stored; the route's cursor waits", "err", err, "hint", graveHint)
		}
		if !sleep(f.graves.ctx, backoff(faultBackoff, maxFault, n)) {
			return false
		}
		again, done := dead, make(durable, 1)
		if err = f.source.Append(f.graves.ctx, spool.Entry{Record: &again, Stream: f.deadLetters, Done: done}); err != nil {
			continue
		}
		if err = done.wait(f.graves.ctx); err == nil {
			return true
		}
	}
}

const graveHint = "make room in the spool for the dead-letter stream"

// buried notes that a dead letter is durable, and lets the cursor go on.
func (f *feeder) buried(at spool.Offset, reason mapping.Reason, hint string, why error) {
	f.mu.Lock()
	if i, ok := slices.BinarySearch(f.graves.at, at); ok {
		f.graves.at = slices.Delete(f.graves.at, i, i+1)
	}
	f.graves.err = nil
	f.commitLocked()
	f.mu.Unlock()
	f.r.counts.deadLettered.Add(1)
	signal(f.wakeC)
	if n, tell := f.r.refusals.tell(time.Now()); tell {
		f.log.Warn("record is a dead letter: the mapping cannot be applied to it", "offset", at, "reason", reason.String(), "err", why,
			"hint", hint, "records", n)
	}
}

// refusals keep the log readable when a fleet sends what the mapping cannot use.
type refusals struct {
	mu   sync.Mutex
	told time.Time
	n    int
}

const refusalsEvery = time.Minute

// tell counts one, and reports whether the log should say so, and of how many.
func (r *refusals) tell(now time.Time) (n int, tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if !r.told.IsZero() && now.Sub(r.told) < refusalsEvery {
		return 0, false
	}
	n, r.n, r.told = r.n, 0, now
	return n, true
}

// closeGraves ends the waiting for dead letters. What is not durable by now becomes one again after the next start.
func (f *feeder) closeGraves() {
	f.graves.end()
	f.graves.waiting.Wait()
}
