package mqtt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
)

const (
	// lastWrite is how long a connection that is being closed may take to read the last packet.
	lastWrite = time.Second

	// linger is how long the rest of what the client sends is read and thrown away, until it closes the connection:
	// closing a socket with unread bytes resets it, and the client would not see the last packet.
	linger = 500 * time.Millisecond
)

// leastFilters is how many topic filters a packet may have at least, whatever max_subscriptions says: a filter may be given
// again. 1 MiB holds 262,000, which cost 500 bytes each.
const leastFilters = 1000

// mostFilters is how many it may have when max_subscriptions is no limit: they cost 32 MiB until it is answered.
const mostFilters = 1 << 16

func (c *Config) filtersOfPacket() int {
	if c.MaxSubscriptions == 0 {
		return mostFilters
	}
	return max(leastFilters, c.MaxSubscriptions)
}

// conn is one network connection. Its reader goroutine runs serve; everything else is done by others on what stands here.
type conn struct {
	srv    *Server
	lst    *listener
	nc     net.Conn
	in     input
	dec    *wire.Decoder
	out    output
	acks   ackWindow
	cancel context.CancelFunc // ends what the reader waits for

	// What the CONNECT said, written by the reader before bound is set and never after; others look at bound first.
	bound          atomic.Bool
	refusal        error // of a connection that is turned away; nil for all others
	peer           wire.Peer
	sess           *session
	userName       string
	receiveMaximum int           // deliveries that the client takes at once
	keepAlive      time.Duration // 0 is none

	told toldAliases // of the session, under its lock; max is written before bound is set

	// Of the reader.
	pacing   *pacing       // nil without rates
	overRate error         // why the present PUBLISH is refused, if it is
	enhanced *enhanced     // nil without an authentication method
	aliases  []string      // topic alias - 1 → topic
	unacked  bool          // there were QoS 0 publishes since the last SUBSCRIBE
	deadline time.Duration // of the next packet, on the server's clock
	claimed  string        // client ID of the CONNECT, for who is refused
	polite   bool          // the client sent DISCONNECT with reason 0x00, which drops the will
	recorded bool          // the audit knows that it is in
	arrived  bool          // counted so among those of its address

	// Of the log's commit goroutine.
	inGroup bool // in Server.inGroup

	// Of upstreamAcks.run.
	answered bool // in its list of connections to flush

	marked atomic.Bool // in a distributor's list of connections to flush

	admitted atomic.Pointer[admission] // as whom it was let in; nil before that
	entered  uint64                    // generation of the rules by which it was let in; of the reader

	mu     sync.Mutex
	cause  error       // why it ends; the first one counts
	expiry *time.Timer // of the credentials; nil without one
}

func (srv *Server) newConn(lst *listener, nc net.Conn, cancel context.CancelFunc) *conn {
	c := &conn{srv: srv, lst: lst, nc: nc, cancel: cancel}
	c.out = output{c: nc, on: c, timeout: srv.cfg.WriteTimeout.Std(), shared: &srv.output, raw: rawConn(nc)}
	c.in.conn = c
	if ws, ok := nc.(*wsConn); ok {
		ws.cork.held = c.in.held
	}
	c.pacing = lst.newPacing()
	c.dec = wire.NewDecoder(&c.in, wire.Limits{
		Connect: uint32(srv.cfg.MaxConnectSize),
		Packet:  uint32(srv.cfg.MaxPacketSize),
		Filters: uint32(srv.cfg.filtersOfPacket()),
	})
	return c
}

// serve takes the CONNECT, and lets another goroutine read on.
func (c *conn) serve(ctx context.Context) {
	in := false
	defer func() {
		if !in {
			c.end()
		}
	}()
	defer c.survive()
	if err := c.connect(ctx); err != nil {
		return
	}
	in = true
	go c.read(ctx)
}

