package mqtt

import (
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// What a session may be behind, and what becomes of one that is further behind. It costs nothing to be behind, but the log
// keeps what it still has to deliver, see lowWater. All of the log on the session's lanes counts, whether its filters match
// it or not, because all of it has to be kept and read.

// The answers to a session that is too far behind.
const (
	behindDropOldest = "drop_oldest"
	behindEndSession = "end_session"
)

// Reasons of being too far behind.
const (
	behindTime    = "time"
	behindRecords = "records"
	behindSize    = "size"
)

var behindReasons = []string{behindTime, behindRecords, behindSize}

// behindLog is how often the log names a session, or share group, that is cut all the time because it is offline.
const behindLog = int64(time.Hour)

// behindLimit is the limit as of one moment.
type behindLimit struct {
	ends    positions
	oldest  positions // below them records are too old; nil: no limit
	records int64     // 0: no limit
	size    int64     // 0: no limit
	each    []int64   // mean size of a record of each lane's stream
}

// behindLimit returns nil when there is no limit.
func (srv *Server) behindLimit() *behindLimit {
	cfg := &srv.cfg
	if cfg.MaxBehindTime == 0 && cfg.MaxBehindRecords == 0 && cfg.MaxBehindSize == 0 {
		return nil
	}
	l := &behindLimit{ends: srv.lanes.begins(), records: int64(cfg.MaxBehindRecords), size: int64(cfg.MaxBehindSize)}
	for i, lane := range srv.lanes.list {
		if cfg.MaxBehindTime > 0 {
			off, err := srv.spool.SeekTime(lane.stream, lane.partition, srv.now().Add(-cfg.MaxBehindTime.Std()))
			if err != nil {
				off = 0 // the next look may find it
			}
			l.oldest = append(l.oldest, min(off, l.ends[i]))
		}
		if l.size > 0 {
			l.each = append(l.each, max(1, srv.spool.RecordSize(lane.stream)))
		}
	}
	return l
}

// cut returns the first offsets that a feed at pos may still have to deliver, and how many are above each limit, in the
// order of behindReasons; nil when it is within the limits.
func (l *behindLimit) cut(pos positions) (next positions, over [3]uint64) {
	next = append(positions{}, pos...)
	for i := range l.oldest {
		if next[i] < l.oldest[i] {
			over[0] += uint64(l.oldest[i] - next[i])
			next[i] = l.oldest[i]
		}
	}
	if l.records > 0 {
		over[1] = l.level(next, l.records, func(int) int64 { return 1 })
	}
	if l.size > 0 {
		over[2] = l.level(next, l.size, func(i int) int64 { return l.each[i] })
	}
	if over == [3]uint64{} {
		return nil, over
	}
	return next, over
}

// level moves the lanes that are furthest behind forward until all of them together weigh no more than limit.
func (l *behindLimit) level(next positions, limit int64, weight func(lane int) int64) (over uint64) {
	total, highest := int64(0), int64(0)
	lag := func(i int) int64 { return (int64(l.ends[i]) - int64(min(next[i], l.ends[i]))) * weight(i) }
	for i := range next {
		total += lag(i)
		highest = max(highest, lag(i))
	}
	if total <= limit {
		return 0
	}
	// The highest mark to which all lanes may rise: found by halving, as there are no more than some dozens of lanes.
	low, high := int64(0), highest
	for low < high {
		mid := low + (high-low+1)/2
		sum := int64(0)
		for i := range next {
			sum += min(lag(i), mid)
		}
		if sum <= limit {
			low = mid
		} else {
			high = mid - 1
		}
	}
	for i := range next {
		keep := spool.Offset(min(lag(i), low) / weight(i))
		if at := l.ends[i] - keep; at > next[i] {
			over += uint64(at - next[i])
			next[i] = at
		}
	}
	return over
}

// limitBehind looks at all sessions and share groups.
func (srv *Server) limitBehind() {
	l := srv.behindLimit()
	if l == nil {
		return
	}
	var ended []*session
	for _, s := range srv.allSessions() {
		if !s.limitBehind(l) {
			ended = append(ended, s)
		}
	}
	for _, s := range ended {
		srv.endSession(s, errBehind)
	}
	for _, g := range srv.allGroups() {
		g.limitBehind(l)
	}
}

// limitBehind lets the session go on at what it may still get; false asks for its end.
func (s *session) limitBehind(l *behindLimit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.feed == nil {
		return true
	}
	pos := make(positions, len(s.feed.next))
	for i := range pos {
		pos[i] = s.positionLocked(i)
	}
	next, over := l.cut(pos)
	if next == nil {
		return true
	}
	end := s.srv.cfg.WhenBehind == behindEndSession
	s.srv.metrics.overBehind(over, !end)
	if now := s.srv.own().UnixNano(); end || now-s.cutLogged >= behindLog {
		s.cutLogged = now
		s.srv.log.Warn("session is too far behind", "client", s.id, "action", s.srv.cfg.WhenBehind, "connected", s.conn != nil,
			"too_old", over[0], "too_many", over[1], "too_large", over[2],
			"hint", "see mqtt.max_behind_time, max_behind_records and max_behind_size")
	}
	if end {
		return false
	}
	s.skipLocked(next)
	return true
}

// skipLocked gives up what is below next. Deliveries in flight go on.
func (s *session) skipLocked(next positions) {
	var keep fifo[waiting]
	bytes := 0
	for ; s.waiting.len() > 0; s.waiting.pop() {
		if w := s.waiting.at(0); w.rec.Offset >= next[w.lane] {
			keep.push(*w)
			bytes += len(w.rec.Payload)
		}
	}
	s.waiting, s.waitingBytes = keep, bytes
	for i := range next {
		if !s.feed.live[i] && s.feed.next[i] < next[i] {
			s.feed.next[i] = next[i]
			s.passedLocked(i, next[i])
		}
	}
	s.touchLocked()
	if s.conn != nil && s.backlogLocked() {
		s.srv.catchUp.schedule(s)
	}
}

// limitBehind lets the group go on at what it may still get. A group is never ended: it belongs to all its members.
func (g *group) limitBehind(l *behindLimit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone || g.feed == nil {
		return
	}
	pos := make(positions, len(g.feed.next))
	for i := range pos {
		pos[i] = g.positionLocked(i)
	}
	next, over := l.cut(pos)
	if next == nil {
		return
	}
	g.srv.metrics.overBehind(over, true)
	if now := g.srv.own().UnixNano(); now-g.cutLogged >= behindLog {
		g.cutLogged = now
		g.srv.log.Warn("share group is too far behind", "filter", g.filter, "too_old", over[0], "too_many", over[1], "too_large", over[2])
	}
	for i := range next {
		if !g.feed.live[i] && g.feed.next[i] < next[i] {
			g.feed.next[i] = next[i]
			g.passedLocked(i, next[i])
		}
	}
	g.touchLocked()
}

// endSession ends a session, connected or not.
func (srv *Server) endSession(s *session, err error) {
	srv.mu.Lock()
	defer srv.unlockAndSettle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.willGoneLocked(true)
	srv.settleLater(s, s.orphansLocked(true))
	if c := s.conn; c != nil {
		s.detachLocked()
		c.closeFor(err)
	}
	s.endLocked()
	if srv.sessions[s.id] == s {
		delete(srv.sessions, s.id)
	}
	srv.metrics.sessions.Dec()
}

func (srv *Server) allSessions() []*session {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	list := make([]*session, 0, len(srv.sessions))
	for _, s := range srv.sessions {
		list = append(list, s)
	}
	return list
}

func (srv *Server) allGroups() []*group {
	srv.shareMu.Lock()
	defer srv.shareMu.Unlock()
	list := make([]*group, 0, len(srv.groups))
	for _, g := range srv.groups {
		list = append(list, g)
	}
	return list
}
