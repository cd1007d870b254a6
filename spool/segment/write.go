package segment

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// nestedFrom is the stored size from which a batch gets a bucket, and with it a page run, of its own. bbolt never splits
// a leaf of fewer than 5 keys: big plain values would be copied by each of the next 3 to 5 transactions.
const nestedFrom = 2 << 10

// SetCodec changes the codec for later calls of Write (s2 while much comes, or the materialiser lags).
func (s *Segment) SetCodec(c Codec) { s.codec.Store(uint32(c)) }

// Write stores the batches and the applied position in one transaction; when it returns nil they are synced. Batches of
// one partition come in rising order. applied must not go back. After an error nothing of this Write is visible, and the
// segment is as usable as before, unless the error is ErrFailed:
//
//   - *OffsetError: a batch begins below the partition's next offset; it is stored already.
//   - ErrFull: MaxSize is reached. Seal this segment.
//   - errors.Is ENOSPC or EDQUOT: the disk is full. Try again when there is room.
//   - ErrFailed: it is not known what is on the disk. Close, Open, look at Applied.
func (s *Segment) Write(applied uint64, batches []Batch) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.writable(); err != nil {
		return s.wrap("write", err)
	}
	if len(batches) == 0 && applied == s.state.Load().applied {
		return nil
	}
	stored := make([]*[]byte, 0, len(batches))
	defer func() { // bbolt has copied them into its pages, or has given them up
		for _, v := range stored {
			storedPool.Put(v)
		}
	}()
	next, err := s.prepare(applied, batches, &stored)
	if err != nil {
		return s.wrap("write", err)
	}
	return s.wrap("write", s.commitLocked(next, func(tx *bolt.Tx) error {
		d, t := tx.Bucket(bucketData), tx.Bucket(bucketTime)
		d.FillPercent, t.FillPercent = 1, 1 // keys rise within a partition: full pages behind, the last one grows
		top := s.state.Load().timesTop(batches)
		for i := range batches {
			b := &batches[i]
			if err := putBatch(d, dataKey(b.Partition, b.Base), *stored[i]); err != nil {
				return err
			}
			if b.Count == 0 {
				continue
			}
			// Only a batch that moves the latest time forward can be the first at or after some time.
			if last, ok := top[b.Partition]; ok && b.MaxTime <= last {
				continue
			}
			top[b.Partition] = b.MaxTime
			if err := t.Put(timeKey(b.Partition, b.MaxTime, b.Base), nil); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (s *Segment) writable() error {
	switch {
	case s.closed:
		return ErrClosed
	case s.failed != nil:
		return s.failed
	case s.o.ReadOnly || s.state.Load().sealed:
		return ErrSealed
	}
	return nil
}

// storedPool has memory for encoded batches: new memory for each has to be cleared, and collected.
var storedPool = sync.Pool{New: func() any { return new([]byte) }}

// prepare checks the batches and encodes them, outside of any transaction.
func (s *Segment) prepare(applied uint64, batches []Batch, stored *[]*[]byte) (*state, error) {
	next := s.state.Load().clone()
	if applied < next.applied {
		return nil, &AppliedError{Got: applied, Have: next.applied}
	}
	next.applied = applied
	codec := Codec(s.codec.Load())
	for i := range batches {
		b := &batches[i]
		if err := b.check(); err != nil {
			return nil, err
		}
		runtime.Gosched() // who waits for an acknowledgement goes first
		v := storedPool.Get().(*[]byte)
		*v = appendStored((*v)[:0], b, codec, s.seal, inData)
		*stored = append(*stored, v)
		if err := next.add(b, len(*v)); err != nil {
			return nil, err
		}
	}
	return next, nil
}

func (b *Batch) check() error {
	switch {
	case len(b.Body) > MaxBody:
		return fmt.Errorf("partition %d batch %d: %d bytes: %w", b.Partition, b.Base, len(b.Body), ErrTooLarge)
	case b.Next <= b.Base:
		return fmt.Errorf("partition %d: batch covers no offset: [%d, %d)", b.Partition, b.Base, b.Next)
	case uint64(b.Count) > b.Next-b.Base, b.Never > b.Count, b.Count == 0 && len(b.Body) > 0,
		b.Expiries != nil && len(b.Expiries) != int(b.Count):
		return fmt.Errorf("partition %d batch %d: %d records, %d without expiry, %d expiries, in %d offsets",
			b.Partition, b.Base, b.Count, b.Never, len(b.Expiries), b.Next-b.Base)
	}
	return nil
}

// timesTop returns the latest time so far of the partitions in batches that have one.
func (st *state) timesTop(batches []Batch) map[uint16]int64 {
	top := make(map[uint16]int64)
	for i := range batches {
		if p, ok := st.parts[batches[i].Partition]; ok && p.Records > 0 {
			top[p.Partition] = p.MaxTime
		}
	}
	return top
}

// putBatch stores v under key in d or x.
func putBatch(b *bolt.Bucket, key, v []byte) error {
	if len(v) < nestedFrom {
		return b.Put(key, v)
	}
	n, err := b.CreateBucket(key)
	if err != nil {
		return err
	}
	n.FillPercent = 1
	return n.Put(keyBatch, v)
}

// commitLocked runs fn and stores next in one transaction, and publishes next when it is durable. s.writing is held.
func (s *Segment) commitLocked(next *state, fn func(tx *bolt.Tx) error) error {
	var before, after int
	err := guard(s.path, func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			before = tx.ID() - 1
			if err := fn(tx); err != nil {
				return err
			}
			return tx.Bucket(bucketMeta).Put(keyState, next.encode())
		})
	})
	if err == nil {
		s.state.Store(next)
		return nil
	}
	// bbolt writes the meta page and then syncs it. When that sync fails, the page cache already shows the new
	// transaction and the disk may not have it: trust neither.
	seen := s.view(func(tx *bolt.Tx) error { after = tx.ID(); return nil })
	var ce *CorruptionError
	switch {
	case seen != nil || after != before || errors.As(err, &ce):
		// fails for ever
	case errors.Is(err, bolterrors.ErrMaxSizeReached):
		return ErrFull
	case noSpace(err):
		return err
	}
	// A write or a sync of the pages failed. They belong to nothing, but a file that fails once is not asked again.
	s.failed = fmt.Errorf("%w: %w", ErrFailed, err)
	return s.failed
}

func (s *Segment) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, s.path, err)
}
