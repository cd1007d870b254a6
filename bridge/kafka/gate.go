package kafka

import (
	"context"
	"net"
	"sync"
)

// gate keeps requests from leaving while a flight is appended to the producer.
//
// Without it: the broker refuses batch b of a partition, and the producer fails b and everything buffered behind it. What
// is appended between that moment and the failure's promise would go out as a fresh batch and succeed, before the refused
// records are sent again: a reorder, and duplicates when the whole is repeated. With it, a request that was built before
// the append began holds no part of the new flight, and none is written before the flight is complete.
type gate struct {
	mu  sync.RWMutex
	off bool // for the test that shows what happens then
}

type dialFunc = func(ctx context.Context, network, host string) (net.Conn, error)

// dialer wraps dial so that its connections write through the gate. It must be outermost, over TLS.
func (g *gate) dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := dial(ctx, network, host)
		if err != nil {
			return nil, err
		}
		return gateConn{c, g}, nil
	}
}

// close waits for no write: one that has begun carries a request from before.
func (g *gate) close() {
	if !g.off {
		g.mu.Lock()
	}
}

func (g *gate) open() {
	if !g.off {
		g.mu.Unlock()
	}
}

type gateConn struct {
	net.Conn
	g *gate
}

// Write only passes the gate and does not hold it: a write that blocks on a full socket must not keep flights from being
// appended.
func (c gateConn) Write(b []byte) (int, error) {
	c.g.mu.RLock()
	//lint:ignore SA2001 waiting for the gate is the point
	c.g.mu.RUnlock()
	return c.Conn.Write(b)
}
