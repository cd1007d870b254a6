package mqtt

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// checkpointLocked lists the changes that make position and deliveries in flight durable, and forgets the completed QoS 2
// deliveries that the new position has passed: only then may their identifier be given again, because before it a crash
// would read the record a second time.
//
// After restarts many of them may lie above the position, and the feed may need their identifiers to get there. Their places are kept
// without the identifiers then.
//
//	version 1 | last identifier uvarint | positions | n × ( identifier uvarint | place ) | n × ( filter | last topic ) [ | n × place, answered ]
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
		case fl.state == flightCompleted && s.answeredLocked(fl):
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
	b = s.appendAnswered(b, next)
	if s.dirty {
		s.dirty = false
		s.touchLocked()
	}
	return append(changes, spool.Change{Space: spacePosition, Key: s.id, Value: b})
}

const answered = 0 // in again, instead of an identifier: the client has the record, and the feed passes over it

// answeredLocked gives up the identifier of a completed delivery of before a restart, whose place is remembered.
func (s *session) answeredLocked(fl *flight) bool {
	at := place{fl.lane, fl.off}
	if pid, ok := s.again[at]; !ok || pid != fl.pid || fl.group != nil {
		return false
	}
	s.again[at] = answered
	return true
}

func (s *session) appendAnswered(b []byte, next positions) []byte {
	var places []byte
	n := uint64(0)
	for at, pid := range s.again {
		if pid == answered && at.off >= next[at.lane] {
			places = s.srv.lanes.appendPlace(places, &flight{lane: at.lane, off: at.off})
			n++
		}
	}
	if n == 0 {
		return b
	}
	return append(binary.AppendUvarint(b, n), places...)
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

// dirtySet is who waits for a checkpoint.
type dirtySet struct {
	mu   sync.Mutex
	list []checkpointed
	wake chan struct{}
}

type checkpointed interface{ checkpoint() }

func newDirtySet() *dirtySet { return &dirtySet{wake: make(chan struct{}, 1)} }

func (d *dirtySet) add(c checkpointed) {
	d.mu.Lock()
	d.list = append(d.list, c)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *dirtySet) take() []checkpointed {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.list
	d.list = nil
	return list
}

// checkpoint makes the session's position durable, unless it ended or wrote it meanwhile.
func (s *session) checkpoint() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saveLocked()
}

func (s *session) saveLocked() {
	if !s.ended && s.dirty {
		// Queued under the lock: so a change that follows from a later state comes later.
		s.srv.writer.put(stateEntry{changes: s.checkpointLocked()})
	}
}

// checkpointer writes the positions of who got or acknowledged something, every checkpoint_interval, and waits until they
// are durable: a slow disk makes checkpoints rarer, not longer.
func (srv *Server) checkpointer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-srv.dirty.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(srv.cfg.CheckpointInterval.Std()):
		}
		srv.checkpointAll()
		if srv.writer.flush(ctx) != nil {
			return
		}
	}
}

func (srv *Server) checkpointAll() {
	for _, c := range srv.dirty.take() {
		c.checkpoint()
	}
}
