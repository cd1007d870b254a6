package mqtt

import (
	"context"
	"sync"
	"sync/atomic"
)

// catchUp is the pool that serves who cannot be served from the tail. Each turn is short and who has more to do goes to
// the end of the queue, so that thousands that return at once share the workers fairly.
type catchUp struct {
	mu    sync.Mutex
	queue []server
	wake  chan struct{}
}

// server is a session or a share group.
type server interface {
	// serve works for one turn and returns true when there is more to do now.
	serve(enc *encoder) bool
	workState() *work
}

// work says whether its owner is queued or served: never twice at the same time.
type work struct{ state atomic.Int32 }

const (
	workIdle int32 = iota
	workQueued
	workRunning
	workAgain // running, and scheduled meanwhile
)

func newCatchUp() *catchUp { return &catchUp{wake: make(chan struct{}, 1)} }

// schedule asks for a turn. It never blocks and may be called under any lock of the engine.
func (p *catchUp) schedule(s server) {
	w := s.workState()
	for {
		switch st := w.state.Load(); st {
		case workQueued, workAgain:
			return
		case workIdle:
			if w.state.CompareAndSwap(st, workQueued) {
				p.push(s)
				return
			}
		case workRunning:
			if w.state.CompareAndSwap(st, workAgain) {
				return
			}
		}
	}
}

func (p *catchUp) push(s server) {
	p.mu.Lock()
	p.queue = append(p.queue, s)
	p.mu.Unlock()
	p.signal()
}

func (p *catchUp) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *catchUp) pop() (server, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		return nil, false
	}
	s := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return s, true
}

func (p *catchUp) worker(ctx context.Context) {
	enc := new(encoder)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		for s, ok := p.pop(); ok && ctx.Err() == nil; s, ok = p.pop() {
			p.signal() // there may be work for another worker
			w := s.workState()
			w.state.Store(workRunning)
			more := s.serve(enc)
			if more || !w.state.CompareAndSwap(workRunning, workIdle) {
				w.state.Store(workQueued)
				p.push(s)
			}
		}
	}
}
