package kafka

import (
	"context"
	"math/rand/v2"
	"time"
)

// How the upstream is watched.
const (
	pingEvery   = 10 * time.Second // without any other sign of life
	pingTimeout = 3 * time.Second
	pingBackoff = 250 * time.Millisecond // then doubling
	maxPing     = 5 * time.Second
	minStall    = 200 * time.Millisecond // a lane that is slower than this, on a fast link, is detached
	maxStall    = 5 * time.Second
)

// watch keeps up what is known about the cluster: reachable or not, and why.
func (c *Client) watch(ctx context.Context) {
	wait, backoff := time.Duration(0), pingBackoff
	for {
		probe := c.probeC
		if !c.Up() {
			probe = nil // nobody is helped by asking a dead cluster more often
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
			c.mu.Lock()
			rest := pingEvery - time.Since(c.aliveAt)
			fresh := c.up.Load() && rest > 0 && c.condemned == nil
			c.mu.Unlock()
			if fresh {
				wait = rest
				continue
			}
		case <-probe:
			t.Stop()
		}
		c.mu.Lock()
		if c.tooLongInAirLocked(time.Now()) {
			c.condemnLocked(Verdict{Class: Dead, Reason: "outcome_too_late", Hint: minISR})
		}
		dead, producer := c.condemned != nil, c.producer
		c.mu.Unlock()
		if dead {
			if c.rebuild(ctx); ctx.Err() != nil {
				return // there may be no producer
			}
			wait = 0
			continue
		}
		pctx, cancel := context.WithTimeout(ctx, pingTimeout)
		err := producer.Ping(pctx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		c.pinged(err)
		if err == nil {
			wait, backoff = pingEvery, pingBackoff
			continue
		}
		wait = backoff/2 + rand.N(backoff)
		backoff = min(2*backoff, maxPing)
	}
}

func (c *Client) pinged(err error) {
	c.mu.Lock()
	was := c.up.Load()
	if err == nil {
		c.aliveLocked(time.Now())
	} else {
		c.up.Store(false)
		if c.downAt.IsZero() {
			c.downAt = time.Now()
		}
		if time.Since(c.connErrAt) > pingTimeout { // the connection's own error says more
			c.connErr, c.connErrAt = err, time.Now()
		}
		err = c.connErr
	}
	reason, hint := ConnectionReason(err)
	tell := err != nil && c.tellLocked(reason)
	c.mu.Unlock()
	switch {
	case err == nil && !was:
		c.log.Info("upstream is reachable")
	case tell:
		c.log.Warn("upstream is not reachable; records wait in the spool", "reason", reason, "err", err, "hint", hint)
	}
	c.notify()
}

// tellLocked reports whether the log should say that the upstream is not reachable: once for each reason of an outage, so that a
// login that is refused shows also when the brokers were restarted for it, and two brokers that fail in different ways say so once.
func (c *Client) tellLocked(reason string) bool {
	if c.told[reason] {
		return false
	}
	c.told[reason] = true
	return true
}

// aliveLocked notes a sign of life.
func (c *Client) aliveLocked(now time.Time) {
	c.aliveAt = now
	c.downAt = time.Time{}
	clear(c.told)
	if !c.up.Swap(true) {
		c.upAt = now
		go c.notify() // watchers take their own locks
	}
}

func (c *Client) notify() {
	c.mu.Lock()
	watchers := c.watchers
	c.mu.Unlock()
	for _, fn := range watchers {
		(*fn)()
	}
}

// Up reports whether the cluster showed a sign of life and none of its death since.
func (c *Client) Up() bool { return c.up.Load() }

// AliveSince reports whether there was a sign of life after t. When there was none, it asks for one: watchers are told.
func (c *Client) AliveSince(t time.Time) bool {
	c.mu.Lock()
	alive := c.up.Load() && c.aliveAt.After(t)
	c.mu.Unlock()
	if !alive {
		signal(c.probeC)
	}
	return alive
}

// StallAfter is how long a lane may hold the others: longer on a link where flights take longer.
func (c *Client) StallAfter() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(max(3*c.flightTime, minStall), maxStall)
}

// Status is what is known about an upstream.
type Status struct {
	Up          bool
	Alive       time.Time // last sign of life
	Down        time.Time // since when there is none although it was asked for; zero while it is up, and before the first answer
	ConnError   error     // last error of a connection
	ConnErrorAt time.Time
	Outstanding int   // messages without an outcome
	Buffered    int64 // bytes of them in the producer
	Rebuilds    uint64
	Torn        uint64            // messages acknowledged before an earlier one; 0, or something is wrong
	ConnErrors  map[string]uint64 // by reason
	Throttled   time.Duration     // that brokers asked this client to wait
}

// Status takes a snapshot.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Up: c.up.Load(), Alive: c.aliveAt, Down: c.downAt, ConnError: c.connErr, ConnErrorAt: c.connErrAt, Outstanding: c.outstanding,
		Rebuilds: c.rebuilds, Torn: c.torn, Throttled: c.throttled, ConnErrors: make(map[string]uint64, len(c.connErrors)),
	}
	for k, v := range c.connErrors {
		s.ConnErrors[k] = v
	}
	if c.producer != nil {
		s.Buffered = c.producer.BufferedProduceBytes()
	}
	return s
}