// read reads the connection until it ends. A goroutine whose stack has grown keeps 4 KiB of it, and waiting for a packet needs
// no more than the 2 KiB that a new one begins with: so after the packets that clients send once, a new one takes over. That
// is a quarter of what an idle connection costs.
func (c *conn) read(ctx context.Context) {
	more := false
	defer func() {
		if !more {
			c.end()
		}
	}()
	defer c.survive()
	if c.readLoop(ctx) {
		more = true
		go c.read(ctx)
	}
}

// survive keeps the process alive: a client must never end it, whatever it found in our code.
func (c *conn) survive() {
	if v := recover(); v != nil {
		c.srv.metrics.panics.Inc()
		c.srv.log.Error("panic on a connection", "listener", c.lst.cfg.Name, "remote", c.nc.RemoteAddr().String(),
			"client", c.clientID(), "panic", v, "stack", string(debug.Stack()))
		c.closeFor(errors.New("internal fault"))
	}
}

// readLoop deals with packets until the connection ends, or until one of the rare ones was dealt with: then it returns true.
func (c *conn) readLoop(ctx context.Context) (more bool) {
	for {
		c.extendDeadline()
		p, err := c.dec.Read()
		if err != nil {
			err = c.drained(err)
			c.tellLimit(err)
			c.closeFor(err)
			return false
		}
		c.srv.metrics.packetsIn.Inc()
		if c.pacing != nil && !c.paced(ctx, p) {
			return false
		}
		c.out.waitRoom(2 * c.srv.outputLimit)
		if ctx.Err() != nil || !c.handle(ctx, p) {
			return false
		}
		switch p.(type) {
		case *wire.Subscribe, *wire.Unsubscribe, *wire.Auth:
			return true
		}
	}
}

// handle deals with one packet; false ends the connection.
func (c *conn) handle(ctx context.Context, p wire.Packet) bool {
	switch p := p.(type) {
	case *wire.Publish:
		return c.publish(ctx, p)
	case *wire.Ack:
		if p.Kind == packets.Pubrel {
			return c.released(ctx, p)
		}
		if err := c.acknowledged(p); err != nil {
			c.closeFor(err)
			return false
		}
	case *wire.Subscribe:
		if !c.settled(ctx) {
			return false
		}
		c.subscribe(p)
	case *wire.Unsubscribe:
		c.unsubscribe(p)
	case *wire.Pingreq:
		c.pingresp()
		c.out.wake()
	case *wire.Disconnect:
		c.goodbye(p)
		return false
	case *wire.Auth:
		return c.reauthenticate(ctx, p)
	default: // the decoder lets nothing else pass
		c.closeFor(protocolError("packet is not one of a client"))
		return false
	}
	return true
}

func protocolError(detail string) error {
	return &wire.Error{Code: packets.ErrProtocolViolation, Detail: detail, Version: wire.Version5}
}

