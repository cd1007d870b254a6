package mqtt

import (
	"encoding/binary"

	"github.com/forebay-gateway/forebay/spool"
)

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
	if d.err != nil || len(d.b) == 0 {
		return d.err
	}
	s.again = make(map[place]uint16)
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		if lane, off, _, ok := s.srv.lanes.place(d); ok && lane != noLane {
			s.again[place{lane, off}] = answered
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
