package mqtt

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

// corkConn lets many frames leave in one write. The WebSocket library writes each by itself. What the reader answers to a
// ping never waits for the socket behind what the flusher writes: the flusher takes it along.
type corkConn struct {
	net.Conn
	timeout time.Duration    // of a write of its own
	held    func(error) bool // see input; set before the connection is read

	mu      sync.Mutex
	corked  bool
	buf     []byte
	late    []byte // control frames that came while somebody wrote
	writing int    // who writes: the flusher, the reader
	gone    error  // of a write: nothing whole can follow it
}

// lateMost is what control frames may wait for their turn. A client that pings on and does not read gets no more than these
// answers, which the protocol allows (RFC 6455, 5.5.3).
const lateMost = 1 << 10

// Read implements net.Conn. To the WebSocket library an error of a read is the end: a reader that is only held is held here.
func (c *corkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for n == 0 && err != nil && c.held != nil && c.held(err) {
		n, err = c.Conn.Read(b)
	}
	return n, err
}

// NetConn is the connection below.
func (c *corkConn) NetConn() net.Conn { return c.Conn }

// SetWriteDeadline implements net.Conn. The library sets one for each of its writes, also for that of the answer to a ping
// beside a long write of ours, which it would cut off; wsConn sets those that count on the connection below.
func (c *corkConn) SetWriteDeadline(time.Time) error { return nil }

// Write implements net.Conn. A control frame that comes between cork and uncork takes its turn among the others.
func (c *corkConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.gone != nil:
		return 0, c.gone
	case c.corked:
		c.buf = append(c.buf, b...)
		return len(b), nil
	case c.writing == 0 || len(c.late)+len(b) <= lateMost:
		c.late = append(c.late, b...)
	}
	if c.writing == 0 {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.timeout))
		c.writeLocked(nil)
	}
	return len(b), c.gone
}

// writeLocked writes b and everything that comes late meanwhile. mu is free during the writes, each of which is of whole
// frames: two of them do not mix.
func (c *corkConn) writeLocked(b []byte) {
	c.writing++
	for c.gone == nil && (len(b) > 0 || len(c.late) > 0) {
		if len(b) == 0 {
			b, c.late = c.late, nil
		}
		c.mu.Unlock()
		_, err := c.Conn.Write(b)
		c.mu.Lock()
		b, c.gone = nil, err
	}
	c.writing--
}

func (c *corkConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = true
	c.buf = (*bufPool.Get().(*[]byte))[:0]
}

// uncork writes what has come since cork.
func (c *corkConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.buf
	c.corked, c.buf = false, nil
	c.writeLocked(b)
	if cap(b) <= keptBuf {
		b = b[:0]
		bufPool.Put(&b)
	}
	return c.gone
}

// corkWriter gives the WebSocket library a corkConn.
type corkWriter struct {
	http.ResponseWriter
	timeout time.Duration // of the corkConn
	conn    *corkConn     // once hijacked
}

// Hijack implements http.Hijacker.
func (w *corkWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = &corkConn{Conn: conn, timeout: w.timeout}
	return w.conn, rw, nil
}
