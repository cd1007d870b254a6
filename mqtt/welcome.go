package mqtt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/transport"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// welcome brings a connection as far as MQTT, or as HTTP for a WebSocket. It has a goroutine of its own that ends with the handshake: the stack that
// this took goes with it.
func (l *listener) welcome(ctx context.Context, socket net.Conn, n *newcomer) {
	nc, err := l.shake(ctx, socket, n)
	if err != nil {
		_ = socket.Close()
		n.leave()
		l.leave()
		return
	}
	if l.http != nil {
		l.handed.give(nc, n) // its place is given back by placeOf
		return
	}
	n.leave()
	l.take(nc, nil)
}

// screen refuses a connection by where it comes from, before it costs a handshake. Who has passed leaves l.addresses.
func (l *listener) screen(from net.Addr, addr netip.Addr) error {
	if a := l.srv.auth; a != nil && l.tls != nil { // without TLS a CONNECT costs little, and its answer tells more
		if err := a.Screen(addr); err != nil {
			l.srv.audit.Record(audit.Event{Name: audit.Unwelcome, Listener: l.cfg.Name, Remote: from.String(), What: "banned", Detail: err.Error()})
			return err
		}
	}
	err := l.addresses.enter(addr)
	if err == nil {
		return nil
	}
	l.srv.metrics.overLimit.Inc()
	l.tellLimit(from, err)
	return err
}

// tellLimit counts and records that a connection has met a limit before MQTT.
func (l *listener) tellLimit(from net.Addr, err error) {
	limit := limitOf(err)
	l.srv.metrics.limits.WithLabelValues(limit).Inc()
	l.srv.audit.Record(audit.Event{Name: audit.LimitReached, Listener: l.cfg.Name, Remote: from.String(), Limit: limit, Detail: err.Error()})
}

