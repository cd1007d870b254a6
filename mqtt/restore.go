package mqtt

import (
	"fmt"

	"github.com/forebay-gateway/forebay/spool"
)

// restore reads the durable state. All sessions are offline afterwards; those that were connected when the gateway went
// down start their expiry, and their wills their delay, now.
func (srv *Server) restore() error {
	load := func(space string, fn func(key string, value []byte) error) error {
		err := srv.spool.Load(space, func(key string, value []byte) error {
			if err := fn(key, value); err != nil {
				return fmt.Errorf("%s %q: %w", space, key, err)
			}
			return nil
		})
		return err
	}
	ends := srv.lanes.ends()
	var stray []spool.Change // state of sessions that are no more
	if err := load(spaceRetained, func(topic string, value []byte) error {
		d := openState(value)
		rec := d.message()
		if d.err == nil {
			srv.retained.apply(rec)
		}
		return d.err
	}); err != nil {
		return err
	}
	if err := load(spaceSession, func(id string, value []byte) error {
		s := &session{srv: srv, id: id, durable: true}
		srv.sessions[id] = s
		srv.sessionBytes.Add(s.sizeLocked())
		srv.metrics.sessions.Inc()
		return s.restoreRecord(value)
	}); err != nil {
		return err
	}
	// session passes state to its session.
	part := func(space string, split func(key string) (string, string, uint16, error),
		fn func(s *session, filter string, pid uint16, value []byte) error,
	) error {
		return load(space, func(key string, value []byte) error {
			id, filter, pid, err := split(key)
			if err != nil {
				return err
			}
			s := srv.sessions[id]
			if s == nil {
				stray = append(stray, spool.Change{Space: space, Key: key})
				return nil
			}
			return fn(s, filter, pid, value)
		})
	}
	byClient := func(key string) (string, string, uint16, error) { return key, "", 0, nil }
	byFilter := func(key string) (string, string, uint16, error) {
		id, filter, err := splitFilterKey(key)
		return id, filter, 0, err
	}
	byPid := func(key string) (string, string, uint16, error) {
		id, pid, err := splitPidKey(key)
		return id, "", pid, err
	}
	if err := part(spaceSubscription, byFilter, func(s *session, filter string, _ uint16, value []byte) error {
		return s.restoreSubscription(filter, value)
	}); err != nil {
		return err
	}
	if err := part(spacePosition, byClient, func(s *session, _ string, _ uint16, value []byte) error {
		return s.restorePosition(value, ends)
	}); err != nil {
		return err
	}
	if err := part(spaceOutbound, byPid, func(s *session, _ string, pid uint16, value []byte) error {
		return s.restoreOutbound(pid, value)
	}); err != nil {
		return err
	}
	if err := load(spaceInbound, func(key string, value []byte) error {
		id, epoch, pid, err := splitInboundKey(key)
		if err != nil {
			return err
		}
		s := srv.sessions[id]
		if s == nil || s.epoch != epoch {
			stray = append(stray, spool.Change{Space: spaceInbound, Key: key})
			return nil
		}
		if s.inbound == nil {
			s.inbound = make(map[uint16]inboundID)
		}
		s.inbound[pid] = inboundID{state: inboundStored}
		return openState(value).err
	}); err != nil {
		return err
	}
	if err := load(spaceShare, func(filter string, value []byte) error {
		g := srv.groups[filter]
		if g == nil {
			stray = append(stray, spool.Change{Space: spaceShare, Key: filter})
			return nil
		}
		return g.restore(value, ends)
	}); err != nil {
		return err
	}
	if err := srv.restoreWills(load); err != nil {
		return err
	}
	srv.restoreSessions()
	if len(stray) > 0 {
		srv.writer.putAll(stray, nil)
	}
	return nil
}

func (srv *Server) restoreWills(load func(string, func(string, []byte) error) error) error {
	now := srv.own().UnixNano()
	return load(spaceWill, func(id string, value []byte) error {
		w, err := restoreWill(value)
		if err != nil {
			return err
		}
		s := srv.sessions[id]
		if s == nil { // of a session without expiry, which ended with the gateway
			srv.publishWill(w, id)
			return nil
		}
		s.setWillLocked(w)
		if w.due == 0 { // it was connected
			wait := w.delay
			if s.expiry != expiryNever {
				wait = min(wait, s.expiry)
			}
			w.due = now + int64(wait)*second
		}
		return nil
	})
}

func (srv *Server) restoreSessions() {
	now := srv.own().UnixNano()
	for _, s := range srv.sessions {
		s.restored()
		s.offlineSince = now
		if s.feed == nil && s.subs.len() > 0 { // no position: it begins now
			s.feed = newFeed(srv.lanes.ends())
		}
		if s.expiresAt == 0 && s.expiry != expiryNever {
			s.expiresAt = now + int64(s.expiry)*second
			if s.expiry > 0 {
				srv.writer.put(stateEntry{changes: []spool.Change{s.recordLocked()}})
			}
		}
		srv.timers.set(s)
	}
}
