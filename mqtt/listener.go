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

	pace      *pace      // of all clients of the listener; nil without
	addresses *addresses // nil without limits

	newcomers *newcomers

	offer offer

	rate *meter // connection_rate; nil without
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
	l := &listener{
		srv: srv, cfg: cfg, done: make(chan struct{}),
		pace: newPace(limitListenerRate, cfg.Rate, srv.cfg.RateBurst.Std()), addresses: newAddresses(cfg, srv.cfg.MaxPendingPerAddress),
		rate: newMeter(float64(cfg.ConnectionRate), rateBurst), offer: newOffer(&srv.cfg, &cfg),
	}
	l.newcomers = newNewcomers(limit, cfg.TLS.Timeout(), l.tellSlow)
	return l
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
		l.handed = &handed{l: l, conns: make(chan net.Conn), newcomers: make(map[net.Conn]*newcomer)}
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
	for l.wait() {
		nc, err := l.ln.Accept()
		if err != nil {
			break
		}
		refusal := l.enter()
		if direct {
			if refusal == nil {
				if refusal = l.addresses.enter(remoteAddr(nc)); refusal != nil {
					l.leave()
					l.srv.metrics.overLimit.Inc()
				}
			}
			l.take(nc, refusal)
			continue
		}
		if refusal != nil {
			l.tellLimit(nc.RemoteAddr(), refusal)
			_ = nc.Close()
			continue
		}
		n, refusal := l.reserve(nc)
		if n == nil {
			_ = nc.Close()
			l.leave()
			if refusal == nil {
				break
			}
			l.tellLimit(nc.RemoteAddr(), refusal)
			continue
		}
		wg.Go(func() { l.welcome(ctx, nc, n) })
	}
	cancel()
	wg.Wait()
	l.newcomers.close()
}

// wait waits until connection_rate, here and in all, lets another connection come; false when the listener is closed.
func (l *listener) wait() bool {
	wait := max(l.rate.take(monotonic(), 1), l.srv.rate.take(monotonic(), 1))
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

// reserve waits for room among the newcomers; it returns nothing at all when the listener is closed.
func (l *listener) reserve(nc net.Conn) (*newcomer, error) {
	known := l.proxy == nil || !l.proxy.Trusts(nc.RemoteAddr())
	for again := false; ; again = true {
		if n, err := l.newcomers.enter(nc.RemoteAddr(), known, remoteAddr(nc)); n != nil || err != nil {
			return n, err
		}
		if !again {
			l.srv.metrics.paused.WithLabelValues(l.cfg.Name).Inc()
		}
		select {
		case <-l.newcomers.more:
		case <-l.done:
			return nil, nil
		}
	}
}

// take starts a connection, which has its place already. One that is refused for a limit is told so where the protocol can, as long as there are not too many
// of those.
func (l *listener) take(nc net.Conn, refusal error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := l.srv.newConn(l, nc, cancel)
	if refusal != nil && !c.turnAway(refusal) || !l.srv.accept(c) {
		cancel()
		if refusal == nil || c.refusal != nil {
			c.leave()
		}
		_ = nc.Close()
		return
	}
	if c.revoked() { // since its handshake, when nobody could see it
		c.closeFor(ErrNotAuthorized)
	}
	go c.serve(ctx)
}

const (
	maxTurnedAway  = 32              // connections that are told why they are refused at the same time; others are closed
	turnedAwayTime = 2 * time.Second // for such a connection to send its CONNECT
)

// turnAway lets a connection come as far as its CONNECT, to be refused; false when it has to be closed at once.
func (c *conn) turnAway(err error) bool {
	if c.srv.turnedAway.Add(1) > maxTurnedAway {
		c.srv.turnedAway.Add(-1)
		c.limitReached(limitOf(err), err)
		return false
	}
	c.refusal = err
	return true
}

// leave gives back what the connection has taken when it came.
func (c *conn) leave() {
	if c.refusal != nil {
		c.srv.turnedAway.Add(-1)
		return
	}
	c.lst.part(c.nc, c.arrived)
}

// part gives the place of a connection back, and that among those of its address.
func (l *listener) part(nc net.Conn, arrived bool) {
	l.leave()
	l.addresses.leave(remoteAddr(nc), arrived)
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
