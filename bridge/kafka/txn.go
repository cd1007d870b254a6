package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Exactly sends the flights of the lanes of one route and spool partition exactly once: each transaction holds flights and,
// in a compacted topic of its own, the position of each of their lanes behind them. What is committed is delivered, and said
// so, in one step.
//
// Two producers share the work. The main one takes all flights that are ready in one transaction. One that fails, or does not
// end in time, ends the transaction, and its lane is left to the side producer, which takes one flight at a time: so a stuck
// or poisoned lane holds none but its like.
//
// There is one way out of every failure, a commit whose outcome is unknown included: the producer is closed; a new one of the
// same transactional ID is made, which fences the old one and ends its transaction; and only then the positions are read. They
// say which flights were committed. Reading before fencing would miss a commit that is on its way.
//
// A process that was fenced by another one must not come back that way: it would fence the other in turn, and both would deliver what
// their spools have (takeover.go).
type Exactly struct {
	c        *Client
	id       string
	epoch    string  // positions of another one are another spool's, or of lanes that are not these
	before   []Epoch // of which this one goes on
	offset   string  // topic of the positions
	instance string  // of this process

	main, side *transactor

	mu       sync.Mutex
	ready    []*Flight // for main
	aside    []*Flight // for side
	suspects map[string]bool
	took     time.Duration // until the outcomes of a transaction's flights, about
	closed   bool
	taken    bool // another process has taken over: this one sends nothing any more
}

// How long the outcomes of a transaction's flights may take; longer where they take longer.
const (
	mainDeadline = 400 * time.Millisecond
	sideDeadline = 2 * time.Second
	maxDeadline  = 15 * time.Second
)

// Epoch is the name under which positions are kept, and the offset up to which they count.
type Epoch struct {
	Name  string
	Until uint64
}

// NewExactly makes one; id is part of its transactional IDs and has to be the same for ever. Only positions of the same epoch
// are read, and those of the epochs before as far as each counts.
func (c *Client) NewExactly(id, epoch string, before ...Epoch) *Exactly {
	e := &Exactly{c: c, id: id, epoch: epoch, before: before, offset: PositionsTopic, instance: rand.Text(), suspects: make(map[string]bool)}
	e.main = &transactor{e: e, id: id, wake: make(chan struct{}, 1)}
	e.side = &transactor{e: e, id: id + "/side", wake: make(chan struct{}, 1)}
	return e
}

// Open fences what an earlier process has left, and returns the positions of its lanes: the offset in the spool behind what is
// delivered. Nothing may be sent before.
func (e *Exactly) Open(ctx context.Context) (map[string]uint64, error) {
	fence := func(t *transactor) func() error {
		return func() error {
			if err := t.notTaken(ctx); err != nil { // it has been opened before: another gateway may have been there since
				return err
			}
			return t.fence(ctx)
		}
	}
	// Both before either is read.
	if err := together(
		func() error { return e.c.EnsurePositions(ctx) },
		fence(e.main),
		fence(e.side),
	); err != nil {
		return nil, err
	}
	read := func(t *transactor) func() error {
		return func() error {
			err := t.read(ctx)
			if err != nil {
				t.drop()
			}
			return err
		}
	}
	if err := together(read(e.main), read(e.side)); err != nil {
		return nil, err
	}
	positions := maps.Clone(e.main.positions)
	for k, v := range e.side.positions {
		positions[k] = max(positions[k], v)
	}
	return positions, nil
}

