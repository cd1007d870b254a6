package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
)

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
