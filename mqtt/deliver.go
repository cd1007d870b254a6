package mqtt

import (
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// encoder encodes one record for its subscribers, each variant once. It belongs to one goroutine at a time.
type encoder struct {
	msg      wire.Publish
	alive    bool
	variants [2][3][2]variant // version, QoS, retain
	single   []byte           // the variant of one subscriber, which has its own identifiers
	found    []*subscription  // memory for matchingLocked
}

type variant struct {
	packet []byte
	id     int
	made   bool
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// reset makes rec the record. now is the time from which its expiry is counted down.
func (e *encoder) reset(rec *spool.Record, now time.Time) {
	e.msg = wire.Publish{}
	e.alive = e.msg.FromRecord(rec, now)
	for v := range e.variants {
		for q := range e.variants[v] {
			for r := range e.variants[v][q] {
				e.variants[v][q][r].made = false
			}
		}
	}
}

// encode returns the packet for one kind of subscriber, with packet identifier 1 for PatchPublish to replace. It is valid
// until the next call of encode or reset.
func (e *encoder) encode(version byte, h how) (packet []byte, id int) {
	e.msg.QoS, e.msg.Retain, e.msg.SubscriptionIDs, e.msg.PacketID = h.qos, h.retain, h.ids, 0
	if h.qos > 0 {
		e.msg.PacketID = 1
	}
	peer := wire.Peer{Version: version}
	if len(h.ids) > 0 {
		e.single, id = peer.AppendPublish(e.single[:0], &e.msg)
		return e.single, id
	}
	v := &e.variants[version-wire.Version311][h.qos][b2i(h.retain)]
	if !v.made {
		if cap(v.packet) > keptBuf {
			v.packet = nil
		}
		v.packet, v.id = peer.AppendPublish(v.packet[:0], &e.msg)
		v.made = true
	}
	return v.packet, v.id
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// combine is what the subscriptions of one session make of a record: one copy, with the highest QoS and all identifiers
// (MQTT 5, 3.3.4-2 and 3.3.4-3). ok is false when none of them wants it.
func combine(s *session, lane int, rec *spool.Record, subs []*subscription) (h how, ok bool) {
	for _, sub := range subs {
		if sub.noLocal && rec.ClientID == s.id {
			continue
		}
		if sub.from != nil && rec.Offset < sub.from[lane] {
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
	if !c.out.message(packet, 0, 0, false, c.srv.outputLimit) {
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
	if !c.out.message(packet, at, fl.pid, false, s.srv.outputLimit) {
		return false
	}
	s.flights.add(fl)
	s.srv.metrics.publishSent(h.qos, rec)
	s.touchLocked()
	return true
}

// held is a delivery that is sent once its identifier, and that of all before it, is durable: so the order of QoS 1 and
// QoS 2 messages is kept.
type held struct {
	rec   spool.Record
	how   how
	size  int
	pid   uint16
	ready bool
	dup   bool
}

// promise makes the identifier of a QoS 2 delivery durable and then sends it: after a crash the same record has the same
// identifier, so that the client sees a repetition and not a second message.
func (s *session) promise(fl flight) {
	s.srv.writer.put(stateEntry{
		changes: []spool.Change{s.outboundChange(&fl, false)},
		done: func(_ *spool.Record, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil {
				s.brokenLocked(&fl, err)
				return
			}
			for i := range s.held.len() {
				if h := s.held.at(i); h.pid == fl.pid {
					h.ready = true
					s.sendHeldLocked()
					return
				}
			}
			s.promisedLocked(&fl)
		},
	})
}

// brokenLocked is for a delivery whose state the log has not taken: it is sent again on the next connection.
func (s *session) brokenLocked(was *flight, err error) {
	fl := s.flights.find(was.pid)
	if fl != nil && fl.off == was.off && fl.lane == was.lane && (fl.state == flightPending || fl.state == flightReceived) {
		s.flights.set(fl, flightSent)
	}
	if s.conn != nil {
		s.conn.closeFor(err)
	}
}

// sendHeldLocked sends the held deliveries up to the first that is not ready.
func (s *session) sendHeldLocked() {
	c := s.conn
	enc := encoders.Get().(*encoder)
	defer encoders.Put(enc)
	for ; s.held.len() > 0 && s.held.at(0).ready; s.held.pop() {
		h := s.held.at(0)
		s.heldBytes -= h.size
		fl := s.flights.find(h.pid)
		if fl == nil || fl.state != flightPending {
			continue
		}
		enc.reset(&h.rec, s.srv.now())
		packet, at := enc.encode(c.peer.Version, h.how)
		c.out.control(func(b []byte) []byte {
			start := len(b)
			b = append(b, packet...)
			wire.PatchPublish(b[start:], at, h.pid, h.dup)
			return b
		})
		s.flights.set(fl, flightSent)
		s.srv.metrics.publishSent(h.how.qos, &h.rec)
	}
	s.srv.flushAfterGroup(c)
}

// promisedLocked is for a promise whose connection has gone meanwhile: the message is sent on the next one.
func (s *session) promisedLocked(was *flight) {
	fl := s.flights.find(was.pid)
	if fl == nil || fl.state != flightPending || fl.off != was.off || fl.lane != was.lane {
		return
	}
	fl.fresh = true
	if s.conn == nil {
		s.flights.set(fl, flightSent)
		return
	}
	s.flights.set(fl, flightResend)
	s.srv.catchUp.schedule(s)
}

// unholdLocked gives up what is held for a connection that ends. QoS 2 deliveries stay pending until their promise is
// kept.
func (s *session) unholdLocked() {
	for i := range s.held.len() {
		h := s.held.at(i)
		fl := s.flights.find(h.pid)
		if fl != nil && fl.state == flightPending && (h.ready || fl.qos == 1) {
			fl.fresh = !h.dup
			s.flights.set(fl, flightSent)
		}
	}
	s.held.reset()
	s.heldBytes = 0
}

// acknowledged deals with a PUBACK, PUBREC or PUBCOMP of the client.
func (c *conn) acknowledged(a *wire.Ack) {
	s := c.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	fl := s.flights.find(a.PacketID)
	switch a.Kind {
	case packets.Puback:
		if fl != nil && fl.qos == 1 {
			s.srv.metrics.acked[1].Inc()
			s.flights.set(fl, flightDone)
			s.ackedLocked()
		}
	case packets.Pubrec:
		s.received(c, fl, a)
	case packets.Pubcomp:
		if fl == nil || fl.qos != 2 {
			return
		}
		s.srv.metrics.acked[2].Inc()
		if s.durable {
			s.flights.set(fl, flightCompleted)
		} else {
			s.flights.set(fl, flightDone)
		}
		s.ackedLocked()
	}
}

// received deals with a PUBREC.
func (s *session) received(c *conn, fl *flight, a *wire.Ack) {
	switch {
	case fl == nil || fl.qos != 2:
		if a.Reason < 0x80 { // MQTT 5, 4.3.3 and 3.6.2: nobody waits for it; let the client forget it
			c.pubrel(a.PacketID, reasonIDNotFound)
			c.out.wake()
		}
	case a.Reason >= 0x80: // MQTT 5, 4.3.3: the delivery is over, and is not tried again
		s.srv.metrics.drop(dropRefused)
		if s.durable {
			s.flights.set(fl, flightCompleted)
		} else {
			s.flights.set(fl, flightDone)
		}
		s.ackedLocked()
	case fl.state == flightReceived || fl.state == flightPending:
		// The release is on its way, or the client answers what it never got.
	case fl.state == flightReleased || fl.state == flightResendRelease || !s.durable:
		s.flights.set(fl, flightReleased)
		c.pubrel(fl.pid, reasonSuccess)
		c.out.wake()
	default:
		s.flights.set(fl, flightReceived)
		s.release(*fl)
	}
}

// release makes it durable that the client has the message, and then sends PUBREL: after a crash the message is not sent
// again (MQTT 5, 4.3.3-6).
func (s *session) release(fl flight) {
	s.srv.writer.put(stateEntry{
		changes: []spool.Change{s.outboundChange(&fl, true)},
		done: func(_ *spool.Record, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil {
				s.brokenLocked(&fl, err)
				return
			}
			f := s.flights.find(fl.pid)
			if f == nil || f.state != flightReceived {
				return
			}
			s.flights.set(f, flightReleased)
			if c := s.conn; c != nil {
				c.pubrel(fl.pid, reasonSuccess)
				s.srv.flushAfterGroup(c)
			}
		},
	})
}
