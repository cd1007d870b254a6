package mqtt

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// listener accepts the connections of one address.
type listener struct {
	srv  *Server
	cfg  ListenerConfig
	ln   net.Listener
	http *http.Server // of a WebSocket
	n    atomic.Int64 // open connections
}

func (l *listener) bind() error {
	ln, err := net.Listen("tcp", l.cfg.Address)
	if err != nil {
		return err
	}
	l.ln = &patient{Listener: ln, l: l}
	if l.cfg.Type == ListenerWebSocket {
		l.http = l.webSocket()
	}
	return nil
}

func (l *listener) close() {
	if l.http != nil {
		_ = l.http.Close()
	}
	if l.ln != nil {
		_ = l.ln.Close()
	}
}

// run accepts until the listener is closed.
func (l *listener) run() {
	if l.http != nil {
		_ = l.http.Serve(l.ln) // returns when it is closed
		return
	}
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			return
		}
		l.take(nc)
	}
}

// take starts a connection, or closes it when there are too many.
func (l *listener) take(nc net.Conn) {
	if limit := l.cfg.MaxConnections; l.n.Add(1) > int64(limit) && limit > 0 {
		l.n.Add(-1)
		l.srv.metrics.overLimit.Inc()
		_ = nc.Close()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := l.srv.newConn(l, nc, cancel)
	if !l.srv.accept(c) {
		cancel()
		l.n.Add(-1)
		_ = nc.Close()
		return
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
		time.Sleep(p.wait)
	}
}
