package transport

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// Slots bound how many handshakes compute at the same time, and how long a slot rests after each computation: others need the
// processor too, and what computes without a pause keeps them waiting for the scheduler's turns.
type Slots struct {
	places chan struct{}
	rest   func(held time.Duration) time.Duration // nil: none
}

// NewSlots returns n slots. rest says how long a slot stays empty after a computation that took so long; nil is not at all.
func NewSlots(n int, rest func(held time.Duration) time.Duration) *Slots {
	return &Slots{places: make(chan struct{}, n), rest: rest}
}

func (s *Slots) take(ctx context.Context) error {
	select {
	case s.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// give returns a slot that was held for so long. It does not wait for the rest of it.
func (s *Slots) give(held time.Duration) {
	if s.rest != nil {
		if d := s.rest(held); d > 0 {
			time.AfterFunc(d, func() { <-s.places })
			return
		}
	}
	<-s.places
}

// Wait is what a handshake waits for.
type Wait int

// Of these a handshake waits for the slot first.
const (
	WaitSlot Wait = iota // of the processors
	WaitNone             // it computes
	WaitPeer
)

// Handshake makes nc a TLS connection, until ctx ends. nc is for the caller to close when that fails. waits is told each time that it begins to wait
// for something else.
func (t *TLS) Handshake(ctx context.Context, nc net.Conn, waits func(Wait)) (*Conn, error) {
	p := &pacer{Conn: nc, ctx: ctx, slots: t.opts.Slots, waits: waits}
	if err := p.take(); err != nil {
		return nil, err
	}
	c := tls.Server(p, t.base)
	err := c.HandshakeContext(ctx)
	p.give()
	p.slots, p.waits = nil, nil
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	p.ctx = nil
	return &Conn{Conn: c, raw: nc}, nil
}

// pacer is the socket below a handshake. It has a slot while the handshake computes and none while that waits for the peer.
// Afterwards it is in nobody's way.
type pacer struct {
	net.Conn
	ctx   context.Context // of the handshake: the reads that the library makes for it have no other
	slots *Slots          // nil after the handshake; only the goroutine of the handshake reads until then
	since time.Time       // when it took its slot; zero without one
	waits func(Wait)
}

// Read implements net.Conn.
func (p *pacer) Read(b []byte) (int, error) {
	if p.slots == nil {
		return p.Conn.Read(b)
	}
	p.give()
	p.waits(WaitPeer)
	n, err := p.Conn.Read(b)
	if e := p.take(); e != nil && err == nil {
		err = e
	}
	return n, err
}

func (p *pacer) take() error {
	p.waits(WaitSlot)
	if err := p.slots.take(p.ctx); err != nil {
		return err
	}
	p.waits(WaitNone)
	p.since = time.Now()
	return nil
}

func (p *pacer) give() {
	if !p.since.IsZero() {
		p.slots.give(time.Since(p.since))
		p.since = time.Time{}
	}
}

// Conn is a TLS connection whose Close does not wait.
type Conn struct {
	*tls.Conn
	raw net.Conn
}

// Close closes the connection at once. The library's own first writes that it does, and waits up to five seconds for a peer that
// does not read; CloseWrite is for an orderly end.
func (c *Conn) Close() error { return c.raw.Close() }
