package mqtt

import (
	"slices"

	"github.com/forebay-gateway/forebay/spool"
)

// retainedJob is a SUBSCRIBE whose retained messages are being sent.
type retainedJob struct {
	sub  *subscription
	last string // topic that was sent last
}

// addRetainedLocked adds jobs. A filter has one: if it comes again before it is through, its job begins anew, in its place.
func (s *session) addRetainedLocked(jobs []retainedJob) {
	at := make(map[string]int, len(s.retained)+len(jobs))
	for i := range s.retained {
		at[s.retained[i].sub.filter] = i
	}
	for _, j := range jobs {
		if i, ok := at[j.sub.filter]; ok {
			s.retained[i] = j
			continue
		}
		at[j.sub.filter] = len(s.retained)
		s.retained = append(s.retained, j)
	}
}

// dropRetainedLocked forgets the job of a filter.
func (s *session) dropRetainedLocked(filter string) {
	if len(s.retained) == 0 {
		return
	}
	s.retained = slices.DeleteFunc(s.retained, func(j retainedJob) bool { return j.sub.filter == filter })
	if len(s.retained) == 0 {
		s.retained = nil
	}
}

// A turn of serveRetained: so many messages, or so many nodes of the store, whichever comes first. Filters that match
// nothing must not cost others anything, and neither the session's lock nor the store's is held for long.
const (
	retainedChunk = 4 * serveChunk
	retainedNodes = 4096
	retainedSteps = 256 // nodes under one lock
)

// serveRetained sends retained messages while there is room. more means that there is room for others, parked that there
// is none.
func (s *session) serveRetained(enc *encoder) (more, parked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := retainedNodes
	for n := 0; len(s.retained) > 0; n++ {
		if s.conn == nil {
			return false, true
		}
		if n == retainedChunk || nodes <= 0 {
			return true, false
		}
		job := s.retained[0]
		s.mu.Unlock()
		rec, at, left := s.srv.retainedFor(job.sub.topic).next(job.sub.topic, job.last, retainedSteps)
		s.mu.Lock()
		nodes -= retainedSteps - left + 1
		if len(s.retained) == 0 || s.retained[0] != job {
			continue // another SUBSCRIBE or UNSUBSCRIBE came
		}
		switch {
		case left == 0:
			s.retained[0].last = at
		case rec == nil || s.subs.get(job.sub.filter) == nil:
			s.retained = s.retained[1:]
			if len(s.retained) == 0 {
				s.retained = nil
			}
		case s.conn == nil || !s.sendRetainedLocked(job.sub, rec, enc):
			return false, true
		default:
			s.retained[0].last = rec.Topic
		}
		s.touchLocked()
	}
	return false, false
}

func (s *session) sendRetainedLocked(sub *subscription, rec *spool.Record, enc *encoder) bool {
	if sub.noLocal && rec.ClientID == s.id {
		return true
	}
	h := how{qos: min(sub.qos, rec.QoS), retain: true} // MQTT 5, 3.3.1-8
	if sub.id != 0 {
		h.ids = []uint32{sub.id}
	}
	enc.reset(rec, s.srv.now())
	if !enc.alive {
		return true
	}
	if h.qos > 0 {
		return s.roomLocked() && s.sendLocked(noLane, rec, h, enc)
	}
	packet, _ := enc.encode(s.conn.peer.Version, h)
	if s.tooLarge(s.conn, packet) || s.denied(s.conn, rec.Topic, 0) {
		return true
	}
	if !s.conn.deliver(enc, packet, 0, 0, false) {
		return false
	}
	s.srv.metrics.publishSent(0, rec)
	return true
}
