package mqtt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// The end of a server: no connection is accepted and no packet read any more; what the log is about to answer leaves, so
// that publishers need not send it again; then each client is told that the server goes, or where it finds another one.

// shutdownTime is how long clients and the last checkpoint are waited for, unless Close is given less.
const shutdownTime = 5 * time.Second

func (srv *Server) shutdown() {
	srv.connMu.Lock()
	srv.closing = true
	deadline := time.Now().Add(shutdownTime)
	if !srv.deadline.IsZero() && srv.deadline.Before(deadline) {
		deadline = srv.deadline
	}
	srv.connMu.Unlock()
	for _, l := range srv.listeners {
		l.close()
	}
	srv.quiesce()
	// Each connection ends by itself when its acknowledgements have left. With half of the time over the rest is cut: what
	// is not acknowledged then is sent again.
	srv.awaitEnd(time.Now().Add(time.Until(deadline) / 2))
	for _, c := range srv.openConns() {
		c.closeFor(errShuttingDown)
	}
	if !srv.awaitEnd(deadline) {
		for _, c := range srv.openConns() {
			c.out.abort()
		}
		srv.awaitEnd(time.Now().Add(time.Second)) // nothing holds a reader now
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	srv.checkpointAll()
	srv.commitLowWater()
	if err := srv.writer.flush(ctx); err != nil {
		srv.log.Warn("last checkpoint of the sessions is not durable; deliveries may be repeated", "err", err)
	}
}

func (srv *Server) openConns() []*conn {
	srv.connMu.Lock()
	defer srv.connMu.Unlock()
	list := make([]*conn, 0, len(srv.conns))
	for c := range srv.conns {
		list = append(list, c)
	}
	return list
}

// awaitEnd waits until no connection is left, or until deadline.
func (srv *Server) awaitEnd(deadline time.Time) bool {
	for {
		if len(srv.openConns()) == 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// quiesce lets the reader of each connection return from where it waits for bytes.
func (srv *Server) quiesce() {
	srv.draining.Store(true)
	for _, c := range srv.openConns() {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // see extendDeadline, which sets it again
	}
}

// drained is called by the reader when it cannot read on: at a shutdown it waits for what its publishes are owed. The
// wait ends with the connection at the latest.
func (c *conn) drained(err error) error {
	if !c.srv.draining.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	c.acks.settle()
	return errShuttingDown
}

// Close ends Run and waits for it. It may be called more than once.
func (srv *Server) Close(ctx context.Context) error {
	srv.connMu.Lock()
	started, stop := srv.started, srv.stop
	srv.closing = true
	srv.deadline, _ = ctx.Deadline()
	srv.connMu.Unlock()
	defer srv.metrics.unregister()
	defer srv.closeAuth()
	defer srv.audit.Close()
	if !started {
		for _, l := range srv.listeners {
			l.close()
		}
		return nil
	}
	stop()
	select {
	case <-srv.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mqtt: close: %w", ctx.Err())
	}
}
