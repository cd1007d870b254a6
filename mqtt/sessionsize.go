package mqtt

import "fmt"

// What all sessions hold of strings that clients choose, in memory and in the spool's state, is bounded: client IDs, topic
// filters and wills. A session and a subscription cost something beside them, about:
const (
	sessionOverhead      = 512
	subscriptionOverhead = 256
)

var (
	errTooManySessions = fmt.Errorf("%w: mqtt.max_sessions is reached", ErrQuotaExceeded)
	errSessionsSize    = fmt.Errorf("%w: mqtt.max_sessions_size is reached", ErrQuotaExceeded)
)

func (sub *subscription) size() int64 { return subscriptionOverhead + int64(len(sub.filter)) }

func (w *will) size() int64 {
	if w == nil {
		return 0
	}
	return retainedSize(w.rec)
}

// sizeLocked is what the session weighs.
func (s *session) sizeLocked() int64 {
	n := sessionOverhead + int64(len(s.id)) + s.will.size()
	for sub := range s.subs.all() {
		n += sub.size()
	}
	return n
}

// setWillLocked is the only way to a session's will.
func (s *session) setWillLocked(w *will) {
	s.srv.sessionBytes.Add(w.size() - s.will.size())
	s.will = w
}

// roomFor reports whether sessions may grow by n bytes.
func (srv *Server) roomFor(n int64) bool {
	limit := int64(srv.cfg.MaxSessionsSize)
	return n <= 0 || limit == 0 || srv.sessionBytes.Load()+n <= limit
}

// admitLocked reports whether there is room for what a CONNECT asks for, next to what it does away with: old is the session
// that it finds, which ends if it does not resume it. srv.mu and old.mu are held.
func (srv *Server) admitLocked(old *session, ends bool, id string, w *will) error {
	n := w.size()
	switch {
	case old == nil:
		n += sessionOverhead + int64(len(id))
	case ends:
		n += sessionOverhead + int64(len(id)) - old.sizeLocked()
	default:
		n -= old.will.size()
	}
	if limit := srv.cfg.MaxSessions; old == nil && limit > 0 && len(srv.sessions) >= limit {
		return errTooManySessions
	}
	if !srv.roomFor(n) {
		return errSessionsSize
	}
	return nil
}
