package spool

import (
	"maps"
	"slices"
	"sync"
)

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
