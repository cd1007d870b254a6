package mqtt

import (
	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

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
	over := false
	for ; s.held.len() > 0 && s.held.at(0).ready; s.held.pop() {
		h := s.held.at(0)
		s.heldBytes -= h.size
		fl := s.flights.find(h.pid)
		if fl == nil || fl.state != flightPending {
			continue
		}
		enc.reset(&h.rec, s.srv.now())
		if !enc.alive {
			s.heldExpiredLocked(fl, h.dup)
			over = true
			continue
		}
		packet, at := enc.encode(c.peer.Version, h.how)
		packet, at, learn := c.told.shorten(enc, packet, at, c.peer)
		c.out.control(func(b []byte) []byte {
			start := len(b)
			b = append(b, packet...)
			wire.PatchPublish(b[start:], at, h.pid, h.dup)
			return b
		})
		c.told.note(h.rec.Topic, learn)
		s.flights.set(fl, flightSent)
		s.srv.metrics.publishSent(h.how.qos, &h.rec)
	}
	if over {
		s.ackedLocked()
	}
	s.srv.flushAfterGroup(c)
}

// heldExpiredLocked ends a delivery whose time was over before its identifier was durable (MQTT 5, 3.3.2-5).
func (s *session) heldExpiredLocked(fl *flight, repeated bool) {
	s.srv.metrics.drop(dropExpired)
	switch {
	case repeated:
		s.tooLargeLocked(fl) // the client may hold it
	case fl.qos == 2 && s.durable:
		s.flights.set(fl, flightCompleted)
	default:
		s.flights.set(fl, flightDone)
	}
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
