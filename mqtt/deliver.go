package mqtt

import (
	"github.com/forebay-gateway/forebay/spool"
)

// combine is what the subscriptions of one session make of a record: one copy, with the highest QoS and all identifiers
// (MQTT 5, 3.3.4-2 and 3.3.4-3). ok is false when none of them wants it.
func combine(s *session, lane int, rec *spool.Record, subs []*subscription) (h how, ok bool) {
	for _, sub := range subs {
		if sub.noLocal && rec.ClientID == s.id {
			continue
		}
		if lane != noLane && sub.from != nil && rec.Offset < sub.from[lane] {
			continue
		}
		ok = true
		h.qos = max(h.qos, min(sub.qos, rec.QoS))
		h.retain = h.retain || sub.asPublished && rec.Retain
		if sub.id != 0 {
			h.ids = append(h.ids, sub.id)
		}
	}
	return h, ok
}

// offer is called by a lane's distributor for each record that matches. It returns the connection that has to be flushed.
func (s *session) offer(lane int, rec *spool.Record, subs []*subscription, enc *encoder) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	if c == nil {
		return nil
	}
	h, ok := combine(s, lane, rec, subs)
	if !ok {
		return nil
	}
	if h.qos == 0 {
		return s.sendQoS0Locked(c, rec, h, enc)
	}
	f := s.feed
	if f == nil || !f.live[lane] || rec.Offset < f.next[lane] {
		return nil // it is read from the log, or was
	}
	if s.waiting.len() == 0 && s.roomLocked() && s.sendLocked(int32(lane), rec, h, enc) {
		f.next[lane] = rec.Offset + 1
		return c
	}
	// While some lane is behind nothing waits in memory: the lanes then take turns for the window.
	if f.behind == 0 && s.waiting.len() < s.srv.cfg.MaxQueued && s.waitingBytes+len(rec.Payload) <= s.srv.outputLimit {
		s.waiting.push(waiting{rec: *rec, lane: int32(lane), how: h})
		s.waitingBytes += len(rec.Payload)
		f.next[lane] = rec.Offset + 1
		return nil
	}
	f.leave(lane, rec.Offset)
	s.srv.metrics.fellBehind.Inc()
	if s.roomLocked() { // it is the buffer that was full, or other lanes that are behind: no acknowledgement may come
		s.srv.catchUp.schedule(s)
	}
	return nil
}

func (s *session) sendQoS0Locked(c *conn, rec *spool.Record, h how, enc *encoder) *conn {
	packet, _ := enc.encode(c.peer.Version, h)
	if s.tooLarge(c, packet) || !enc.alive || s.denied(c, rec.Topic, 0) {
		return nil
	}
	if !c.deliver(enc, packet, 0, 0, false) {
		s.srv.metrics.drop(dropBufferFull)
		return nil
	}
	s.srv.metrics.publishSent(0, rec)
	return c
}

// tooLarge drops what the client does not take (MQTT 5, 3.1.2-24 and 3.1.2-25: as if it had been delivered).
func (s *session) tooLarge(c *conn, packet []byte) bool {
	if c.peer.MaxPacket == 0 || len(packet) <= int(c.peer.MaxPacket) {
		return false
	}
	s.srv.metrics.drop(dropTooLarge)
	return true
}

// sendLocked sends a record at QoS 1 or 2 as a new delivery. The caller has seen roomLocked. It returns false when the
// output buffer has no room; a record that needs no delivery counts as sent.
func (s *session) sendLocked(lane int32, rec *spool.Record, h how, enc *encoder) bool {
	c := s.conn
	if !enc.alive { // expired since it was read
		s.srv.metrics.drop(dropExpired)
		return true
	}
	packet, at := enc.encode(c.peer.Version, h)
	if s.tooLarge(c, packet) || s.denied(c, rec.Topic, h.qos) {
		return true
	}
	fl := flight{off: rec.Offset, group: h.group, lane: lane, pid: s.flights.take(), qos: h.qos, state: flightSent}
	if lane == noLane {
		fl.rec = rec
	}
	if h.group != nil {
		fl.saves = h.group.saves()
	}
	if promised := h.qos == 2 && s.durable; promised || s.held.len() > 0 {
		if !c.out.room(len(packet)+s.heldBytes, s.srv.outputLimit) {
			return false
		}
		fl.state = flightPending
		s.flights.add(fl)
		s.held.push(held{rec: *rec, how: h, pid: fl.pid, size: len(packet), ready: !promised})
		s.heldBytes += len(packet)
		if promised {
			s.promise(fl)
		}
		s.touchLocked()
		return true
	}
	if !c.deliver(enc, packet, at, fl.pid, false) {
		return false
	}
	s.flights.add(fl)
	s.srv.metrics.publishSent(h.qos, rec)
	s.touchLocked()
	return true
}
