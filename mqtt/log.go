package mqtt

import (
	"context"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Log is what the engine needs of the durable log. *spool.Spool gives it through SpoolLog.
type Log interface {
	// Append queues an entry; see spool.Spool.Append. It may block, and the order of acceptance is the order in the log.
	Append(ctx context.Context, e spool.Entry) error

	// OnGroup registers fn to run after all completions of a commit group, on the goroutine that ran them.
	OnGroup(fn func())

	// Load reads a space of durable state. It is called before anything is appended to the space.
	Load(space string, fn func(key string, value []byte) error) error

	Streams() []spool.StreamInfo
	StreamFor(topic string) string

	// PlaceFor is the stream and partition that a record would go to now.
	PlaceFor(rec *spool.Record) (stream string, partition int)
	Bounds(stream string, partition int) (start, end spool.Offset)

	// SeekTime is the offset of the first record that was received at t or later, the log end when there is none.
	SeekTime(stream string, partition int, t time.Time) (spool.Offset, error)

	// RecordSize is the mean size of a record of the stream on disk, 0 when there is none.
	RecordSize(stream string) int64

	NewReader(stream string, partition int, from spool.Offset) (LogReader, error)

	// OpenCursor opens or makes a durable cursor of one stream.
	OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (LogCursor, error)
}

// LogCursor is a durable position in a stream. Commit never moves it back.
type LogCursor interface {
	Commit(partition int, next spool.Offset)
}

// LogReader reads durable records of one partition in order of their offsets. One goroutine uses it at a time.
type LogReader interface {
	// Next waits for records. It returns spool.ErrClosed when the log is closed.
	Next(ctx context.Context) (spool.Batch, error)

	// TryNext does not wait: false means that the reader is at the durable end.
	TryNext() (spool.Batch, bool, error)

	Seek(o spool.Offset)
	Offset() spool.Offset
	Close()
}

// spoolLog narrows *spool.Spool to Log.
type spoolLog struct{ *spool.Spool }

// SpoolLog returns s as the engine's log.
func SpoolLog(s *spool.Spool) Log { return spoolLog{s} }

func (l spoolLog) RecordSize(stream string) int64 {
	for _, st := range l.Stats().Streams {
		if st.Name != stream {
			continue
		}
		records := int64(0)
		for _, p := range st.Partitions {
			records += int64(p.Records)
		}
		if records > 0 {
			return st.Bytes / records
		}
	}
	return 0
}

func (l spoolLog) OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (LogCursor, error) {
	c, err := l.Spool.OpenCursor(ctx, name, stream, o)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l spoolLog) NewReader(stream string, partition int, from spool.Offset) (LogReader, error) {
	r, err := l.Spool.NewReader(stream, partition, from)
	if err != nil {
		return nil, err
	}
	return r, nil
}
