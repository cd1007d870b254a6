package spool

import (
	"context"
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
}

// Cursor is a consumer's durable position in a stream: everything below it is dealt with. After a crash a cursor is at
// most commit_interval behind its last commit, never ahead of it. A cursor that was made (OpenCursor returned) exists
// after a crash.
type Cursor struct{}

// OpenCursor opens or makes a cursor. Opening it again gives the same one; Protect is taken from the latest call. A cursor
// belongs to one stream.
func (s *Spool) OpenCursor(name, stream string, o CursorOptions) (*Cursor, error) { return nil, nil }

// Position is the next offset to deliver.
func (c *Cursor) Position(partition int) Offset { return 0 }

// Commit moves the cursor: everything below next is dealt with. It never moves back, nor past the durable log end. It is
// in memory now, and durable at most commit_interval later.
func (c *Cursor) Commit(partition int, next Offset) {}

// Flush waits until everything that was committed is durable.
func (c *Cursor) Flush(ctx context.Context) error { return nil }

// DropCursor forgets a cursor. It is no error when there is none.
func (s *Spool) DropCursor(name string) error { return nil }

// Cursors lists the cursors by name.
func (s *Spool) Cursors() []CursorInfo { return nil }
