package spool

import (
	"context"
	"fmt"
	"strings"
)

// Append queues e. It blocks while the queue is full, or while the stream has no room and its policy is block, until ctx
// ends. The order of acceptance is the order in the log. An error means that e was not accepted, and Done will not be
// called: ErrFull under policy reject, ErrTooLarge, ErrInvalid, ErrUnknownStream, ErrClosed, ErrFailed, or ctx's.
func (s *Spool) Append(ctx context.Context, e Entry) error {
	var st *stream
	var w weight
	if e.Record != nil {
		var err error
		if st, err = s.streamOf(&e); err != nil {
			return err
		}
		if err = checkRecord(e.Record); err != nil {
			return err
		}
		if e.Record.ReceivedAt == 0 {
			e.Record.ReceivedAt = s.clock.wall()
		}
		st.applyTTL(e.Record)
		w.size = stringLen(encodedSize(e.Record, 0))
		w.cost = int64(recordMemory(e.Record))
		w.expires = s.clock.ownTime(e.Record.ExpiresAt)
	}
	size, cost := w.size, w.cost
	for i := range e.Changes {
		if err := checkChange(&e.Changes[i]); err != nil {
			return err
		}
		n := changeSize(&e.Changes[i])
		size += n
		cost += int64(n)
	}
	if limit := s.maxEntry; size > limit || cost > int64(s.cfg.QueueSize) {
		return fmt.Errorf("spool: append: %d bytes, at most %d: %w", size, limit, ErrTooLarge)
	}

	s.mu.Lock()
	drop, err := s.admitLocked(ctx, st, cost, e.Reserve)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.enqueueLocked(&e, st, w, size, drop)
	s.mu.Unlock()
	s.wakeCommitter()
	return nil
}

// weight is what a record takes in a group: bytes of the frame, and memory. expires is its expiry in the spool's own time.
type weight struct {
	size    int
	cost    int64
	expires int64
}

func (s *Spool) streamOf(e *Entry) (*stream, error) {
	if e.Stream == "" {
		return s.streamFor(e.Record.Topic), nil
	}
	st := s.byName[e.Stream]
	if st == nil || !st.configured {
		return nil, fmt.Errorf("spool: append: stream %q: %w", e.Stream, ErrUnknownStream)
	}
	return st, nil
}

func (s *Spool) streamFor(topic string) *stream {
	for _, st := range s.streams {
		if st.takes(topic) {
			return st
		}
	}
	return s.byName[DefaultStream]
}

func checkRecord(r *Record) error {
	switch {
	case r.Topic == "" || len(r.Topic) > 65535:
		return fmt.Errorf("spool: append: topic of %d bytes: %w", len(r.Topic), ErrInvalid)
	case r.QoS > 2:
		return fmt.Errorf("spool: append: QoS %d: %w", r.QoS, ErrInvalid)
	}
	return nil
}

func checkChange(c *Change) error {
	if c.Space == "" || strings.HasPrefix(c.Space, ownSpaces) || len(c.Space) > maxSpace {
		return fmt.Errorf("spool: append: change in space %q: %w", c.Space, ErrInvalid)
	}
	if c.Key == "" || len(c.Key) > MaxKey {
		return fmt.Errorf("spool: append: change in space %q: key of %d bytes: %w", c.Space, len(c.Key), ErrInvalid)
	}
	return nil
}

const (
	ownSpaces = "\x00" // first byte of the spaces that the spool uses itself
	maxSpace  = 64
)

// MaxKey is the longest key of a Change: bbolt's limit. Client IDs and topics reach 64 KiB in theory; such a key is refused.
const MaxKey = 32 << 10

// maxReserve is what Entry.Reserve may take while there is no room: some ten thousand wills. What is kept free below max_size
// for records that were accepted before is larger.
const maxReserve = 16 << 20

// reserveLocked takes from the reserve.
func (s *Spool) reserveLocked(st *stream, cost int64) error {
	if s.reserved+cost > min(maxReserve, s.unappliedMax/4) {
		st.dropped[dropRejected].Add(1)
		return fmt.Errorf("spool: append to %s: the reserve is used up: %w", st.name, ErrFull)
	}
	s.reserved += cost
	return nil
}

