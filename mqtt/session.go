package mqtt

import (
	"encoding/binary"
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
	ended   bool  // nothing may be added any more
	durable bool  // has, or may have, durable state
	dirty   bool  // waits for a checkpoint

	epoch        uint64 // when it began: tells it from other sessions of its client
	version      byte
	expiry       uint32 // Session Expiry Interval in seconds
	cutLogged    int64  // when the log said that it is too far behind, Unix time in nanoseconds
	offlineSince int64  // Unix time in nanoseconds; after a restart, that of the restart
	expiresAt    int64  // Unix time in nanoseconds; 0 while connected or never

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

	will *will // of the connection, or waiting for its delay
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
	s.srv.timers.remove(s)
	s.clearWaitingLocked()
	s.held.reset()
	s.retained = nil
	for sub := range s.subs.all() {
		if sub.group == nil {
			s.srv.index.remove(sub)
		}
	}
	s.srv.metrics.subscriptions.Sub(float64(s.subs.len()))
	if s.durable {
		s.srv.writer.putAll(s.eraseLocked(), nil) // the session itself first: what is left by a crash is stray
	}
	s.subs, s.matcher = subscriptions{}, nil
	s.srv.catchUp.schedule(s) // closes what it read with
}

// eraseLocked lists the changes that delete the session's durable state, its will excepted.
func (s *session) eraseLocked() []spool.Change {
	changes := []spool.Change{{Space: spaceSession, Key: s.id}, {Space: spacePosition, Key: s.id}}
	for sub := range s.subs.all() {
		changes = append(changes, spool.Change{Space: spaceSubscription, Key: filterKey(s.id, sub.filter)})
	}
	s.flights.all(func(fl *flight) {
		if fl.qos == 2 {
			changes = append(changes, spool.Change{Space: spaceOutbound, Key: pidKey(s.id, fl.pid)})
		}
	})
	for pid := range s.inbound {
		changes = append(changes, spool.Change{Space: spaceInbound, Key: inboundKey(s.id, s.epoch, pid)})
	}
	return changes
}

// recordLocked is the change that keeps the session itself.
//
//	version 1 | protocol level 1 | epoch uvarint | expiry uvarint | expires at varint (0: connected, or never)
func (s *session) recordLocked() spool.Change {
	b := []byte{stateVersion, s.version}
	b = binary.AppendUvarint(b, s.epoch)
	b = binary.AppendUvarint(b, uint64(s.expiry))
	b = binary.AppendVarint(b, s.expiresAt)
	return spool.Change{Space: spaceSession, Key: s.id, Value: b}
}

func (s *session) restoreRecord(value []byte) error {
	d := openState(value)
	s.version = d.byte()
	s.epoch = d.uvarint()
	s.expiry = uint32(d.uvarint())
	s.expiresAt = d.varint()
	return d.err
}

// checkpointLocked lists the changes that make position and deliveries in flight durable, and forgets the completed QoS 2
// deliveries that the new position has passed: only then may their identifier be given again, because before it a crash
// would read the record a second time.
//
//	version 1 | last identifier uvarint | positions | n × ( identifier uvarint | place ) | n × ( filter | last topic )
func (s *session) checkpointLocked() []spool.Change {
	s.dirty = false
	next := make(positions, len(s.srv.lanes.list))
	if s.feed != nil {
		for i := range next {
			next[i] = s.positionLocked(i)
		}
	} else {
		for i, l := range s.srv.lanes.list {
			next[i] = l.position()
		}
	}
	var changes []spool.Change
	var inflight []byte
	n := 0
	s.flights.all(func(fl *flight) {
		switch {
		case fl.qos == 1:
			inflight = binary.AppendUvarint(inflight, uint64(fl.pid))
			inflight = s.srv.lanes.appendPlace(inflight, fl)
			n++
		case fl.state == flightCompleted && fl.passed(next):
			changes = append(changes, spool.Change{Space: spaceOutbound, Key: pidKey(s.id, fl.pid)})
			s.flights.mark(fl, flightDone)
		case fl.state == flightCompleted:
			s.dirty = true // the lane's position is a moment behind its deliveries: next time
		}
	})
	s.flights.pop()
	b := []byte{stateVersion}
	b = binary.AppendUvarint(b, uint64(s.flights.last))
	b = s.srv.lanes.appendPositions(b, next)
	b = binary.AppendUvarint(b, uint64(n))
	b = append(b, inflight...)
	b = binary.AppendUvarint(b, uint64(len(s.retained)))
	for _, j := range s.retained {
		b = appendString(b, j.sub.filter)
		b = appendString(b, j.last)
	}
	if s.dirty {
		s.dirty = false
		s.touchLocked()
	}
	return append(changes, spool.Change{Space: spacePosition, Key: s.id, Value: b})
}

