package segment

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Pool bounds how many sealed segments are open at a time: each takes two descriptors and a map of memory. The one that was not used
// for the longest time is parked, closed with all that is known about it kept, and opens again when it is read. Segments that are
// written to are not counted, and one that is being read may take the pool over its limit for that moment.
type Pool struct {
	limit int

	mu   sync.Mutex
	open list.List // of *Segment, the last used at the front
}

// NewPool makes a pool of at most limit open segments.
func NewPool(limit int) *Pool { return &Pool{limit: max(limit, 1)} }

// Open is how many sealed segments are open.
func (p *Pool) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open.Len()
}

// used notes that s is in use, and parks what has not been for the longest time.
func (p *Pool) used(s *Segment) {
	if p == nil {
		return
	}
	for _, old := range p.touch(s) {
		if !old.park() {
			p.keep(old) // a reader has it
		}
	}
}

// touch puts s to the front, and takes out those that are too many.
func (p *Pool) touch(s *Segment) (over []*Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.place != nil {
		p.open.MoveToFront(s.place)
		return nil
	}
	s.place = p.open.PushFront(s)
	for p.open.Len() > p.limit {
		old := p.open.Remove(p.open.Back()).(*Segment)
		old.place = nil
		over = append(over, old)
	}
	return over
}

// keep puts s back.
func (p *Pool) keep(s *Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.place == nil {
		s.place = p.open.PushFront(s)
	}
}

func (p *Pool) forget(s *Segment) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.place != nil {
		p.open.Remove(s.place)
		s.place = nil
	}
}

// park closes a sealed segment's file; false when somebody reads it just now.
func (s *Segment) park() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if s.closed || s.db == nil || s.raw == nil || s.pinned || !s.db.IsReadOnly() {
		return true // it is not open, or has to stay open
	}
	if fi, err := s.raw.Stat(); err == nil {
		s.size = fi.Size()
	}
	if err := s.closeLocked(); err != nil {
		s.parkErr = err // told by Close: the descriptors are gone either way
	}
	s.parked = true
	return true
}

// Pin opens the segment and keeps it open: its file is about to lose the name under which it could be opened again.
func (s *Segment) Pin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked && !s.closed {
		if err := s.unparkLocked(); err != nil {
			return err
		}
	}
	s.pinned = true
	return nil
}

// rlock takes mu for reading with the file open, and opens it again when it was parked.
func (s *Segment) rlock() error {
	for {
		s.mu.RLock()
		if !s.parked {
			if s.db != nil && s.db.IsReadOnly() {
				s.o.Pool.used(s) // it only tries the locks of others
			}
			return nil
		}
		s.mu.RUnlock()
		if err := s.unpark(); err != nil {
			return err
		}
	}
}

func (s *Segment) unpark() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.parked = false
	}
	if !s.parked {
		return nil
	}
	return s.unparkLocked()
}

func (s *Segment) unparkLocked() error {
	err := s.reopenLocked()
	if err != nil {
		_ = s.closeLocked()
		if errors.Is(err, fs.ErrNotExist) {
			return &CorruptionError{Path: s.path, Partition: -1, Reason: "file was removed"}
		}
		return fmt.Errorf("open segment: %w", err)
	}
	s.parked = false
	return nil
}

// reopenLocked opens the file and makes sure that it is the same: somebody may have replaced it meanwhile.
func (s *Segment) reopenLocked() (err error) {
	if s.raw, err = os.Open(s.path); err != nil {
		return err
	}
	if err := s.checkSize(); err != nil {
		return err
	}
	if s.db, err = openReadOnly(s.path); err != nil {
		return err
	}
	t, st, err := s.check(false)
	if err != nil {
		return err
	}
	if t.format != s.fmt || string(st.encode()) != string(s.state.Load().encode()) {
		return &CorruptionError{Path: s.path, Partition: -1, Reason: "file was replaced by another"}
	}
	return nil
}

// Missing tells whether the file is still what lies under its name: nil, or a *CorruptionError that says what has become of it.
// Records of a file that was removed while it is open can still be read.
func (s *Segment) Missing() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now, err := os.Lstat(s.path)
	switch {
	case s.closed || s.pinned:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &CorruptionError{Path: s.path, Partition: -1, Reason: "file was removed"}
	case err != nil || s.raw == nil:
		return nil // another error says nothing about the file
	}
	if mine, err := s.raw.Stat(); err == nil && !os.SameFile(mine, now) {
		return &CorruptionError{Path: s.path, Partition: -1, Reason: "file was replaced by another"}
	}
	return nil
}

// Readable is nil when the file is open or can be opened.
func (s *Segment) Readable() error {
	if err := s.rlock(); err != nil {
		return err
	}
	defer s.mu.RUnlock()
	if s.db == nil {
		return ErrClosed
	}
	return nil
}

// Park closes all that nobody reads just now, as if others had been used.
func (p *Pool) Park() {
	p.mu.Lock()
	var all []*Segment
	for e := p.open.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*Segment))
	}
	for _, s := range all {
		p.open.Remove(s.place)
		s.place = nil
	}
	p.mu.Unlock()
	for _, s := range all {
		if !s.park() {
			p.keep(s)
		}
	}
}
