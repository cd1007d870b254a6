package mqtt

import (
	"context"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

const (
	janitorEvery  = time.Second
	retainedEvery = time.Minute // expired retained messages are not delivered anyway
	positionEvery = time.Minute // positions of sessions that get nothing move too, so that retention does not pass them
)

// janitor ends sessions, publishes delayed wills, removes expired retained messages.
func (srv *Server) janitor(ctx context.Context) {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	srv.expire() // wills of sessions that ended with the gateway do not wait
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		srv.expire()
		srv.rescheduleAll()
		srv.limitBehind()
		srv.commitLowWater()
		if n%int(retainedEvery/janitorEvery) == 0 {
			srv.expireRetained()
			srv.batches.clear()
			srv.fights.sweep(srv.now())
		}
		if n%int(positionEvery/janitorEvery) == 0 {
			srv.touchAll()
		}
	}
}

func (srv *Server) expire() {
	now := srv.own().UnixNano()
	for _, s := range srv.timers.due(now) {
		srv.mu.Lock()
		s.mu.Lock()
		switch {
		case s.ended || s.conn != nil:
		case s.expiresAt != 0 && s.expiresAt <= now:
			s.willGoneLocked(true)
			srv.settleLater(s, s.orphansLocked(true))
			s.endLocked()
			if srv.sessions[s.id] == s {
				delete(srv.sessions, s.id)
			}
			srv.metrics.sessions.Dec()
			srv.metrics.expired.Inc()
		default:
			if w := s.will; w != nil && w.due != 0 && w.due <= now {
				s.setWillLocked(nil)
				srv.publishWill(w, s.id)
			}
			srv.timers.set(s)
		}
		s.mu.Unlock()
		srv.unlockAndSettle()
	}
}

func (srv *Server) expireRetained() {
	now := srv.now()
	for _, topic := range srv.retained.expired(now) {
		srv.retained.removeExpired(topic, now)
		srv.keepRetained(topic)
	}
}

// keepRetained writes what the store has for a topic. A message that was accepted before it, and reached the store after
// it was read here, would be overwritten in the durable state: the store is asked again when the change is durable.
func (srv *Server) keepRetained(topic string) {
	rec := srv.retained.get(topic)
	change := spool.Change{Space: spaceRetained, Key: topic}
	if rec != nil {
		change = retainedChange(rec)
	}
	srv.writer.put(stateEntry{changes: []spool.Change{change}, done: func(_ *spool.Record, err error) {
		if err == nil && srv.retained.get(topic) != rec {
			srv.keepRetained(topic)
		}
	}})
}

// rescheduleAll gives another turn to connected sessions that are behind: reading may have failed for them.
func (srv *Server) rescheduleAll() {
	srv.connMu.Lock()
	list := make([]*conn, 0, len(srv.conns))
	for c := range srv.conns {
		list = append(list, c)
	}
	srv.connMu.Unlock()
	for _, c := range list {
		c.hasRoom()
	}
}

// touchAll asks for a checkpoint of each session and group.
func (srv *Server) touchAll() {
	for _, s := range srv.allSessions() {
		s.mu.Lock()
		if s.conn != nil && s.feed != nil {
			s.touchLocked()
		}
		s.mu.Unlock()
	}
	for _, g := range srv.allGroups() {
		g.mu.Lock()
		if g.indexed {
			g.touchLocked()
		}
		g.mu.Unlock()
	}
}
