package mqtt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// connect reads the CONNECT, answers it and gives the connection its session.
func (c *conn) connect(ctx context.Context) error {
	_ = c.nc.SetReadDeadline(time.Now().Add(c.srv.cfg.ConnectTimeout.Std()))
	p, err := c.dec.Read()
	if err != nil {
		var we *wire.Error
		if errors.As(err, &we) {
			c.end0(err)
			c.lst.stranger(c.nc.RemoteAddr(), we)
			c.refuse(we.Version, we.Code.Code, we.Detail)
			return err
		}
		c.closeFor(err)
		return err
	}
	hello, ok := p.(*wire.Connect)
	if !ok { // the decoder lets nothing else pass
		c.closeFor(errors.New("the first packet is no CONNECT"))
		return errors.New("no connect")
	}
	c.claimed = hello.ClientID
	ack, reason, text := c.greet(ctx, hello)
	if reason == reasonSuccess {
		err = c.srv.attach(ctx, c, hello, ack)
		reason = reasonOf(err)
	}
	if reason != reasonSuccess {
		if err == nil {
			err = errors.New(text)
		}
		c.end0(fmt.Errorf("refused with reason 0x%02X: %w", reason, err))
		c.refuse(hello.Version, reason, text)
		return errors.New("refused")
	}
	c.srv.metrics.connects.Inc()
	if a := c.srv.auth; a != nil && c.admitted.Load().generation != a.Generation() {
		c.recheck() // the rules changed while nobody could see this connection
	}
	c.extendDeadline()
	if c.keepAlive == 0 {
		_ = c.nc.SetReadDeadline(time.Time{})
		if c.srv.draining.Load() {
			_ = c.nc.SetReadDeadline(time.Unix(1, 0))
		}
	}
	return nil
}

// end0 notes the cause of an end before the session is known.
func (c *conn) end0(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = err
	}
}

// greet checks the CONNECT and prepares what CONNACK tells: for MQTT 5 every limit that is enforced.
func (c *conn) greet(ctx context.Context, p *wire.Connect) (ack *wire.Connack, reason byte, text string) {
	cfg := &c.srv.cfg
	ack = &wire.Connack{}
	pr := &ack.Properties
	if p.ClientID == "" {
		if p.Version == wire.Version311 && !p.CleanStart { // MQTT 3.1.1, 3.1.3-8
			return nil, reasonClientIDInvalid, ""
		}
		p.ClientID = assignClientID()
		pr.AssignedClientID = p.ClientID
	}
	if len(p.ClientID) > maxClientID {
		return nil, reasonClientIDInvalid, "client ID is too long"
	}
	last, err := c.enter(ctx, p)
	if err != nil {
		c.end0(fmt.Errorf("refused: %w", err)) // the client is not told as much
		return nil, reasonOf(err), ""
	}
	if p.HasAuthMethod {
		pr.AuthenticationMethod, pr.AuthenticationData = p.AuthMethod, last
	}
	if w := p.Will; w != nil {
		if err := c.mayPublish(w.Topic, w.QoS, w.Retain); err != nil {
			return nil, reasonOf(err), "will is not allowed"
		}
	}
	if w := p.Will; w != nil {
		switch {
		case c.srv.tooDeep(w.Topic):
			return nil, errTopicDepth.Code.Code, "will: " + errTopicDepth.Detail
		case w.Retain && len(w.Topic) > spool.MaxKey:
			return nil, errTopicLength.Code.Code, "will: " + errTopicLength.Detail
		case reserved(w.Topic):
			return nil, errTopicName.Code.Code, "will: " + errTopicName.Detail
		case !w.PayloadFormatValid():
			return nil, errPayloadFormat.Code.Code, "will: " + errPayloadFormat.Detail
		}
	}

	c.peer = wire.Peer{Version: p.Version, NoProblemInfo: !p.RequestProblemInfo, MaxPacket: p.MaxPacketSize}
	c.receiveMaximum = int(p.ReceiveMaximum)
	if p.Version == wire.Version311 {
		c.receiveMaximum = cfg.MaxInflight
	}
	keep := p.KeepAlive
	if limit := cfg.MaxKeepAlive.Std(); p.Version == wire.Version5 && limit > 0 {
		if top := uint16(limit / time.Second); keep == 0 || keep > top {
			keep = top
			pr.ServerKeepAlive, pr.ServerKeepAliveFlag = keep, true
		}
	}
	c.keepAlive = time.Duration(keep) * time.Second
	if got := c.srv.capExpiry(p.SessionExpiry); got != p.SessionExpiry {
		p.SessionExpiry = got
		pr.SessionExpiryInterval, pr.SessionExpiryIntervalFlag = got, true
	}
	if prefix := cfg.ResponseTopicPrefix; prefix != "" && p.RequestResponse && !strings.ContainsAny(p.ClientID, "+#") { // MQTT 5, 3.1.2-28
		pr.ResponseInfo = prefix + p.ClientID
	}
	pr.ReceiveMaximum = uint16(cfg.ReceiveMaximum)
	pr.MaximumPacketSize = uint32(cfg.MaxPacketSize)
	pr.TopicAliasMaximum = uint16(cfg.TopicAliasMaximum)
	pr.RetainAvailable, pr.RetainAvailableFlag = 1, true
	pr.WildcardSubAvailable, pr.WildcardSubAvailableFlag = 1, true
	pr.SubIDAvailable, pr.SubIDAvailableFlag = 1, true
	pr.SharedSubAvailable, pr.SharedSubAvailableFlag = 1, true
	return ack, reasonSuccess, ""
}

