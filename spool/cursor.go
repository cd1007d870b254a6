package spool

import (
	"context"
	"fmt"
	"time"
)

// Start says where a new cursor begins.
type Start struct {
	kind startKind
	time time.Time
}

type startKind uint8

const (
	startBeginning startKind = iota
	startEnd
	startTime
)

// The starts.
var (
	Beginning = Start{kind: startBeginning} // the log start
	End       = Start{kind: startEnd}       // the durable log end
)

// At starts with the first record that was received at t or later.
func At(t time.Time) Start { return Start{kind: startTime, time: t} }

// CursorOptions say how a cursor is made; From is used only when the cursor is new.
type CursorOptions struct {
	From    Start
	Protect bool // hold segments until the cursor has passed them
}

// CursorInfo describes a cursor.
type CursorInfo struct {
	Name, Stream string
	Protect      bool
	Positions    []Offset // by partition
	Lag          uint64   // durable records that are not committed, all partitions
	HeldBytes    int64    // of segments that it has not passed
}

// Cursor is a consumer's durable position in a stream: everything below it is dealt with. After a crash a cursor is at
// most commit_interval behind its last commit, never ahead of it. A cursor that was made (OpenCursor returned) exists
// after a crash.
type Cursor struct {
	set  *cursorSet
	name string
	st   *stream

	// Guarded by set.mu.
	protect bool
	pos     []Offset // as long as the stream has partitions
	dirty   bool     // in set.changed
	writing bool     // in the group that is being written
	dropped bool
}

// OpenCursor opens or makes a cursor, and waits until a new one is durable, or ctx ends: on a full disk that is as long as there is
// no room. Opening it again gives the same one; Protect is taken from the latest call. A cursor belongs to one stream.
func (s *Spool) OpenCursor(ctx context.Context, name, stream string, o CursorOptions) (*Cursor, error) {
	if name == "" || len(name) > MaxKey {
		return nil, fmt.Errorf("spool: open cursor: name of %d bytes: %w", len(name), ErrInvalid)
	}
	st := s.byName[stream]
	if st == nil {
		return nil, fmt.Errorf("spool: open cursor %q: stream %q: %w", name, stream, ErrUnknownStream)
	}
	set := s.cursors
	set.mu.Lock()
	c := set.byName[name]
	if c == nil || c.dropped {
		set.mu.Unlock()
		pos, err := s.startPositions(st, o.From)
		if err != nil {
			return nil, err
		}
		set.mu.Lock()
		if c = set.byName[name]; c == nil || c.dropped { // nobody else made it meanwhile
			c = &Cursor{set: set, name: name, st: st, protect: o.Protect, pos: pos}
			set.byName[name] = c
			set.touchLocked(c)
		}
	}
	if c.st != st {
		set.mu.Unlock()
		return nil, fmt.Errorf("spool: open cursor %q: it belongs to stream %q, not %q: %w", name, c.st.name, stream, ErrInvalid)
	}
	if c.protect != o.Protect {
		c.protect = o.Protect
		set.touchLocked(c)
	}
	set.mu.Unlock()
	return c, c.Flush(ctx)
}

func (s *Spool) startPositions(st *stream, from Start) ([]Offset, error) {
	pos := make([]Offset, len(st.parts))
	for i, p := range st.parts {
		start, end := p.bounds()
		switch from.kind {
		case startBeginning:
			pos[i] = start
		case startEnd:
			pos[i] = end
		case startTime:
			o, err := s.SeekTime(st.name, i, from.time)
			if err != nil {
				return nil, err
			}
			pos[i] = o
		}
	}
	return pos, nil
}

// Position is the next offset to deliver.
func (c *Cursor) Position(partition int) Offset {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if partition < 0 || partition >= len(c.pos) {
		return 0
	}
	return c.pos[partition]
}

// Commit moves the cursor: everything below next is dealt with. It never moves back, nor past the durable log end. It is
// in memory now, and durable at most commit_interval later.
func (c *Cursor) Commit(partition int, next Offset) {
	if partition < 0 || partition >= len(c.st.parts) {
		return
	}
	_, end := c.st.parts[partition].bounds()
	next = min(next, end)
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if next <= c.pos[partition] || c.dropped {
		return
	}
	c.pos[partition] = next
	c.set.touchLocked(c)
}

// Flush waits until everything that was committed is durable.
func (c *Cursor) Flush(ctx context.Context) error {
	set := c.set
	set.mu.Lock()
	defer set.mu.Unlock()
	for c.dirty || c.writing {
		wrote := set.wrote
		set.mu.Unlock()
		err := set.s.waitForCursors(ctx, wrote)
		set.mu.Lock()
		if err != nil {
			return fmt.Errorf("spool: flush cursor %q: %w", c.name, err)
		}
	}
	return nil
}

func (s *Spool) waitForCursors(ctx context.Context, wrote chan struct{}) error {
	if err := s.failure(); err != nil {
		return err
	}
	s.cursorsDue.Store(true)
	s.wakeCommitter()
	select {
	case <-wrote:
		return nil
	case <-s.gaveUp: // nothing is written any more
		return s.failure()
	case <-s.committerDone:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// DropCursor forgets a cursor, and waits until that is durable. It is no error when there is none.
func (s *Spool) DropCursor(ctx context.Context, name string) error {
	set := s.cursors
	set.mu.Lock()
	c := set.byName[name]
	if c == nil {
		set.mu.Unlock()
		return nil
	}
	c.dropped = true
	set.touchLocked(c)
	set.mu.Unlock()
	return c.Flush(ctx)
}

// Cursors lists the cursors by name.
func (s *Spool) Cursors() []CursorInfo {
	infos := s.cursors.infos()
	for i := range infos {
		infos[i].HeldBytes = s.byName[infos[i].Stream].heldBytes(infos[i].Positions)
	}
	return infos
}

// heldBytes is the size of the segments that have something at or above the positions.
func (st *stream) heldBytes(pos []Offset) (n int64) {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	for _, f := range st.segs {
		for _, r := range f.ranges {
			if r.Partition < len(pos) && pos[r.Partition] < r.Next {
				n += f.bytes.Load()
				break
			}
		}
	}
	return n
}
