package segment

import (
	"context"
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

var errEnough = errors.New("enough")

// indexRoom is how far the index of a segment that is full may pass its MaxSize: postings take 0.4 % of the payload.
const indexRoom = 64 << 20

// Seal writes the index of what index yields (nil: none) and the seal record, syncs, cuts the file to its length and
// opens it read-only. Sealing a sealed segment does nothing; a crash in the middle leaves an active one that can be
// sealed again. When only the opening fails, nothing can be read until Seal is called again. Building the index reads every batch, about a second for 128 MiB; reads go on meanwhile, Write waits.
//
// After an error other than ErrFailed the segment is still active. With *CorruptionError a batch is damaged: sealing it
// without index needs no bodies and still works.
func (s *Segment) Seal(ctx context.Context, index IndexFunc) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.closed && s.state.Load().sealed {
		return s.wrap("seal", s.openAgainLocked())
	}
	if err := s.writable(); err != nil {
		return s.wrap("seal", err)
	}
	err := s.sealLocked(ctx, index)
	if err == nil {
		s.o.Pool.used(s)
	}
	return s.wrap("seal", err)
}

func (s *Segment) sealLocked(ctx context.Context, fn IndexFunc) error {
	limit := s.db.MaxSize
	s.db.MaxSize = limit + indexRoom
	defer func() {
		if s.db != nil {
			s.db.MaxSize = limit
		}
	}()
	sealed := s.state.Load().clone()
	sealed.sealed, sealed.sealedAt = true, s.o.Now().UnixNano()
	if fn != nil {
		x, err := s.buildIndex(ctx, fn)
		if err != nil {
			return err
		}
		if err := s.writeIndexLocked(ctx, x); err != nil {
			return err
		}
		sealed.topics, sealed.clients = x.kinds[KindTopic].count(), x.kinds[KindClient].count()
	}
	if err := s.commitLocked(sealed, func(*bolt.Tx) error { return nil }); err != nil {
		return err
	}
	// Again, so that both meta pages know it: bbolt would fall back to the active state when the newer one is damaged.
	if err := s.commitLocked(sealed, func(*bolt.Tx) error { return nil }); err != nil {
		s.failed = fmt.Errorf("%w: %w", ErrFailed, err)
		return s.failed
	}
	if err := s.reopenSealedLocked(); err != nil {
		s.failed = fmt.Errorf("%w: %w", ErrFailed, err)
		return s.failed
	}
	return nil
}

// writeIndexLocked stores the blocks, some per transaction. What an interrupted Seal left there goes first.
func (s *Segment) writeIndexLocked(ctx context.Context, x *index) error {
	st := s.state.Load()
	err := s.commitLocked(st, func(tx *bolt.Tx) error {
		if k, _ := tx.Bucket(bucketIndex).Cursor().First(); k == nil {
			return nil
		}
		if err := tx.DeleteBucket(bucketIndex); err != nil {
			return err
		}
		_, err := tx.CreateBucket(bucketIndex)
		return err
	})
	if err != nil {
		return err
	}
	var keys, values [][]byte
	raw := 0
	flush := func() error {
		err := s.commitLocked(st, func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketIndex)
			b.FillPercent = 1
			for i := range keys {
				if err := putBatch(b, keys[i], values[i]); err != nil {
					return err
				}
			}
			return nil
		})
		keys, values, raw = nil, nil, 0
		return err
	}
	err = x.blocks(func(bl block) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := Batch{Partition: uint16(bl.kind), Base: uint64(bl.number), Next: uint64(bl.number) + 1, Count: bl.count, Body: bl.raw}
		keys = append(keys, indexKey(bl.kind, bl.number))
		values = append(values, appendStored(nil, &b, CodecZstd, s.seal, inIndex))
		if raw += len(bl.raw); raw < indexTx {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}

// reopenSealedLocked swaps the handle. Readers wait for it between two chunks.
func (s *Segment) reopenSealedLocked() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pages uint64
	err := s.db.View(func(tx *bolt.Tx) error { pages = uint64(tx.Size()) / pageSize; return nil })
	if err != nil {
		return err
	}
	if err := s.db.Close(); err != nil {
		return err
	}
	s.db = nil
	if err := s.cutTail(pages); err != nil {
		return err
	}
	s.db, err = openReadOnly(s.path)
	return err
}

// openAgainLocked opens a sealed file that could not be opened when it was sealed, for want of a descriptor or of memory.
func (s *Segment) openAgainLocked() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil || s.parked {
		return nil
	}
	var err error
	s.db, err = openReadOnly(s.path)
	return err
}

// cutTail removes what bbolt allocated ahead, so that the file is what its hash is made of.
func (s *Segment) cutTail(pages uint64) error {
	fi, err := s.raw.Stat()
	if err != nil || fi.Size() <= int64(pages)*pageSize {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(pages)*pageSize), f.Sync(), f.Close())
}
