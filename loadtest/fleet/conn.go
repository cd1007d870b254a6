package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// dial opens the network connection under one MQTT connection.
func dial(ctx context.Context, u *url.URL) (*conn, error) {
	if u.Scheme == "ws" {
		d := websocket.Dialer{Subprotocols: []string{"mqtt"}, NetDialContext: (&net.Dialer{}).DialContext}
		ws, resp, err := d.DialContext(ctx, u.String(), nil)
		if err != nil {
			if resp != nil {
				return nil, fmt.Errorf("dial %s: %w: %s", u, err, resp.Status)
			}
			return nil, fmt.Errorf("dial %s: %w", u, err)
		}
		return newConn(&wsConn{Conn: ws}), nil
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

// conn makes a connection cheap for paho.golang, which reads a packet in four calls and writes it in five: it reads
// ahead, and it sends with one write all packets that were written while the last write was under way. Nothing waits
// for company: a lone packet leaves at once. Without this a fleet measures itself and not the broker.
type conn struct {
	net.Conn
	sync.Mutex // paho holds it while it writes one packet, so that packets never mix

	r *bufio.Reader

	wmu     sync.Mutex
	changed sync.Cond // something was written, sent, failed or closed
	buf     []byte    // written and not sent; the other half of the pair is being sent
	err     error
	closed  bool
	done    chan struct{}
}

// maxUnsent is how much may wait for the network before a device that wants to publish has to wait: see awaitRoom.
const maxUnsent = 256 << 10

func newConn(c net.Conn) *conn {
	w := &conn{Conn: c, r: bufio.NewReaderSize(c, 4096), done: make(chan struct{})}
	w.changed.L = &w.wmu
	go w.send()
	return w
}

// Read reads ahead.
func (c *conn) Read(p []byte) (int, error) { return c.r.Read(p) }

// awaitRoom waits while much is queued. It stands apart from Write, so that the goroutine that reads can always answer
// (a PUBREL for a PUBREC) and goes on to read: otherwise both ends could wait for each other.
func (c *conn) awaitRoom() {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for len(c.buf) > maxUnsent && c.err == nil && !c.closed {
		c.changed.Wait()
	}
}

// Write queues p. An error may belong to an earlier write, as with every socket.
func (c *conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.closed {
		return 0, net.ErrClosed
	}
	c.buf = append(c.buf, p...)
	c.changed.Broadcast()
	return len(p), nil
}

// send writes what is queued until the connection is closed or fails.
func (c *conn) send() {
	defer close(c.done)
	var spare []byte
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for {
		for len(c.buf) == 0 && !c.closed {
			c.changed.Wait()
		}
		if len(c.buf) == 0 {
			return
		}
		out := c.buf
		c.buf = spare[:0]
		c.wmu.Unlock()
		_, err := c.Conn.Write(out)
		c.wmu.Lock()
		spare = out
		if err != nil {
			c.err = err
			c.changed.Broadcast()
			c.Conn.Close() // the reader must not wait for the answer to what never left
			return
		}
		c.changed.Broadcast()
	}
}

// closeWait bounds how long Close waits for the last packets (the DISCONNECT is one) of a peer that does not read.
const closeWait = time.Second

// Close sends what is queued and closes the connection.
func (c *conn) Close() error {
	c.wmu.Lock()
	first := !c.closed
	c.closed = true
	c.changed.Broadcast()
	c.wmu.Unlock()
	if first {
		c.Conn.SetWriteDeadline(time.Now().Add(closeWait))
	}
	<-c.done
	return c.Conn.Close()
}

// wsConn is a WebSocket as a stream: packets may span frames and frames may hold many packets (MQTT 5, 6.0).
type wsConn struct {
	*websocket.Conn
	frame io.Reader
}

// Read reads from the current frame, then from the next.
func (c *wsConn) Read(p []byte) (int, error) {
	for {
		if c.frame == nil {
			kind, r, err := c.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, errors.New("websocket: a frame that is not binary")
			}
			c.frame = r
		}
		n, err := c.frame.Read(p)
		if err == io.EOF {
			c.frame, err = nil, nil
			if n == 0 {
				continue
			}
		}
		return n, err
	}
}

// Write sends p as one frame.
func (c *wsConn) Write(p []byte) (int, error) {
	if err := c.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetDeadline is needed to be a net.Conn.
func (c *wsConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
