package mqtt

import (
	"bufio"
	"net"
	"net/http"
	"sync"
)

// packetCutter finds the ends of packets in what is written to a connection, in whatever pieces that comes.
type packetCutter struct {
	typed bool // the first byte of the present packet has passed
	shift int  // bits of its Remaining Length that have passed
	size  int  // their value
	left  int  // bytes of its body that have not passed, when the length is known
}

// next returns how many bytes of b belong to the present packet.
func (c *packetCutter) next(b []byte) int {
	for i := 0; i < len(b); {
		switch {
		case c.left > 0:
			n := min(c.left, len(b)-i)
			c.left -= n
			i += n
			if c.left == 0 {
				return i
			}
		case !c.typed:
			c.typed = true
			i++
		default:
			c.size |= int(b[i]&0x7F) << c.shift
			c.shift += 7
			i++
			if b[i-1] < 0x80 {
				*c = packetCutter{left: c.size}
				if c.left == 0 {
					return i
				}
			}
		}
	}
	return len(b)
}

// corkConn lets many frames leave in one write. The WebSocket library writes each by itself.
type corkConn struct {
	net.Conn

	mu     sync.Mutex
	corked bool
	buf    []byte
}

// NetConn is the connection below.
func (c *corkConn) NetConn() net.Conn { return c.Conn }

// Write implements net.Conn. A control frame that comes between cork and uncork takes its turn among the others.
func (c *corkConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked {
		return c.Conn.Write(b)
	}
	c.buf = append(c.buf, b...)
	return len(b), nil
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
	var err error
	if len(b) > 0 {
		_, err = c.Conn.Write(b)
	}
	if cap(b) <= keptBuf {
		b = b[:0]
		bufPool.Put(&b)
	}
	return err
}

// corkWriter gives the WebSocket library a corkConn.
type corkWriter struct {
	http.ResponseWriter
	conn *corkConn // once hijacked
}

// Hijack implements http.Hijacker.
func (w *corkWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = &corkConn{Conn: conn}
	return w.conn, rw, nil
}
