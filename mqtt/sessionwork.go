package mqtt

import (
	"github.com/forebay-gateway/forebay/spool"
)

func (s *session) workState() *work { return &s.work }

// Lock, Unlock, feedLocked, acceptLocked and name make the session a feeder.
func (s *session) Lock() { s.mu.Lock() }

func (s *session) Unlock() { s.mu.Unlock() }

func (s *session) name() string { return s.id }

func (s *session) feedLocked() *feed {
	if s.conn == nil || s.ended || s.flights.resend > 0 || s.waiting.len() > 0 {
		return nil
	}
	return s.feed
}

func (s *session) acceptLocked(lane int, rec *spool.Record, enc *encoder) bool {
	if len(s.again) > 0 {
		if pid, ok := s.again[place{int32(lane), rec.Offset}]; ok {
			return s.sendDeferredLocked(lane, pid, rec, enc)
		}
	}
	h, ok := combine(s, lane, rec, s.matchingLocked(rec.Topic, enc))
	if !ok || h.qos == 0 { // QoS 0 went by live or not at all
		return true
	}
	return s.roomLocked() && s.sendLocked(int32(lane), rec, h, enc)
}

// undefer gives up the order of the log for deferred deliveries when their identifiers are so old that none can be given
// to what comes before them: they are sent at once.
func (s *session) undefer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.again) == 0 || s.flights.take() != 0 {
		return
	}
	s.flights.all(func(fl *flight) {
		if fl.state == flightDeferred {
			s.flights.mark(fl, flightResend)
		}
	})
}

const manySubscriptions = 8 // above it a session's own map and index are faster than trying its filters

// matchingLocked returns the session's subscriptions that match topic, shared ones excepted: a group has its own feed.
func (s *session) matchingLocked(topic string, enc *encoder) []*subscription {
	if s.subs.len() <= manySubscriptions {
		found := enc.found[:0]
		for sub := range s.subs.all() {
			if sub.group == nil && spool.MatchFilter(sub.topic, topic) {
				found = append(found, sub)
			}
		}
		enc.found = found
		return found
	}
	if s.matcher == nil {
		s.matcher = &index{}
		for sub := range s.subs.all() {
			if sub.group == nil {
				own := *sub // the original's place is in the server's index
				s.matcher.add(&own)
			}
		}
	}
	if m := s.matcher.lookup(topic); len(m.targets) > 0 {
		return m.targets[0].subs
	}
	return nil
}

// serve does what the session is behind with, in the order that MQTT asks for: repetitions, what waits, the rest.
func (s *session) serve(enc *encoder) bool {
	s.mu.Lock()
	c, f := s.conn, s.feed
	s.mu.Unlock()
	if c == nil {
		if f != nil {
			f.close()
		}
		return false
	}
	defer c.out.wake()
	s.undefer()
	if !s.resend(c, enc) {
		return false
	}
	s.mu.Lock()
	s.drainLocked()
	waits := s.waiting.len() > 0
	s.mu.Unlock()
	if waits {
		return false
	}
	more, parked := s.serveRetained(enc)
	if f == nil || parked {
		return more
	}
	return f.serve(s.srv, s, enc) || more
}
