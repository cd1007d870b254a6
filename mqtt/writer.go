package mqtt

import (
	"context"
	"sync"

	"github.com/forebay-gateway/forebay/spool"
)

// stateWriter appends the engine's own entries: changes of sessions, wills. Whoever holds a lock, or is called by the log,
// hands them over without waiting; one goroutine appends them in that order. Its length is bounded by what makes entries:
// a window of deliveries per connection, and one packet at a time of each client.
type stateWriter struct {
	log    Log
	before func() // is called on the log's commit goroutine before completions

	mu      sync.Mutex
	queue   []stateEntry
	pending int           // entries that are queued or not durable yet
	idle    chan struct{} // closed when pending is 0, made by who waits
	failed  error         // set once the log takes nothing more
	wake    chan struct{}
}

// stateEntry is one entry; done, when not nil, runs on the log's commit goroutine and must not block.
type stateEntry struct {
	rec       *spool.Record
	changes   []spool.Change
	otherwise []spool.Change // are written in place of changes when the log does not take rec
	done      func(rec *spool.Record, err error)
}

func newStateWriter(log Log, before func()) *stateWriter {
	return &stateWriter{log: log, before: before, wake: make(chan struct{}, 1)}
}

// put queues e. Entries become durable in the order of put.
func (w *stateWriter) put(e stateEntry) {
	w.mu.Lock()
	if err := w.failed; err != nil {
		w.mu.Unlock()
		// Not on the caller's stack: it may hold the lock that done takes.
		if e.done != nil {
			go e.done(e.rec, err)
		}
		return
	}
	w.queue = append(w.queue, e)
	w.pending++
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// putAll queues changes that need not be one group: in entries that fit the log, whatever a client has made of them. done
// is told of the last.
func (w *stateWriter) putAll(changes []spool.Change, done func(rec *spool.Record, err error)) {
	first, size := 0, 0
	for i := range changes {
		if size += changeSize(&changes[i]); size >= joinedBytes && i+1 < len(changes) {
			w.put(stateEntry{changes: changes[first : i+1 : i+1]})
			first, size = i+1, 0
		}
	}
	w.put(stateEntry{changes: changes[first:], done: done})
}

func changeSize(c *spool.Change) int { return len(c.Key) + len(c.Value) }

// The entries of one append are joined up to this many bytes of values: fewer, larger entries cost the log less.
const joinedBytes = 128 << 10

func (w *stateWriter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			w.fail(ctx.Err())
			return
		case <-w.wake:
		}
		for batch := w.takeQueue(); len(batch) > 0; batch = w.takeQueue() {
			alone := 0 // entries that are appended one by one
			for len(batch) > 0 {
				n := joinable(batch)
				if alone > 0 {
					n, alone = 1, alone-1
				}
				err := w.append(ctx, batch[:n])
				switch {
				case err == nil:
				case final(err) && n > 1: // one of them is to blame, and they are of different clients
					alone = n
					continue
				case final(err): // it concerns this entry; others may pass
					if other := batch[0].otherwise; len(other) > 0 {
						if err := w.log.Append(ctx, spool.Entry{Changes: other}); err != nil {
							w.finish(batch, err)
							w.fail(err)
							return
						}
					}
					w.finish(batch[:n], err)
				default:
					w.finish(batch, err)
					w.fail(err)
					return
				}
				batch = batch[n:]
			}
		}
	}
}

// joinable is how many of the first entries may become one: a record stands alone.
func joinable(batch []stateEntry) int {
	if batch[0].rec != nil {
		return 1
	}
	n := 0
	for size := 0; n < len(batch) && batch[n].rec == nil && size < joinedBytes; n++ {
		for i := range batch[n].changes {
			size += changeSize(&batch[n].changes[i])
		}
	}
	return n
}

func (w *stateWriter) takeQueue() []stateEntry {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queue
	w.queue = nil
	return q
}

// append hands entries to the log. A record, a will, takes from the log's reserve while that is full, and is refused beyond it: it
// must not hold up the sessions, without which nothing leaves the log. Changes alone always find room.
func (w *stateWriter) append(ctx context.Context, entries []stateEntry) error {
	e := spool.Entry{Record: entries[0].rec, Changes: entries[0].changes, Done: &joined{w, entries}, Reserve: true}
	if len(entries) > 1 {
		e.Changes = nil
		for _, one := range entries {
			e.Changes = append(e.Changes, one.changes...)
		}
	}
	return w.log.Append(ctx, e)
}

// joined is the completion of entries that were appended as one.
type joined struct {
	w       *stateWriter
	entries []stateEntry
}

// Durable implements spool.Completion.
func (j *joined) Durable(rec *spool.Record, err error) {
	j.w.before()
	for _, e := range j.entries {
		if e.done != nil {
			e.done(rec, err)
		}
	}
	j.w.settle(len(j.entries))
}

func (w *stateWriter) finish(entries []stateEntry, err error) {
	for _, e := range entries {
		if e.done != nil {
			e.done(e.rec, err)
		}
	}
	w.settle(len(entries))
}

func (w *stateWriter) settle(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending -= n
	if w.pending == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// fail ends the writer: what is queued and what comes later is answered with err.
func (w *stateWriter) fail(err error) {
	w.mu.Lock()
	w.failed = err
	q := w.queue
	w.queue = nil
	w.mu.Unlock()
	w.finish(q, err)
}

// flush waits until everything that was put before is durable.
func (w *stateWriter) flush(ctx context.Context) error {
	w.mu.Lock()
	if w.pending == 0 {
		err := w.failed
		w.mu.Unlock()
		return err
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
