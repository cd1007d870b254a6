package mqtt

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// input is what a connection's decoder reads from.
type input struct {
	conn    *conn
	n       int64                 // bytes read so far
	waiting atomic.Bool           // for bytes: what came before them has been dealt with
	pause   atomic.Pointer[pause] // of who wants to take over
}

// pause holds a reader where it has dealt with all that had come.
type pause struct {
	begun chan struct{} // closed by the reader
	over  chan struct{} // closed by who asked for it
}

// Read implements io.Reader.
func (in *input) Read(b []byte) (int, error) {
	in.waiting.Store(true)
	n, err := in.conn.nc.Read(b)
	in.waiting.Store(false)
	for n == 0 && err != nil && in.held(err) {
		n, err = in.conn.nc.Read(b)
	}
	in.conn.srv.metrics.bytesIn.Add(float64(n))
	in.n += int64(n)
	return n, err
}

// held is called by the reader when a read has failed. If that was to hold it, it waits, and held reports whether to read again:
// also for what has come in the same moment, before it waits.
func (in *input) held(failed error) (again bool) {
	p := in.pause.Load()
	switch {
	case p == nil || !errors.Is(failed, os.ErrDeadlineExceeded):
		return false
	case poll(in.conn.nc) != 0:
		_ = in.conn.nc.SetReadDeadline(time.Now().Add(lastWordsLook))
		return true
	}
	in.released()
	<-p.over
	return in.conn.resume()
}

// released tells who holds the reader, if anybody does, that it has come to an end.
func (in *input) released() {
	if p := in.pause.Swap(nil); p != nil {
		close(p.begun)
	}
}

// resume lets a reader that was held go on; false when its connection is to end.
func (c *conn) resume() bool {
	c.deadline = 0
	_ = c.nc.SetReadDeadline(time.Time{})
	c.extendDeadline()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil || c.srv.draining.Load() { // see extendDeadline
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	return c.cause == nil
}

const (
	// lastWordsTime bounds how long a take-over waits for what the other connection has still to say: for a client that does
	// not stop, or whose reader waits for room.
	lastWordsTime = 100 * time.Millisecond

	// lastWordsEnded is the same for a client that has closed its side: what is to be read has an end.
	lastWordsEnded = 2 * time.Second

	lastWordsLook = time.Millisecond
)

// lastWords waits until the connection of a client ID has dealt with what its client had sent before the next one came: a client
// that says DISCONNECT and connects again at once has said it. A connection that is silent costs nothing.
func (srv *Server) lastWords(ctx context.Context, id string, begin time.Time) {
	for {
		c := srv.connectionOf(id)
		if c == nil || !c.hasInput() || time.Since(begin) > c.patience() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lastWordsLook):
		}
	}
}

// silence is lastWords to the last byte: the reader of the other connection is held, until goOn, behind all that it had got.
func (srv *Server) silence(ctx context.Context, id string) (goOn func()) {
	begin := time.Now()
	srv.lastWords(ctx, id, begin)
	c := srv.connectionOf(id)
	if c == nil {
		return func() {}
	}
	p := &pause{begun: make(chan struct{}), over: make(chan struct{})}
	c.in.pause.Store(p)
	_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // the read that waits, or the next one, fails
	timer := time.NewTimer(max(lastWordsTime, c.patience()-time.Since(begin)))
	defer timer.Stop()
	select {
	case <-p.begun:
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() { close(p.over) }
}

// hasInput reports whether the client has sent something, or its end, that has not been dealt with.
func (c *conn) hasInput() bool {
	return !c.in.waiting.Load() || poll(c.nc) != 0
}

// patience is how long the connection is waited for.
func (c *conn) patience() time.Duration {
	if poll(c.nc)&unix.POLLRDHUP != 0 {
		return lastWordsEnded
	}
	return lastWordsTime
}

// poll tells what can be read of nc at once: POLLIN is something, POLLRDHUP its end, perhaps behind something.
func poll(nc net.Conn) (events int16) {
	for {
		inner, ok := nc.(interface{ NetConn() net.Conn }) // TLS, a WebSocket, a proxy's
		if !ok {
			break
		}
		nc = inner.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		if _, err := unix.Poll(p, 0); err == nil {
			events = p[0].Revents
		}
	})
	return events
}