// together runs steps that do not need each other, each of which may wait for the cluster, and returns the first error.
func together(steps ...func() error) error {
	errs := make([]error, len(steps))
	var running sync.WaitGroup
	for i, step := range steps {
		running.Go(func() { errs[i] = step() })
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Ship sends f, whose Done is called when it is committed or cannot be.
func (e *Exactly) Ship(f *Flight) {
	e.mu.Lock()
	closed := e.closed
	switch {
	case closed:
	case e.suspects[f.lane()]:
		e.aside = append(e.aside, f)
	default:
		e.ready = append(e.ready, f)
	}
	e.mu.Unlock()
	if closed {
		go f.Done(f, Result{Verdict: Classify(kgo.ErrClientClosed)})
		return
	}
	signal(e.main.wake)
	signal(e.side.wake)
}

// Taken reports whether another process has taken over: this one sends nothing any more.
func (e *Exactly) Taken() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.taken
}

// Run sends until ctx ends. Then what has no outcome is given back; a transaction that is open is ended by the next Open.
func (e *Exactly) Run(ctx context.Context) {
	e.mu.Lock()
	e.closed = false // it may run again
	e.mu.Unlock()
	var work sync.WaitGroup
	work.Go(func() { e.runMain(ctx) })
	work.Go(func() { e.runSide(ctx) })
	work.Wait()
	e.mu.Lock()
	e.closed = true
	left := append(e.ready, e.aside...)
	e.ready, e.aside = nil, nil
	e.mu.Unlock()
	e.main.drop()
	e.side.drop()
	for _, f := range left {
		f.Done(f, Result{Verdict: Classify(kgo.ErrClientClosed)})
	}
}

func (e *Exactly) take(which *[]*Flight, most int) []*Flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(*which), most)
	out := slices.Clone((*which)[:n])
	*which = (*which)[n:]
	return out
}

func (e *Exactly) runMain(ctx context.Context) {
	for ctx.Err() == nil {
		flights := e.take(&e.ready, 1<<20)
		if len(flights) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-e.main.wake:
			}
			continue
		}
		done, faulty, err := e.main.try(ctx, flights, e.deadline(mainDeadline))
		e.mu.Lock()
		var again []*Flight
		for _, f := range flights {
			switch {
			case slices.Contains(done, f):
			case slices.Contains(faulty, f):
				e.suspects[f.lane()] = true
				e.aside = append(e.aside, f)
			default:
				again = append(again, f)
			}
		}
		e.ready = append(again, e.ready...)
		e.mu.Unlock()
		e.report(done)
		signal(e.side.wake)
		if err != nil && len(done) == 0 && len(faulty) == 0 {
			e.refuse(ctx, &e.ready, err)
		}
	}
}

func (e *Exactly) runSide(ctx context.Context) {
	for ctx.Err() == nil {
		flights := e.take(&e.aside, 1)
		if len(flights) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-e.side.wake:
			}
			continue
		}
		f := flights[0]
		done, faulty, err := e.side.try(ctx, flights, e.deadline(sideDeadline))
		switch {
		case len(done) == 1:
			e.mu.Lock()
			delete(e.suspects, f.lane())
			e.mu.Unlock()
			e.report(done)
		case len(faulty) == 1:
			v := Classify(f.err)
			v.Unknown = false // nothing of an aborted transaction is read
			f.Done(f, Result{Verdict: v})
		default: // stuck, or the producer is: the others of its like first
			e.mu.Lock()
			e.aside = append(e.aside, f)
			e.mu.Unlock()
			if err != nil && !errors.Is(err, errStalled) {
				e.refuse(ctx, &e.aside, err)
			}
		}
	}
}

// deadline is d, or more where flights take longer.
func (e *Exactly) deadline(d time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return min(max(d, 4*e.took), maxDeadline)
}

// refuse tells lanes that wait why they do, and rests.
func (e *Exactly) refuse(ctx context.Context, which *[]*Flight, err error) {
	if v := Classify(err); v.Class == Fault {
		for _, f := range e.take(which, 1<<20) {
			f.Done(f, Result{Verdict: v})
		}
	}
	sleep(ctx, 500*time.Millisecond)
}

func (e *Exactly) report(done []*Flight) {
	for _, f := range done {
		f.Done(f, Result{Acked: len(f.Messages)})
	}
}