// admitLocked waits until there is room for cost bytes. drop tells that the record is to be left out.
func (s *Spool) admitLocked(ctx context.Context, st *stream, cost int64, reserve bool) (drop bool, err error) {
	switch full := st != nil && (s.full.Load() || st.full.Load()); {
	case full && reserve:
		if err := s.reserveLocked(st, cost); err != nil {
			return false, err
		}
		st = nil // as a change of state
	case !full && st != nil && s.reserved > 0:
		s.reserved = 0
	}
	for {
		if err := s.stoppedLocked(); err != nil {
			return false, err
		}
		need := cost
		drop = false
		if st != nil && (s.full.Load() || st.full.Load()) {
			switch st.cfg.WhenFull {
			case FullReject:
				st.dropped[dropRejected].Add(1)
				return false, fmt.Errorf("spool: append to %s: %w", st.name, ErrFull)
			case FullDropNew:
				drop, need = true, 0
			}
		}
		blocked := st != nil && !drop && (s.full.Load() || st.full.Load())
		if !blocked && s.roomLocked(need) {
			return drop, nil
		}
		if err := s.waitForRoomLocked(ctx, blocked); err != nil {
			return false, err
		}
	}
}

// roomLocked tells whether the queue, and the memory for what no segment has yet, take cost bytes more. Both take
// one entry of any size when they are empty.
func (s *Spool) roomLocked(cost int64) bool {
	if s.queued > 0 && s.queued+cost > int64(s.cfg.QueueSize) {
		return false
	}
	held := s.queued + s.unapplied
	if held > 0 && held+cost > s.unappliedMax {
		return false
	}
	return true
}

// waitForRoomLocked gives up s.mu until something has changed that admitLocked looks at.
func (s *Spool) waitForRoomLocked(ctx context.Context, full bool) error {
	if s.room == nil {
		s.room = make(chan struct{})
	}
	room := s.room
	s.mu.Unlock()
	defer s.mu.Lock()
	s.metrics.blocked.Inc()
	defer s.metrics.blocked.Dec()
	if full {
		s.kickJanitor()
	} else {
		s.kickMaterialiser()
	}
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// roomChangedLocked wakes everybody who waits in Append.
func (s *Spool) roomChangedLocked() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

func (s *Spool) roomChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roomChangedLocked()
}

func (s *Spool) stoppedLocked() error {
	switch {
	case s.failed != nil:
		return s.failed
	case s.closing:
		return ErrClosed
	}
	return nil
}

// enqueueLocked puts the entry, of size bytes in all, into the last waiting group, or begins a new one when it is full.
func (s *Spool) enqueueLocked(e *Entry, st *stream, w weight, size int, drop bool) {
	g := s.openGroupLocked(size)
	before := g.cost
	g.addChanges(e.Changes)
	switch {
	case e.Record == nil:
		if e.Done != nil {
			g.entries = append(g.entries, groupEntry{done: e.Done})
		}
	case drop:
		st.dropped[dropNew].Add(1)
		e.Record.Offset = NoOffset
		if e.Done != nil {
			g.entries = append(g.entries, groupEntry{rec: e.Record, done: e.Done})
		}
	default:
		p := st.partitionFor(e.Record)
		e.Record.Partition = uint16(p.num)
		g.add(p, e.Record, w, e.Done)
	}
	s.queued += g.cost - before
}

// openGroupLocked is the group that the next entry goes into.
func (s *Spool) openGroupLocked(size int) *group {
	if n := len(s.waiting); n > 0 {
		g := s.waiting[n-1]
		if g.size+size+sectionMaxHead+sectionHead <= s.groupCap || g.size == payloadHead {
			return g
		}
		s.sealGroup(g)
	}
	g := s.newGroupLocked()
	s.waiting = append(s.waiting, g)
	return g
}

// newGroupLocked is an empty group that does not wait.
func (s *Spool) newGroupLocked() *group {
	if n := len(s.spare); n > 0 {
		g := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return g
	}
	g := new(group)
	g.reset()
	return g
}

// sealGroup ends the filling of g: later entries find no section of it.
func (s *Spool) sealGroup(g *group) {
	for _, sec := range g.sections[:g.lastUse] {
		if sec.p.pending == sec { // a later group may have its own already
			sec.p.pending = nil
		}
	}
}
