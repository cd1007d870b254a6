package mqtt

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/transport"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// welcome brings a connection as far as MQTT, or as HTTP for a WebSocket, and has reserved a place among the pending for it. It
// has a goroutine of its own that ends with the handshake: the stack that this took goes with it.
func (l *listener) welcome(ctx context.Context, socket net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TLS.Timeout())
	defer cancel()
	nc, err := l.shake(ctx, socket)
	if err != nil {
		_ = socket.Close()
		l.release()
		l.leave()
		return
	}
	if l.http != nil {
		l.handed.give(nc) // its place is given back by placeOf
		return
	}
	l.release()
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

// shake reads what comes before MQTT: first the header of a proxy, then TLS. What is wrong has been told.
func (l *listener) shake(ctx context.Context, nc net.Conn) (net.Conn, error) {
	if l.proxy != nil && l.proxy.Trusts(nc.RemoteAddr()) {
		behind, err := l.proxy.Accept(ctx, nc)
		if err != nil {
			l.failed(nc.RemoteAddr(), err)
			return nil, err
		}
		nc = behind
	}
	addr := remoteAddr(nc)
	if err := l.screen(nc.RemoteAddr(), addr); err != nil {
		return nil, err
	}
	if l.tls == nil {
		if l.http != nil {
			return &sniffed{Conn: nc, l: l}, nil
		}
		return nc, nil
	}
	secure, err := l.tls.Handshake(ctx, nc)
	if err != nil {
		l.addresses.leave(addr, false)
		l.failed(nc.RemoteAddr(), err)
		return nil, err
	}
	l.srv.metrics.handshakes.Inc()
	return secure, nil
}

// failed counts a connection that did not come as far as MQTT, and says so when somebody can do something about it.
func (l *listener) failed(remote net.Addr, err error) {
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
}

func (h *handed) give(nc net.Conn) {
	select {
	case h.conns <- nc:
	case <-h.l.done:
		_ = nc.Close()
		h.l.release()
		h.l.leave()
	}
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