// shake reads what comes before MQTT: first the header of a proxy, then, once there is a place for it, TLS. What is wrong has been told. The time
// for all of it is that of a handshake, and waiting for the place, or for a processor, does not count.
func (l *listener) shake(ctx context.Context, nc net.Conn, n *newcomer) (net.Conn, error) {
	timeout := l.cfg.TLS.Timeout()
	if l.proxy != nil && l.proxy.Trusts(nc.RemoteAddr()) {
		began := time.Now()
		behind, err := l.behind(ctx, nc, timeout)
		if err != nil {
			l.failed(nc.RemoteAddr(), err)
			return nil, err
		}
		timeout -= time.Since(began)
		nc = behind
		if err := n.name(nc.RemoteAddr(), remoteAddr(nc)); err != nil {
			l.tellLimit(nc.RemoteAddr(), err)
			return nil, err
		}
	}
	select {
	case <-n.turn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if n.wasCut() {
		return nil, transport.ErrSlow
	}
	addr := remoteAddr(nc)
	if err := l.screen(nc.RemoteAddr(), addr); err != nil {
		return nil, err
	}
	secure, err := l.secured(ctx, nc, n, timeout)
	if err != nil {
		l.addresses.leave(addr, false)
		l.failed(nc.RemoteAddr(), err)
	}
	return secure, err
}

// behind returns the connection as that of the client behind a proxy.
func (l *listener) behind(ctx context.Context, nc net.Conn, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.proxy.Accept(ctx, nc)
}

// secured makes the handshake of a newcomer who has a place.
func (l *listener) secured(ctx context.Context, nc net.Conn, n *newcomer, timeout time.Duration) (net.Conn, error) {
	if l.tls == nil {
		if l.http != nil {
			return &sniffed{Conn: nc, l: l}, nil
		}
		return nc, nil
	}
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	if !n.serve(false, func() { cut(transport.ErrSlow) }) {
		return nil, transport.ErrSlow
	}
	w := stopwatch{left: timeout, over: func() { cut(context.DeadlineExceeded) }}
	defer w.stop()
	secure, err := l.tls.Handshake(ctx, nc, func(what transport.Wait) {
		n.waitsFor(what == transport.WaitPeer)
		if what == transport.WaitSlot { // many come at once: that is not the peer's fault
			w.stop()
		} else {
			w.run()
		}
	})
	if err != nil {
		return nil, err
	}
	l.srv.metrics.handshakes.Inc()
	return secure, nil
}

// stopwatch is a timeout that does not always run. It belongs to one goroutine.
type stopwatch struct {
	left  time.Duration
	over  func()
	began time.Time // zero when it stands
	timer *time.Timer
}

func (w *stopwatch) run() {
	if !w.began.IsZero() {
		return
	}
	w.began = time.Now()
	if w.timer == nil {
		w.timer = time.AfterFunc(w.left, w.over)
		return
	}
	w.timer.Reset(w.left)
}

func (w *stopwatch) stop() {
	if w.began.IsZero() {
		return
	}
	w.timer.Stop()
	w.left -= time.Since(w.began)
	w.began = time.Time{}
}

// tellSlow counts and records a newcomer who has lost his place, or was sent away from the room before it.
func (l *listener) tellSlow(n *newcomer) {
	l.srv.metrics.handshakeFailures.WithLabelValues(transport.ReasonSlow).Inc()
	l.tellLimit(n.remote, errTooManyHandshakes)
	l.complain(limitHandshakes, n.remote, fmt.Sprintf("others wait for the places of connections that do not go on, %d of %s", l.newcomers.of(n), n.key),
		"ban the address if it is none of your devices: forebay ban add --address; or raise max_handshakes")
}

// failed counts a connection that did not come as far as MQTT, and says so when somebody can do something about it.
func (l *listener) failed(remote net.Addr, err error) {
	if errors.Is(err, transport.ErrSlow) {
		return // see tellSlow
	}
	reason, hint := transport.ReasonOf(err)
	l.srv.metrics.handshakeFailures.WithLabelValues(reason).Inc()
	if reason != transport.ReasonGone {
		l.srv.audit.Record(audit.Event{
			Name: audit.Unwelcome, Listener: l.cfg.Name, Remote: remote.String(), What: reason, Detail: err.Error(),
		})
	}
	if hint == "" {
		l.srv.log.Debug("connection did not come as far as MQTT", "listener", l.cfg.Name, "remote", remote.String(), "err", err)
		return
	}
	l.complain(reason, remote, err.Error(), hint)
}

// stranger looks at what came in the place of a CONNECT.
func (l *listener) stranger(remote net.Addr, e *wire.Error) {
	if e.Detail == wire.DetailTLS {
		l.spokeTLS(remote)
	}
}

func (l *listener) spokeTLS(remote net.Addr) {
	l.srv.metrics.handshakeFailures.WithLabelValues(transport.ReasonProtocol).Inc()
	l.complain(transport.ReasonProtocol, remote, "a TLS handshake on a listener without TLS",
		"switch TLS off in the client, or give it the address of a listener of type tls or wss")
}

// complaints throttle a line that may come with each connection.
type complaints struct {
	mu   sync.Mutex
	last map[string]*complaint // by reason
}

type complaint struct {
	at    time.Time
	quiet int // that were not logged since
}

const complaintEvery = 10 * time.Second

func (l *listener) complain(reason string, remote net.Addr, problem, hint string) {
	if others, ok := l.complaints.allow(reason); ok {
		l.srv.log.Warn("connection refused before MQTT", "listener", l.cfg.Name, "remote", remote.String(), "err", problem, "hint", hint,
			"others", others)
	}
}

// allow lets a line through for each reason now and then. others is how many were not since the last one.
func (c *complaints) allow(reason string) (others int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[string]*complaint{}
	}
	last := c.last[reason]
	if last == nil {
		last = &complaint{}
		c.last[reason] = last
	}
	if time.Since(last.at) < complaintEvery {
		last.quiet++
		return 0, false
	}
	others = last.quiet
	*last = complaint{at: time.Now()}
	return others, true
}

// handed is the listener of the HTTP server: connections that are through with what comes before.
type handed struct {
	l     *listener
	conns chan net.Conn

	mu        sync.Mutex
	newcomers map[net.Conn]*newcomer
}

func (h *handed) give(nc net.Conn, n *newcomer) {
	h.mu.Lock()
	h.newcomers[nc] = n
	h.mu.Unlock()
	if n.serve(true, func() { _ = nc.Close() }) {
		select {
		case h.conns <- nc:
			return
		case <-h.l.done:
		}
	}
	_ = nc.Close()
	h.release(nc)
	h.l.part(nc, false)
}

// release gives back the place of a newcomer that was handed over.
func (h *handed) release(nc net.Conn) {
	h.mu.Lock()
	n := h.newcomers[nc]
	delete(h.newcomers, nc)
	h.mu.Unlock()
	n.leave()
}

// Accept implements net.Listener.
func (h *handed) Accept() (net.Conn, error) {
	select {
	case nc := <-h.conns:
		return nc, nil
	case <-h.l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The listener itself is closed by its owner.
func (h *handed) Close() error { return nil }

// Addr implements net.Listener.
func (h *handed) Addr() net.Addr { return h.l.ln.Addr() }

// sniffed looks at the first byte of a connection to a WebSocket without TLS.
type sniffed struct {
	net.Conn
	l *listener // nil once it has come; of the reader
}

// Read implements net.Conn.
func (s *sniffed) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if s.l != nil && n > 0 {
		if b[0] == transport.HelloRecord {
			s.l.spokeTLS(s.RemoteAddr())
		}
		s.l = nil
	}
	return n, err
}
