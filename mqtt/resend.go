package mqtt

import (
	"cmp"
	"slices"

	"github.com/forebay-gateway/forebay/spool"
)

// tooLargeLocked ends a delivery that fitted the client's last connection, or was allowed to it, and not this one.
func (s *session) tooLargeLocked(fl *flight) {
	if fl.qos == 1 {
		s.flights.set(fl, flightDone)
		return
	}
	pid := fl.pid
	s.flights.set(fl, flightReleased)
	s.conn.pubrel(pid, reasonSuccess)
}

// againLocked is what a delivery in flight is when it is sent again: the QoS that it had, and what the subscriptions of now make of
// the record.
func (s *session) againLocked(fl *flight, rec *spool.Record, enc *encoder) (h how) {
	if fl.group == nil {
		h, _ = combine(s, int(fl.lane), rec, s.matchingLocked(rec.Topic, enc))
		h.retain = h.retain || fl.lane == noLane
	} else if sub := s.subs.get(fl.group.filter); sub != nil {
		h.retain = sub.asPublished && rec.Retain
		if sub.id != 0 {
			h.ids = []uint32{sub.id}
		}
	}
	h.qos = fl.qos
	return h
}

// sendDeferredLocked sends a delivery of before the restart again, with the identifier that it had.
func (s *session) sendDeferredLocked(lane int, pid uint16, rec *spool.Record, enc *encoder) bool {
	fl := s.flights.find(pid)
	if fl != nil && fl.state == flightDeferred {
		if s.flights.window >= s.limit {
			return false
		}
		h := s.againLocked(fl, rec, enc)
		packet, at := enc.encode(s.conn.peer.Version, h)
		state := flightSent
		switch {
		case s.tooLarge(s.conn, packet), s.denied(s.conn, rec.Topic, h.qos):
			s.tooLargeLocked(fl)
			delete(s.again, place{int32(lane), rec.Offset})
			return true
		case s.held.len() > 0: // it must not overtake what came before it on its lane
			s.held.push(held{rec: *rec, how: h, pid: pid, size: len(packet), ready: true, dup: true})
			s.heldBytes += len(packet)
			state = flightPending
		case !s.conn.deliver(enc, packet, at, pid, true):
			return false
		}
		s.flights.set(fl, state)
	}
	delete(s.again, place{int32(lane), rec.Offset})
	return true
}

// resend sends again what the client had not acknowledged when its connection ended (MQTT 5, 4.4). It returns false when
// there is no room for all of it now.
func (s *session) resend(c *conn, enc *encoder) bool {
	s.mu.Lock()
	same := s.conn == c
	if !same || s.flights.resend == 0 {
		s.mu.Unlock()
		return same
	}
	var list []flight
	s.flights.all(func(fl *flight) {
		if fl.state == flightResend || fl.state == flightResendRelease {
			list = append(list, *fl)
		}
	})
	s.mu.Unlock()

	inLogOrder(list)
	var f fetcher
	defer f.close()
	for _, fl := range list {
		rec := fl.rec
		if fl.state == flightResend && rec == nil {
			var err error
			if rec, err = f.fetch(s.srv, fl.lane, fl.off); err != nil {
				s.srv.log.Warn("reading the spool for a repeated delivery, again soon", "err", err)
				return false
			}
		}
		if !s.resendOne(c, fl, rec, enc) {
			return false
		}
	}
	return true
}

// inLogOrder puts deliveries that come in the order of their identifiers into the order of their records, where the two
// differ: after a restart, records whose identifiers were lost have newer identifiers than some that follow them.
func inLogOrder(list []flight) {
	last := make(map[int32]spool.Offset)
	for i := range list {
		fl := &list[i]
		if fl.lane != noLane && fl.off < last[fl.lane] {
			slices.SortStableFunc(list, func(a, b flight) int {
				return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.off, b.off))
			})
			return
		}
		last[fl.lane] = fl.off
	}
}

func (s *session) resendOne(c *conn, was flight, rec *spool.Record, enc *encoder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		// Taken over since the list was made: all of it has to be sent on the new connection, from the first on. Going on
		// here would send the later ones before it.
		return false
	}
	fl := s.flights.find(was.pid)
	if fl == nil || fl.state != was.state || fl.off != was.off {
		return true // acknowledged meanwhile
	}
	if s.flights.window >= s.limit {
		return false
	}
	alive := false
	if rec != nil && rec.ReceivedAt != 0 {
		enc.reset(rec, s.srv.now())
		alive = enc.alive
	}
	switch {
	case fl.state == flightResendRelease, !alive && fl.qos == 2:
		// A QoS 2 message whose time is over, or that retention has removed: the client may hold it and its identifier.
		// PUBREL ends the delivery in either case, and the identifier may be used again.
		s.flights.set(fl, flightReleased)
		c.pubrel(was.pid, reasonSuccess)
		return true
	case !alive:
		s.flights.set(fl, flightDone)
		s.srv.metrics.drop(dropExpired)
		return true
	}
	h := s.againLocked(fl, rec, enc)
	packet, at := enc.encode(c.peer.Version, h)
	switch {
	case s.tooLarge(c, packet), s.denied(c, rec.Topic, h.qos):
		s.tooLargeLocked(fl)
		return true
	case !c.deliver(enc, packet, at, was.pid, !fl.fresh):
		return false
	}
	if fl.fresh {
		fl.fresh = false
		s.srv.metrics.publishSent(fl.qos, rec)
	}
	s.flights.set(fl, flightSent)
	return true
}
