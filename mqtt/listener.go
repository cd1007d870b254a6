package mqtt

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// listener accepts the connections of one address.
type listener struct {
	srv    *Server
	cfg    ListenerConfig
	ln     net.Listener
	tls    *transport.TLS   // nil without
	proxy  *transport.Proxy // nil without
	http   *http.Server     // of a WebSocket
	handed *handed          // what http serves
	n      atomic.Int64     // open connections

	// pending has a place for each connection that has not come as far as MQTT: PROXY header, TLS handshake, HTTP request.
	// When all are taken, nothing is accepted, and newcomers wait in the kernel.
	pending chan struct{}

	due  time.Time // of the next connection by connection_rate; of run only
	done chan struct{}
	once sync.Once // closes done

	complaints complaints
}

const (
	defaultMaxHandshakes = 1024            // at 40 KiB each
	rateBurst            = 1 * time.Second // of connection_rate that may come at once
)

func newListener(srv *Server, cfg ListenerConfig) *listener {
	limit := cfg.MaxHandshakes
	if limit == 0 {
		limit = defaultMaxHandshakes
	}
	return &listener{srv: srv, cfg: cfg, pending: make(chan struct{}, limit), done: make(chan struct{})}
}

func (l *listener) bind() error {
	if l.cfg.secure() {
		t, err := transport.NewTLS(l.cfg.TLS, transport.Options{
			Listener: l.cfg.Name, ALPN: l.cfg.alpn(), Slots: l.srv.slots, Logger: l.srv.log, Now: l.srv.now,
		})
		if err != nil {
			return err
		}
		l.tls = t
		l.srv.metrics.notAfter.WithLabelValues(l.cfg.Name).Set(float64(t.Expiry().Unix()))
	}
	l.proxy = transport.NewProxy(l.cfg.Proxy)
	ln, err := l.listen()
	if err != nil {
		return err
	}
	l.ln = &patient{Listener: ln, l: l}
	if l.cfg.webSocket() {
		l.http = l.webSocket()
		l.handed = &handed{l: l, conns: make(chan net.Conn)}
	}
	return nil
}

func (l *listener) listen() (net.Listener, error) {
	if l.cfg.Type != ListenerUnix {
		return net.Listen("tcp", l.cfg.Address)
	}
	mode, err := transport.ParseMode(l.cfg.Mode)
	if err != nil {
		return nil, err
	}
	return transport.ListenUnix(l.cfg.Address, mode)
}

func (l *listener) close() {
	l.once.Do(func() { close(l.done) })
	if l.http != nil {
		_ = l.http.Close()
	}
	if l.ln != nil {
		_ = l.ln.Close()
	}
}

// run accepts until the listener is closed, and waits for what is on the way to MQTT.
func (l *listener) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if l.http != nil {
		wg.Go(func() { _ = l.http.Serve(l.handed) }) // returns when it is closed
	}
	direct := l.tls == nil && l.proxy == nil && l.http == nil
	for l.pace() {
		nc, err := l.ln.Accept()
		if err != nil {
			break
		}
		if !l.enter() {
			_ = nc.Close()
			continue
		}
		if direct {
			l.take(nc)
			continue
		}
		if !l.reserve() {
			_ = nc.Close()
			l.leave()
			break
		}
		wg.Go(func() { l.welcome(ctx, nc) })
	}
	cancel()
	wg.Wait()
}

// pace waits until connection_rate lets another connection come; false when the listener is closed.
func (l *listener) pace() bool {
	if l.cfg.ConnectionRate == 0 {
		return true
	}
	now := time.Now()
	if earliest := now.Add(-rateBurst); l.due.Before(earliest) {
		l.due = earliest
	}
	l.due = l.due.Add(time.Second / time.Duration(l.cfg.ConnectionRate))
	wait := l.due.Sub(now)
	if wait <= 0 {
		return true
	}
	l.srv.metrics.paused.WithLabelValues(l.cfg.Name).Inc()
	return l.sleep(wait)
}

func (l *listener) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.done:
		return false
	}
}

// reserve waits for a place among the pending; false when the listener is closed.
func (l *listener) reserve() bool {
	select {
	case l.pending <- struct{}{}:
		return true
	default:
	}
	l.srv.metrics.paused.WithLabelValues(l.cfg.Name).Inc()
	select {
	case l.pending <- struct{}{}:
		return true
	case <-l.done:
		return false
	}
}

func (l *listener) release() { <-l.pending }

// take starts a connection, which has its place already.
func (l *listener) take(nc net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	c := l.srv.newConn(l, nc, cancel)
	if !l.srv.accept(c) {
		cancel()
		l.leave()
		_ = nc.Close()
		return
	}
	if c.revoked() { // since its handshake, when nobody could see it
		c.closeFor(ErrNotAuthorized)
	}
	go c.serve(ctx)
}

// patient is a listener that survives what Accept may meet: out of file descriptors, a connection that is gone already.
// It tries again after a time that doubles, and returns an error only when it is closed.
type patient struct {
	net.Listener
	l      *listener
	wait   time.Duration
	logged time.Time
}

const (
	acceptWait    = 5 * time.Millisecond
	acceptMaxWait = time.Second
	acceptLog     = 10 * time.Second // one line in this time
)

func (p *patient) Accept() (net.Conn, error) {
	for {
		nc, err := p.Listener.Accept()
		if err == nil {
			p.wait = 0
			return nc, nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		p.l.srv.metrics.acceptErrors.Inc()
		p.wait = min(max(2*p.wait, acceptWait), acceptMaxWait)
		if time.Since(p.logged) > acceptLog {
			p.logged = time.Now()
			p.l.srv.log.Error("taking a new connection, again soon", "listener", p.l.cfg.Name, "err", err)
		}
		if !p.l.sleep(p.wait) {
			return nil, net.ErrClosed
		}
	}
}
