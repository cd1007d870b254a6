package mqtt

import (
	"math"
	"sync"

	"github.com/forebay-gateway/forebay/spool"
)

const (
	expiryNever = math.MaxUint32 // Session Expiry Interval: the session does not expire (MQTT 5, 3.1.2.11.2)
	second      = int64(1e9)
)

// session is what outlives a connection.
//
// Locks are taken in this order: Server.mu, lane.mu, group.mu, session.mu, then those of index, output, ackWindow and
// stateWriter, which take no other.
type session struct {
	srv  *Server
	id   string
	work work

	mu      sync.Mutex
	conn    *conn // nil while offline
	pace    *pace // of its client; nil without a rate
	ended   bool  // nothing may be added any more
	durable bool  // has, or may have, durable state
	dirty   bool  // waits for a checkpoint

	epoch        uint64 // when it began: tells it from other sessions of its client
	version      byte
	expiry       uint32 // Session Expiry Interval in seconds
	cutLogged    int64  // when the log said that it is too far behind, own time in nanoseconds
	offlineSince int64  // own time in nanoseconds; after a restart, that of the restart
	expiresAt    int64  // own time in nanoseconds; 0 while connected or never

	subs    subscriptions
	matcher *index   // of subs, made by a catch-up of a session with many of them
	groups  []*group // of its shared subscriptions

	// feed is nil until the first subscription of QoS 1 or 2.
	feed         *feed
	flights      flights
	limit        int // deliveries in flight that the client takes on this connection
	waiting      fifo[waiting]
	waitingBytes int // of their payloads

	held      fifo[held] // deliveries that wait for a durable packet identifier, in the order of sending
	heldBytes int
	again     map[place]uint16 // deliveries in flight above the position, after a restart: record → identifier

	retained []retainedJob // retained messages that SUBSCRIBEs still have to get

	inbound map[uint16]inboundID // QoS 2 publishes whose PUBREL has not come
	nextGen uint32
	awaited map[uint16]*Awaited // of those whose state is inboundUnsure

	will *will // of the connection, or waiting for its delay; see setWillLocked
}

// place is a record's address.
type place struct {
	lane int32
	off  spool.Offset
}

// waiting is a delivery that waits for room in the window. It holds a copy of the record, not the batch it came in.
type waiting struct {
	rec  spool.Record
	lane int32
	how  how
}

// how is what a session's subscriptions make of a record.
type how struct {
	ids    []uint32 // Subscription Identifiers
	group  *group
	qos    byte
	retain bool
}

// attachLocked gives the session a connection. What was sent and not acknowledged is sent again, before anything new.
func (s *session) attachLocked(c *conn) {
	s.conn = c
	s.version = c.peer.Version
	s.expiresAt = 0
	s.srv.timers.remove(s)
	s.limit = min(c.receiveMaximum, s.srv.cfg.MaxInflight)
	s.flights.all(func(fl *flight) {
		switch fl.state {
		case flightSent:
			s.flights.mark(fl, flightResend)
		case flightReleased:
			s.flights.mark(fl, flightResendRelease)
		}
	})
	for sub := range s.subs.all() {
		if sub.group == nil {
			s.srv.index.add(sub)
		}
	}
}

// detachLocked takes the connection away: the position on each lane becomes exact, and nothing costs anything per
// message any more. The caller hands what orphans returns to the groups.
func (s *session) detachLocked() {
	s.settleLocked()
	s.unholdLocked()
	s.conn = nil
	for sub := range s.subs.all() {
		if sub.group == nil {
			s.srv.index.remove(sub)
		}
	}
}

// settleLocked turns what waits in memory and what is live into positions on the log.
func (s *session) settleLocked() {
	f := s.feed
	if f == nil {
		s.clearWaitingLocked()
		return
	}
	for i := range f.next {
		f.next[i] = s.positionLocked(i)
		f.live[i] = false
	}
	f.behind = len(f.next)
	s.clearWaitingLocked()
}