// maxClientID is the longest client ID. Each packet identifier and filter that is kept has it in its key, of spool.MaxKey
// at most.
const maxClientID = 8 << 10

func assignClientID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return "forebay-" + hex.EncodeToString(b[:])
}

// capExpiry cuts a session expiry to session_expiry_max.
func (srv *Server) capExpiry(expiry uint32) uint32 {
	limit := srv.cfg.SessionExpiryMax.Std() / time.Second
	if limit == 0 || time.Duration(expiry) <= limit {
		return expiry
	}
	return uint32(limit)
}

// attach gives c the session of its client ID and sends CONNACK. What the session promises is durable before it.
func (srv *Server) attach(ctx context.Context, c *conn, p *wire.Connect, ack *wire.Connack) error {
	if err := srv.takeOver(ctx, c, p.ClientID); err != nil {
		return err
	}
	leave, err := srv.turns.take(ctx, p.ClientID, srv.cfg.ConnectTimeout.Std())
	if err != nil {
		return err
	}
	defer leave()
	for {
		s, present, changes := srv.openSession(c, p)
		if len(changes) > 0 {
			if err := srv.persist(ctx, changes); err != nil {
				srv.abandon(s)
				return err
			}
		}
		if srv.bind(c, s, p, ack, present) {
			return nil
		}
		// The session ended meanwhile. Take what is there now.
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// openSession finds the session or makes one, ends the connection that it has, and decides about the wills. changes is
// what has to be durable before CONNACK.
func (srv *Server) openSession(c *conn, p *wire.Connect) (s *session, present bool, changes []spool.Change) {
	srv.mu.Lock()
	defer srv.unlockAndSettle()
	old := srv.sessions[p.ClientID]
	if old != nil {
		old.mu.Lock()
		over := old.expiresAt != 0 && old.expiresAt <= srv.now().UnixNano() ||
			old.conn != nil && old.expiry == 0 // it ends with its connection
		kicked := old.conn
		ends := p.CleanStart || over
		if kicked != nil {
			srv.metrics.takenOver.Inc()
			old.willGoneLocked(ends)
			srv.settleLater(old, old.orphansLocked(ends))
			old.detachLocked()
			kicked.closeFor(errTakenOver)
		} else if ends && old.will != nil {
			old.willGoneLocked(true)
		}
		if ends {
			srv.settleLater(old, old.orphansLocked(true))
			old.endLocked()
			delete(srv.sessions, old.id)
			srv.metrics.sessions.Dec()
		}
		old.mu.Unlock()
		if !ends {
			s, present = old, true
		}
	}
	if s == nil {
		s = &session{srv: srv, id: p.ClientID, epoch: uint64(srv.now().UnixNano())}
		srv.sessions[s.id] = s
		srv.metrics.sessions.Inc()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = p.Version
	s.expiry = p.SessionExpiry
	s.expiresAt = 0
	s.durable = s.durable || s.expiry > 0
	if s.durable {
		changes = append(changes, s.recordLocked())
		if !present {
			changes = append(changes, s.checkpointLocked()...)
		}
	}
	hadWill := s.will != nil
	s.will = nil
	switch {
	case p.Will != nil:
		s.will = newWill(p.Will, c, srv.now())
		changes = append(changes, s.will.change(s.id))
	case hadWill:
		changes = append(changes, deleteWill(s.id)) // the client is back before the delay was over
	}
	return s, present, changes
}

// persist waits until changes are durable, in the order of all other changes.
func (srv *Server) persist(ctx context.Context, changes []spool.Change) error {
	done := make(chan error, 1)
	srv.writer.put(stateEntry{changes: changes, done: func(_ *spool.Record, err error) { done <- err }})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bind makes c the session's connection, with CONNACK as the first packet on it. It returns false when the session ended.
func (srv *Server) bind(c *conn, s *session, p *wire.Connect, ack *wire.Connack, present bool) bool {
	srv.mu.Lock()
	defer srv.unlockAndSettle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	c.sess = s
	c.bound.Store(true)
	ack.SessionPresent = present
	c.out.control(func(b []byte) []byte { return c.peer.AppendConnack(b, ack) })
	s.attachLocked(c)
	srv.settleLater(s, nil)
	srv.catchUp.schedule(s)
	c.out.wake()
	return true
}

// abandon lets a session that was opened for a connection that failed go on without it, or end.
func (srv *Server) abandon(s *session) {
	srv.mu.Lock()
	defer srv.unlockAndSettle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.conn != nil {
		return
	}
	s.dropWillLocked() // the connection was never accepted
	srv.offlineLocked(s)
}

// detach takes c from its session when its reader is done.
func (srv *Server) detach(c *conn, polite bool) {
	s := c.sess
	srv.mu.Lock()
	defer srv.unlockAndSettle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return // taken over
	}
	if polite {
		s.dropWillLocked()
	} else {
		s.willGoneLocked(s.expiry == 0)
	}
	srv.settleLater(s, s.orphansLocked(s.expiry == 0))
	s.detachLocked()
	srv.offlineLocked(s)
}

// offlineLocked ends a session without expiry, or starts the expiry. srv.mu and s.mu are held.
func (srv *Server) offlineLocked(s *session) {
	if s.expiry == 0 {
		srv.settleLater(s, nil)
		s.endLocked()
		delete(srv.sessions, s.id)
		srv.metrics.sessions.Dec()
		return
	}
	s.offlineSince = srv.now().UnixNano()
	if s.expiry != expiryNever {
		s.expiresAt = srv.now().UnixNano() + int64(s.expiry)*second
	}
	srv.timers.set(s)
	srv.writer.put(stateEntry{changes: append(s.checkpointLocked(), s.recordLocked())})
	srv.catchUp.schedule(s) // closes what it read with
}

// settlement is what has to be done for share groups once srv.mu and the session's lock are free.
type settlement struct {
	s       *session
	groups  []*group
	orphans []orphan
}

func (srv *Server) settleLater(s *session, orphans []orphan) {
	if len(s.groups) == 0 && len(orphans) == 0 {
		return
	}
	srv.settlements = append(srv.settlements, settlement{s: s, groups: append([]*group{}, s.groups...), orphans: orphans})
}

// unlockAndSettle releases srv.mu and then does what settleLater noted.
func (srv *Server) unlockAndSettle() {
	list := srv.settlements
	srv.settlements = nil
	srv.mu.Unlock()
	for _, st := range list {
		st.s.mu.Lock()
		ended := st.s.ended
		st.s.mu.Unlock()
		for _, g := range st.groups {
			if ended {
				srv.leaveGroup(g, st.s)
			} else {
				g.refresh()
			}
		}
		for _, o := range st.orphans {
			o.group.giveBack([]place{o.at})
		}
	}
}
