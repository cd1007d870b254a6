package mqtt

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const (
	webSocketRead    = 1 << 10 // read buffer of a connection; longer frames are read past it
	webSocketControl = time.Second
)

var webSocketBuffers sync.Pool // write buffers: an idle connection has none

// webSocket serves MQTT over WebSocket (MQTT 5, 6): sub-protocol mqtt, binary frames only, packets cut into frames in any
// way.
func (l *listener) webSocket() *http.Server {
	up := &websocket.Upgrader{
		ReadBufferSize:   webSocketRead,
		WriteBufferSize:  4 << 10,
		WriteBufferPool:  &webSocketBuffers,
		Subprotocols:     []string{"mqtt"},
		HandshakeTimeout: l.srv.cfg.ConnectTimeout.Std(),
		CheckOrigin:      l.checkOrigin,
	}
	mux := http.NewServeMux()
	mux.HandleFunc(l.cfg.Path, func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(websocket.Subprotocols(r), "mqtt") { // MQTT 5, 6.0.0-3
			http.Error(w, "sub-protocol mqtt is required", http.StatusBadRequest)
			return
		}
		cw := &corkWriter{ResponseWriter: w, timeout: l.srv.cfg.WriteTimeout.Std()}
		ws, err := up.Upgrade(cw, r, nil)
		if err != nil {
			if cw.conn != nil {
				l.part(cw.conn, false) // the HTTP server has let go of it
			}
			return // Upgrade has answered
		}
		// The goroutine of this request ends and takes its stack with it.
		l.take(newWSConn(ws, cw.conn), nil)
	})
	srv := &http.Server{
		Handler:           mux,
		ConnState:         l.placeOf,
		ReadHeaderTimeout: l.srv.cfg.ConnectTimeout.Std(),
		ReadTimeout:       l.srv.cfg.ConnectTimeout.Std(), // of a body, too; a WebSocket has none of these any more
		WriteTimeout:      l.srv.cfg.ConnectTimeout.Std(),
		IdleTimeout:       l.srv.cfg.ConnectTimeout.Std(),
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // broken requests of strangers
	}
	srv.SetKeepAlivesEnabled(false) // who does not become a WebSocket with the first request is not kept
	return srv
}

// placeOf gives back the place among the pending of a connection that has become a WebSocket or has ended; each does one of
// both, once.
func (l *listener) placeOf(nc net.Conn, st http.ConnState) {
	if st == http.StateHijacked || st == http.StateClosed {
		l.handed.release(nc)
	}
	if st == http.StateClosed {
		l.part(nc, false)
	}
}

// checkOrigin lets browsers in that come from a page of the configured origins, or of the same host when there are none.
func (l *listener) checkOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true // no browser
	}
	if len(l.cfg.Origins) == 0 {
		u, err := url.Parse(origin)
		return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) && l.isNameHere(u.Hostname())
	}
	return slices.ContainsFunc(l.cfg.Origins, func(o string) bool { return o == "*" || strings.EqualFold(o, origin) })
}

// isNameHere reports whether a browser may know the listener by a name. A listener on a loopback address is there for what runs on this
// machine; the page of a stranger runs here too, and reaches it as one of the same host when the name of its own host is made to
// lead here (DNS rebinding). With TLS the certificate would not fit that name, and a page has no PROXY header.
func (l *listener) isNameHere(name string) bool {
	a, ok := l.ln.Addr().(*net.TCPAddr)
	if !ok || !a.IP.IsLoopback() || l.tls != nil || l.proxy != nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return net.ParseIP(name) != nil || name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// wsConn makes a WebSocket a stream of bytes.
type wsConn struct {
	*websocket.Conn
	cork  *corkConn    // below Conn
	cut   packetCutter // of Write
	frame io.Reader    // what is left of the present message
}

var errTextFrame = errors.New("websocket: text frame")

func newWSConn(ws *websocket.Conn, cork *corkConn) *wsConn {
	c := &wsConn{Conn: ws, cork: cork}
	ws.SetPingHandler(func(text string) error {
		// Written beside the flusher, which the library allows for control frames.
		err := ws.WriteControl(websocket.PongMessage, []byte(text), time.Now().Add(webSocketControl))
		var ne net.Error
		if errors.Is(err, websocket.ErrCloseSent) || errors.As(err, &ne) {
			return nil
		}
		return err
	})
	return c
}

// Read implements net.Conn.
func (c *wsConn) Read(b []byte) (int, error) {
	for {
		if c.frame == nil {
			kind, r, err := c.NextReader()
			if err != nil {
				return 0, streamError(err)
			}
			if kind != websocket.BinaryMessage { // MQTT 5, 6.0.0-1
				_ = c.WriteControl(websocket.CloseMessage,
					websocket.FormatCloseMessage(websocket.CloseUnsupportedData, "binary only"), time.Now().Add(webSocketControl))
				return 0, errTextFrame
			}
			c.frame = r
		}
		n, err := c.frame.Read(b)
		if err == io.EOF {
			c.frame, err = nil, nil
			if n == 0 {
				continue
			}
		}
		return n, streamError(err)
	}
}

// streamError turns the end of a WebSocket into the end of a stream.
func streamError(err error) error {
	var ce *websocket.CloseError
	if errors.As(err, &ce) {
		return io.EOF
	}
	return err
}

// Write implements net.Conn. Each packet has a frame of its own: a frame may hold several (MQTT 5, 6.0.0-2), but there are
// clients, Eclipse Paho for C 1.3 among them, that do not look at the second one before more bytes come. All frames leave
// in one write.
func (c *wsConn) Write(b []byte) (int, error) {
	c.cork.cork()
	for rest := b; len(rest) > 0; {
		n := c.cut.next(rest)
		if err := c.WriteMessage(websocket.BinaryMessage, rest[:n]); err != nil {
			_ = c.cork.uncork()
			return 0, err
		}
		rest = rest[n:]
	}
	if err := c.cork.uncork(); err != nil {
		return 0, err
	}
	return len(b), nil
}

// SetWriteDeadline implements net.Conn. The library's own is not for use beside a Write, and a net.Conn's is.
func (c *wsConn) SetWriteDeadline(t time.Time) error { return c.cork.Conn.SetWriteDeadline(t) }

// CloseWrite sends the close frame; the client answers with its own.
func (c *wsConn) CloseWrite() error {
	return c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(webSocketControl))
}

// SetDeadline implements net.Conn.
func (c *wsConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}