// extendDeadline gives the client one and a half keep-alives (MQTT 5, 3.1.2-22), a tenth and two ticks more at most: so
// neither is the timer set for each packet nor the time asked for.
func (c *conn) extendDeadline() {
	if c.keepAlive == 0 {
		return
	}
	if c.deadline-c.srv.clock.now() > c.keepAlive*3/2 {
		return
	}
	left := c.keepAlive*16/10 + clockTick
	c.deadline = c.srv.clock.now() + left
	_ = c.nc.SetReadDeadline(time.Now().Add(left))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil || c.srv.draining.Load() { // closeFor, or quiesce, may have set its own meanwhile
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// goodbye deals with a DISCONNECT.
func (c *conn) goodbye(p *wire.Disconnect) {
	s := c.sess
	if p.HasSessionExpiry {
		s.mu.Lock()
		if s.conn == c {
			if s.expiry == 0 && p.SessionExpiry != 0 { // MQTT 5, 3.14.2.2.2
				s.mu.Unlock()
				c.closeFor(protocolError("session expiry cannot be raised from zero"))
				return
			}
			s.expiry = c.srv.capExpiry(p.SessionExpiry)
		}
		s.mu.Unlock()
	}
	c.polite = p.Reason == reasonSuccess // MQTT 5, 3.14.4-3: any other leaves the will
	c.mu.Lock()
	if c.cause == nil {
		c.cause = io.EOF
	}
	c.mu.Unlock()
	c.out.finish(nil, lastWrite)
}

// closeFor ends the connection: tells the client the reason where the protocol has a way, lets the reader and everybody
// who waits for the connection go. It never blocks, may be called by anybody, and only the first call counts.
func (c *conn) closeFor(err error) {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = err
	c.mu.Unlock()
	switch {
	case lost(err) || !c.bound.Load():
		c.out.abort()
	default:
		c.srv.metrics.closed(reasonOf(err))
		c.disconnect(reasonOf(err), detail(err))
	}
	c.acks.end()
	c.cancel()
	_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // long ago: the reader returns
}

// detail is what a client may know of an error.
func detail(err error) string {
	var we *wire.Error
	if errors.As(err, &we) {
		return we.Detail
	}
	return ""
}

// end runs when the reader is done.
func (c *conn) end() {
	c.closeFor(io.EOF)
	c.acks.end()
	c.expireAt(time.Time{})
	c.mu.Lock()
	cause := c.cause
	c.mu.Unlock()
	if c.sess != nil {
		c.srv.detach(c, c.polite)
	}
	c.in.released()
	if c.out.finished() {
		c.drain()
	}
	c.out.abort()
	c.srv.gone(c)
	c.recordDisconnected(cause)
	c.tellEnd(cause)
}

// tellEnd logs the end of a connection: for debugging when it is the client's own, and for everybody when the gateway has ended
// or refused it, because nobody else says to the operator what is wrong with a client.
func (c *conn) tellEnd(cause error) {
	attrs := []slog.Attr{
		slog.String("listener", c.lst.cfg.Name), slog.String("client", c.clientID()), slog.String("remote", c.nc.RemoteAddr().String()),
	}
	switch {
	case cause == io.EOF && c.polite:
		attrs = append(attrs, slog.String("by", "DISCONNECT"))
	default:
		attrs = append(attrs, slog.Any("err", cause))
	}
	level := slog.LevelDebug
	if byGateway(cause) {
		if others, ok := c.lst.complaints.allow(fmt.Sprintf("closed 0x%02X", reasonOf(cause))); ok {
			level = slog.LevelInfo
			attrs = append(attrs, slog.Int("others", others))
		}
	}
	c.srv.log.LogAttrs(context.Background(), level, "connection closed", attrs...)
}

// byGateway reports whether the gateway has ended a connection for a reason that is about its client. A take-over has its own line,
// and a stop needs none.
func byGateway(cause error) bool {
	switch {
	case cause == nil, errors.Is(cause, errTakenOver), errors.Is(cause, errShuttingDown):
		return false
	case errors.Is(cause, errWriteTimeout):
		return true
	}
	return !lost(cause)
}

// drain throws away what the client still sends, see linger.
func (c *conn) drain() {
	_ = c.nc.SetReadDeadline(time.Now().Add(linger))
	var r io.Reader = c.nc
	if ws, ok := c.nc.(*wsConn); ok { // whose library reads nothing after an error, such as the deadline that ended the reader
		r = ws.cork.Conn
	}
	_, _ = io.Copy(io.Discard, r)
}

func (c *conn) clientID() string {
	if c.sess == nil {
		return c.claimed
	}
	return c.sess.id
}

// writeFailed, hasRoom and written make the connection the owner of its output.
func (c *conn) writeFailed(err error) {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		c.srv.metrics.writeTimeouts.Inc()
		err = errWriteTimeout
	}
	c.closeFor(errors.Join(net.ErrClosed, err))
}

func (c *conn) hasRoom() {
	if !c.bound.Load() {
		return
	}
	s := c.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	if s.backlogLocked() {
		s.srv.catchUp.schedule(s)
	}
	for _, g := range s.groups {
		if g.starved.Load() {
			s.srv.catchUp.schedule(g)
		}
	}
}

func (c *conn) written(n int) { c.srv.metrics.bytesOut.Add(float64(n)) }

func (c *conn) packets(n int) { c.srv.metrics.packetsOut.Add(float64(n)) }