func (s *session) clearWaitingLocked() {
	s.waiting.reset()
	s.waitingBytes = 0
}

// positionLocked is the offset on lane i below which everything is delivered or in flights. On a live lane everything
// below the lane's position has been offered to this session; the position is read under the session's lock, so that a
// record that the distributor is about to offer is above it.
func (s *session) positionLocked(i int) spool.Offset {
	for j := range s.waiting.len() {
		if w := s.waiting.at(j); int(w.lane) == i {
			return w.rec.Offset
		}
	}
	next := s.feed.next[i]
	if s.feed.live[i] {
		next = max(next, s.srv.lanes.list[i].position())
	}
	return next
}

// orphansLocked takes the QoS 1 deliveries of shared subscriptions out of the session, so that other members may have
// them (MQTT 5, 4.8.2: the server need not wait for the client). Those of QoS 2 stay until the client is back.
func (s *session) orphansLocked(all bool) []orphan {
	var list []orphan
	s.flights.all(func(fl *flight) {
		if fl.group != nil && fl.qos == 1 && fl.state < flightCompleted && (all || fl.group.online.Load() > 0) {
			list = append(list, orphan{fl.group, place{fl.lane, fl.off}})
			s.flights.mark(fl, flightDone)
		}
	})
	s.flights.pop()
	return list
}

// orphan is a delivery that a share group has to hand out again.
type orphan struct {
	group *group
	at    place
}

// roomLocked reports whether the client takes another delivery of QoS 1 or 2 now.
func (s *session) roomLocked() bool {
	return s.conn != nil && s.flights.resend == 0 && s.flights.window < s.limit && s.flights.take() != 0
}

// backlogLocked reports whether there is something for the catch-up workers.
func (s *session) backlogLocked() bool {
	return s.flights.resend > 0 || s.waiting.len() > 0 || len(s.retained) > 0 || s.feed != nil && s.feed.behind > 0
}

// touchLocked asks for a checkpoint.
func (s *session) touchLocked() {
	if s.durable && !s.dirty {
		s.dirty = true
		s.srv.dirty.add(s)
	}
}

// ackedLocked goes on after the window has changed.
func (s *session) ackedLocked() {
	s.touchLocked()
	if s.waiting.len() > 0 {
		s.drainLocked()
	}
	// Half a window at a time: a worker is not woken for each acknowledgement.
	if s.flights.window <= s.limit/2 {
		if s.backlogLocked() {
			s.srv.catchUp.schedule(s)
		}
		for _, g := range s.groups {
			if g.starved.Load() {
				s.srv.catchUp.schedule(g)
			}
		}
	}
}

// drainLocked sends what waits in memory.
func (s *session) drainLocked() {
	if s.conn == nil {
		return
	}
	enc := encoders.Get().(*encoder)
	defer encoders.Put(enc)
	for s.waiting.len() > 0 && s.roomLocked() {
		w := s.waiting.at(0)
		enc.reset(&w.rec, s.srv.now())
		if !s.sendLocked(w.lane, &w.rec, w.how, enc) {
			break
		}
		s.waitingBytes -= len(w.rec.Payload)
		s.waiting.pop()
	}
	s.conn.out.wake()
}

// endLocked ends the session: nothing of it stays. The caller takes it out of the server's table.
func (s *session) endLocked() {
	s.ended = true
	s.conn = nil
	s.srv.paces.put(s.id, s.pace)
	s.srv.timers.remove(s)
	s.clearWaitingLocked()
	s.held.reset()
	s.retained = nil
	for sub := range s.subs.all() {
		if sub.group == nil {
			s.srv.index.remove(sub)
		}
	}
	s.srv.subscribed(-s.subs.len())
	s.srv.sessionBytes.Add(-s.sizeLocked())
	if s.durable {
		s.srv.writer.putAll(s.eraseLocked(), nil) // the session itself first: what is left by a crash is stray
	}
	s.subs, s.matcher = subscriptions{}, nil
	s.srv.catchUp.schedule(s) // closes what it read with
}
