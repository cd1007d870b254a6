package transport

import (
	"context"
	"crypto/tls"
	"net"
)

// Slots bound how many handshakes compute at the same time.
type Slots chan struct{}

// NewSlots returns n slots.
func NewSlots(n int) Slots { return make(Slots, n) }

// Handshake makes nc a TLS connection, until ctx ends. nc is for the caller to close when that fails.
func (t *TLS) Handshake(ctx context.Context, nc net.Conn) (*Conn, error) {
	p := &pacer{Conn: nc, ctx: ctx, slots: t.opts.Slots}
	if err := p.take(); err != nil {
		return nil, err
	}
	c := tls.Server(p, t.base)
	err := c.HandshakeContext(ctx)
	p.give()
	p.slots = nil
	if err != nil {
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
	slots Slots           // nil after the handshake; only the goroutine of the handshake reads until then
	held  bool
}

// Read implements net.Conn.
func (p *pacer) Read(b []byte) (int, error) {
	if p.slots == nil {
		return p.Conn.Read(b)
	}
	p.give()
	n, err := p.Conn.Read(b)
	if e := p.take(); e != nil && err == nil {
		err = e
	}
	return n, err
}

func (p *pacer) take() error {
	select {
	case p.slots <- struct{}{}:
		p.held = true
		return nil
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

func (p *pacer) give() {
	if p.held {
		p.held = false
		<-p.slots
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
