package bridge

import (
	"context"

	"github.com/forebay-gateway/forebay/spool"
)

// Log is what the bridge needs of the spool. Its methods behave as those of *spool.Spool; FromSpool makes one.
type Log interface {
	Streams() []spool.StreamInfo
	Bounds(stream string, partition int) (start, end spool.Offset)
	NewReader(stream string, partition int, from spool.Offset) (Reader, error)
	OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (Cursor, error)
	DropCursor(ctx context.Context, name string) error
	Cursors() []spool.CursorInfo
	Load(space string, fn func(key string, value []byte) error) error
	Append(ctx context.Context, e spool.Entry) error
}

// Reader reads one partition in offset order; only durable records, none whose time is over.
type Reader interface {
	Next(ctx context.Context) (spool.Batch, error)
	TryNext() (spool.Batch, bool, error)
	Seek(o spool.Offset)
	Close()
}

// Cursor is a durable position for each partition of a stream. It never moves back.
type Cursor interface {
	Position(partition int) spool.Offset
	Commit(partition int, next spool.Offset)
	Flush(ctx context.Context) error
}

// FromSpool is s as a Log.
func FromSpool(s *spool.Spool) Log { return spoolLog{s} }

type spoolLog struct{ *spool.Spool }

func (l spoolLog) NewReader(stream string, partition int, from spool.Offset) (Reader, error) {
	r, err := l.Spool.NewReader(stream, partition, from)
	if err != nil {
		return nil, err // not a Reader that holds a nil pointer
	}
	return r, nil
}

func (l spoolLog) OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (Cursor, error) {
	c, err := l.Spool.OpenCursor(ctx, name, stream, o)
	if err != nil {
		return nil, err
	}
	return c, nil
}

var (
	_ Log    = spoolLog{}
	_ Reader = (*spool.Reader)(nil)
	_ Cursor = (*spool.Cursor)(nil)
)
