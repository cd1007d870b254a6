package mqtt

import (
	"context"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// attach gives c the session of its client ID and sends CONNACK. What the session promises is durable before it.
func (srv *Server) attach(ctx context.Context, c *conn, p *wire.Connect, ack *wire.Connack) error {
	srv.lastWords(ctx, p.ClientID, time.Now()) // who leaves is not taken over
	if err := srv.takeOver(ctx, c, p.ClientID); err != nil {
		return err
	}
	leave, err := srv.turns.take(ctx, p.ClientID, srv.cfg.ConnectTimeout.Std())
	if err != nil {
		return err
	}
	defer leave()
	for {
		goOn := srv.silence(ctx, p.ClientID)
		s, present, changes, err := srv.openSession(c, p)
		goOn()
		if err != nil {
			return err
		}
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
// what has to be durable before CONNACK. When there is no room for what the client asks for, nothing is changed.
func (srv *Server) openSession(c *conn, p *wire.Connect) (s *session, present bool, changes []spool.Change, err error) {
	srv.mu.Lock()
	defer srv.unlockAndSettle()
	old := srv.sessions[p.ClientID]
	var w *will
	if p.Will != nil {
		w = newWill(p.Will, c, srv.now())
	}
	if old == nil {
		if err := srv.admitLocked(nil, false, p.ClientID, w); err != nil {
			return nil, false, nil, err
		}
	} else {
		old.mu.Lock()
		over := old.expiresAt != 0 && old.expiresAt <= srv.own().UnixNano() ||
			old.conn != nil && old.expiry == 0 // it ends with its connection
		kicked := old.conn
		ends := p.CleanStart || over
		if err := srv.admitLocked(old, ends, old.id, w); err != nil {
			old.mu.Unlock()
			return nil, false, nil, err
		}
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
		s = &session{srv: srv, id: p.ClientID, epoch: uint64(srv.now().UnixNano()), pace: srv.paces.take(p.ClientID)}
		srv.sessions[s.id] = s
		srv.sessionBytes.Add(s.sizeLocked()) // nobody else knows of it yet
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
	s.setWillLocked(w)
	switch {
	case w != nil:
		changes = append(changes, s.will.change(s.id))
	case hadWill:
		changes = append(changes, deleteWill(s.id)) // the client is back before the delay was over
	}
	return s, present, changes, nil
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
	c.keepPace(s)
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
	s.offlineSince = srv.own().UnixNano()
	if s.expiry != expiryNever {
		s.expiresAt = srv.own().UnixNano() + int64(s.expiry)*second
	}
	srv.timers.set(s)
	srv.writer.put(stateEntry{changes: append(s.checkpointLocked(), s.recordLocked())})
	srv.catchUp.schedule(s) // closes what it read with
}
