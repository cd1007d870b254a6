package spool

import "context"

// Reader reads one partition in offset order: from memory at the tail, from segments when it is behind. It shows nothing
// that is not durable and nothing whose time is over. One goroutine uses it; Close may come from another.
type Reader struct{}

// NewReader starts at offset from. An offset below the log start gives a Gap first, one above the log end waits for it.
func (s *Spool) NewReader(stream string, partition int, from Offset) (*Reader, error) { return nil, nil }

// Next waits for records and returns the next batch. It ends with ctx's error, or ErrClosed when the reader or the spool
// is closed.
func (r *Reader) Next(ctx context.Context) (Batch, error) { return Batch{}, nil }

// TryNext is Next without waiting; false at the tail.
func (r *Reader) TryNext() (Batch, bool, error) { return Batch{}, false, nil }

// Wake returns a channel that is closed when there may be more than at the last TryNext, so that one goroutine can wait
// for many readers. Ask for it before TryNext, or a record that comes in between is missed.
func (r *Reader) Wake() <-chan struct{} { return nil }

// Seek moves the reader: the next batch begins at o.
func (r *Reader) Seek(o Offset) {}

// Offset is the next offset that the reader will speak for.
func (r *Reader) Offset() Offset { return 0 }

// Close ends the reader and wakes its Next.
func (r *Reader) Close() {}
