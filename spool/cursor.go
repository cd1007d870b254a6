package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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

// cursorSet are the cursors of a spool. Positions are in memory; changed ones ride along with the next group that is due.
type cursorSet struct {
	s *Spool

	mu      sync.Mutex
	byName  map[string]*Cursor
	changed []*Cursor     // not yet given to a group
	flying  []*Cursor     // in the group that is being written
	wrote   chan struct{} // closed when a group with cursors has ended
}

func newCursorSet(s *Spool) *cursorSet {
	return &cursorSet{s: s, byName: make(map[string]*Cursor), wrote: make(chan struct{})}
}

// OpenCursor opens or makes a cursor, and waits until a new one is durable. Opening it again gives the same one; Protect
// is taken from the latest call. A cursor belongs to one stream.
func (s *Spool) OpenCursor(name, stream string, o CursorOptions) (*Cursor, error) {
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
	return c, c.Flush(context.Background())
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

// touchLocked has c written with a coming group.
func (set *cursorSet) touchLocked(c *Cursor) {
	if c.dirty {
		return
	}
	c.dirty = true
	set.changed = append(set.changed, c)
	if len(set.changed) == 1 {
		signal(set.s.cursorWork)
	}
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
func (s *Spool) DropCursor(name string) error {
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
	return c.Flush(context.Background())
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

func (set *cursorSet) infos() []CursorInfo {
	set.mu.Lock()
	defer set.mu.Unlock()
	infos := make([]CursorInfo, 0, len(set.byName))
	for _, name := range slices.Sorted(maps.Keys(set.byName)) {
		c := set.byName[name]
		if c.dropped {
			continue
		}
		info := CursorInfo{Name: name, Stream: c.st.name, Protect: c.protect, Positions: slices.Clone(c.pos)}
		for i, p := range c.st.parts {
			if start, end := p.bounds(); end > max(start, c.pos[i]) {
				info.Lag += uint64(end - max(start, c.pos[i]))
			}
		}
		infos = append(infos, info)
	}
	return infos
}

func (set *cursorSet) dirty() bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	return len(set.changed) > 0
}

// addDirty puts the changed cursors into g, at the positions they have now: every group before g is durable, so they are
// not ahead of the log. It returns the memory that g took for them.
func (set *cursorSet) addDirty(g *group) int64 {
	set.mu.Lock()
	defer set.mu.Unlock()
	before := g.cost
	n := 0
	for _, c := range set.changed {
		if g.size > 2*set.s.groupCap { // thousands of cursors: the rest goes with the next group
			break
		}
		n++
		c.dirty, c.writing = false, true
		if c.dropped {
			g.addChange(cursorSpace, c.name, nil)
		} else {
			g.addChange(cursorSpace, c.name, c.encodeLocked())
		}
	}
	set.flying = append(set.flying[:0], set.changed[:n]...)
	set.changed = append(set.changed[:0], set.changed[n:]...)
	if len(set.changed) > 0 {
		set.s.cursorsDue.Store(true)
		set.s.wakeCommitter()
	}
	return g.cost - before
}

// written tells that the group with the cursors of the last addDirty has ended.
func (set *cursorSet) written(err error) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if len(set.flying) == 0 {
		return
	}
	for _, c := range set.flying {
		c.writing = false
		if err != nil && !c.dirty {
			c.dirty = true
			set.changed = append(set.changed, c)
		}
		if c.dropped && err == nil && set.byName[c.name] == c {
			delete(set.byName, c.name)
		}
	}
	clear(set.flying)
	set.flying = set.flying[:0]
	close(set.wrote)
	set.wrote = make(chan struct{})
}

// floor is the lowest position of the protected cursors of a partition; ok is false when there is none.
func (set *cursorSet) floor(p *partition) (o Offset, ok bool) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, c := range set.byName {
		if c.st == p.st && c.protect && !c.dropped && (!ok || c.pos[p.num] < o) {
			o, ok = c.pos[p.num], true
		}
	}
	return o, ok
}

// A cursor in its space of meta.db, the name is the key:
//
//	u8 version, u8 flags (1 protect), string stream, uvarint count, count x uvarint position
const (
	cursorSpace   = ownSpaces + "cursors"
	cursorVersion = 1
)

func (c *Cursor) encodeLocked() []byte {
	b := make([]byte, 0, 16+len(c.st.name)+5*len(c.pos))
	b = append(b, cursorVersion, 0)
	if c.protect {
		b[1] = 1
	}
	b = appendString(b, c.st.name)
	b = binary.AppendUvarint(b, uint64(len(c.pos)))
	for _, o := range c.pos {
		b = binary.AppendUvarint(b, uint64(o))
	}
	return b
}

type storedCursor struct {
	stream  string
	protect bool
	pos     []Offset
}

func decodeCursor(b []byte) (c storedCursor, err error) {
	d := decoder{b: b}
	if v := d.u8(); v != cursorVersion && d.err == nil {
		return c, fmt.Errorf("cursor version %d: %w", v, ErrUnsupported)
	}
	c.protect = d.u8()&1 != 0
	c.stream = string(d.bytes(d.uvarint())) // copied: b is bbolt's
	n := d.uvarint()
	if n > maxPartitions {
		d.fail(errors.New("too many partitions"))
	}
	for i := uint64(0); i < n && d.err == nil; i++ {
		c.pos = append(c.pos, Offset(d.uvarint()))
	}
	if d.err != nil {
		return c, &CorruptionError{Where: "cursor", At: d.at, Detail: d.err.Error()}
	}
	return c, nil
}

// restore loads the cursors after recovery. A position above the log end, which a lost journal leaves behind, is set to
// the end: the offsets in between were never given out.
func (set *cursorSet) restore(name string, b []byte) error {
	sc, err := decodeCursor(b)
	if err != nil {
		return fmt.Errorf("cursor %q: %w", name, err)
	}
	st := set.s.byName[sc.stream]
	if st == nil {
		set.s.log.Warn("cursor of a stream that does not exist any more is left alone", "cursor", name, "stream", sc.stream)
		return nil
	}
	c := &Cursor{set: set, name: name, st: st, protect: sc.protect, pos: make([]Offset, len(st.parts))}
	copy(c.pos, sc.pos)
	for i, p := range st.parts {
		if c.pos[i] > p.end {
			set.s.log.Warn("cursor is ahead of the log and is set back to its end", "cursor", name, "stream", sc.stream,
				"partition", i, "position", c.pos[i], "end", p.end)
			c.pos[i] = p.end
		}
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	set.byName[name] = c
	return nil
}