// passed reports whether no crash makes the gateway read the delivery's record again: for its session, or for its group.
func (fl *flight) passed(next positions) bool {
	switch {
	case fl.lane == noLane:
		return true
	case fl.group == nil:
		return fl.off < next[fl.lane]
	}
	saved := fl.group.saved.Load()
	return saved != nil && saved.count > fl.saves && fl.off < saved.next[fl.lane]
}

// restorePosition reads what checkpointLocked wrote. base holds the position of lanes that were not there then.
func (s *session) restorePosition(value []byte, base positions) error {
	d := openState(value)
	s.flights.last = uint16(d.uvarint())
	next := s.srv.lanes.positions(d, base)
	s.feed = newFeed(next)
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		pid := uint16(d.uvarint())
		lane, off, topic, ok := s.srv.lanes.place(d)
		if ok {
			s.restoreFlight(flight{pid: pid, qos: 1, lane: lane, off: off, state: flightSent}, topic)
		}
	}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		filter, last := d.string(), d.string()
		if sub := s.subs.get(filter); sub != nil {
			s.retained = append(s.retained, retainedJob{sub: sub, last: last})
		}
	}
	return d.err
}

// Flags of a QoS 2 delivery in flight.
const (
	outReleased = 1 << iota
	outShared
)

// outboundChange encodes a QoS 2 delivery in flight: version 1 | flags 1 | place | [ filter of its share group ].
func (s *session) outboundChange(fl *flight, released bool) spool.Change {
	b := []byte{stateVersion, 0}
	if released {
		b[1] |= outReleased
	}
	if fl.group != nil {
		b[1] |= outShared
	}
	b = s.srv.lanes.appendPlace(b, fl)
	if fl.group != nil {
		b = appendString(b, fl.group.filter)
	}
	return spool.Change{Space: spaceOutbound, Key: pidKey(s.id, fl.pid), Value: b}
}

func (s *session) restoreOutbound(pid uint16, value []byte) error {
	d := openState(value)
	fl := flight{pid: pid, qos: 2, state: flightSent}
	flags := d.byte()
	if flags&outReleased != 0 {
		fl.state = flightReleased
	}
	lane, off, topic, ok := s.srv.lanes.place(d)
	if flags&outShared != 0 {
		fl.group = s.srv.groups[d.string()] // nil when it has no members any more
	}
	if !ok && d.err == nil { // the stream is gone: PUBREL frees the identifier at the client
		lane, fl.state = noLane, flightReleased
	}
	fl.lane, fl.off = lane, off
	if fl.group != nil && ok {
		fl.group.taken(place{lane, off})
	}
	s.restoreFlight(fl, topic)
	return d.err
}

func (s *session) restoreFlight(fl flight, topic string) {
	if fl.lane == noLane {
		fl.rec = &spool.Record{Topic: topic}
		if rec := s.srv.retained.get(topic); rec != nil {
			fl.rec = rec
		}
	}
	s.flights.list = append(s.flights.list, fl)
	s.flights.count(fl.state, 1)
}

// restored puts the deliveries of a restart in order. Those that the position has not passed wait until the feed reads
// their records again: between them may be QoS 1 messages whose identifiers no checkpoint has, and which would otherwise
// come after them.
func (s *session) restored() {
	s.flights.sort()
	s.flights.all(func(fl *flight) {
		if fl.lane == noLane || fl.group != nil || s.feed == nil || fl.off < s.feed.next[fl.lane] {
			return
		}
		if s.again == nil {
			s.again = make(map[place]uint16)
		}
		s.again[place{fl.lane, fl.off}] = fl.pid // its record is not to be taken for a new one
		if fl.state == flightSent {
			s.flights.mark(fl, flightDeferred)
		}
	})
}

// passedLocked is told that the feed has read a lane up to next: what was deferred below it is not in the log any more.
func (s *session) passedLocked(lane int, next spool.Offset) {
	for at, pid := range s.again {
		if int(at.lane) != lane || at.off >= next {
			continue
		}
		delete(s.again, at)
		if fl := s.flights.find(pid); fl != nil && fl.state == flightDeferred {
			s.flights.set(fl, flightResend)
			s.srv.catchUp.schedule(s)
		}
	}
}
