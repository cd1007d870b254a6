package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/spool/segment"
)

// Sealed is a sealed segment, for those who store it elsewhere. Its file does not change any more, but for a rewrite that leaves
// expired records out.
type Sealed struct {
	Stream           string
	Sequence         uint64
	Bytes            int64
	Records          uint64
	Created          time.Time
	SealedAt         time.Time
	MinTime, MaxTime time.Time // of the records; zero when there are none
	KeyID            uint32    // of the key that it is encrypted with, 0 when it is not
	SHA256           string    // of the file, hexadecimal; "" until it is computed
	Partitions       []SealedPartition
	Delivered        bool // every protected cursor has passed it
	Oldest           bool // of its stream: only that one may be removed
}

// SealedPartition is what it holds of a partition: [First, Next).
type SealedPartition struct {
	Partition        int
	First, Next      Offset
	MinTime, MaxTime time.Time
}

// Sealed lists the sealed segments of a stream that are whole, ascending.
func (s *Spool) Sealed(stream string) ([]Sealed, error) {
	st := s.byName[stream]
	if st == nil {
		return nil, unknownStream("list sealed segments", stream)
	}
	var list []Sealed
	for i, f := range st.segments() {
		if !f.sealed.Load() || f.bad.Load() {
			continue
		}
		var in segment.Info
		if ok, _ := f.with(func(seg *segment.Segment) error { in = seg.Info(); return nil }); !ok || !in.Sealed {
			continue
		}
		se := sealedOf(in)
		se.SHA256 = f.sum()
		se.Delivered, se.Oldest = s.delivered(f), i == 0
		list = append(list, se)
	}
	return list, nil
}

func sealedOf(in segment.Info) Sealed {
	se := Sealed{
		Stream: in.Stream, Sequence: in.Sequence, Bytes: in.FileBytes, Records: in.Records, Created: timeOf(in.Created), SealedAt: timeOf(in.SealedAt),
		MinTime: timeOf(in.MinTime), MaxTime: timeOf(in.MaxTime), KeyID: in.KeyID,
	}
	for _, p := range in.Partitions {
		se.Partitions = append(se.Partitions, SealedPartition{
			Partition: int(p.Partition), First: Offset(p.First), Next: Offset(p.Next), MinTime: timeOf(p.MinTime), MaxTime: timeOf(p.MaxTime),
		})
	}
	return se
}

// ErrChanged means that a segment was removed or rewritten while somebody copied it. What was copied is of no use.
var ErrChanged = errors.New("segment was removed or rewritten meanwhile")

// SealedFile is the file of a sealed segment, for a copy. Nothing waits for whoever reads it.
type SealedFile struct {
	Sealed
	f *segmentFile
}

var _ io.ReaderAt = (*SealedFile)(nil)

// SealedFile finds the file of a sealed segment. ErrUnknownSegment when there is none any more.
func (s *Spool) SealedFile(stream string, seq uint64) (*SealedFile, error) {
	f, err := s.sealedFile(stream, seq)
	if err != nil {
		return nil, err
	}
	var in segment.Info
	if ok, err := f.with(func(seg *segment.Segment) error { in = seg.Info(); return nil }); !ok || err != nil {
		return nil, errors.Join(err, fmt.Errorf("spool: %s: %w", segmentID(stream, seq), ErrUnknownSegment))
	}
	se := sealedOf(in)
	se.SHA256 = f.sum()
	return &SealedFile{Sealed: se, f: f}, nil
}

func (s *Spool) sealedFile(stream string, seq uint64) (*segmentFile, error) {
	st := s.byName[stream]
	if st == nil {
		return nil, unknownStream("find a segment", stream)
	}
	for _, f := range st.segments() {
		if f.seq == seq && f.sealed.Load() && !f.bad.Load() {
			return f, nil
		}
	}
	return nil, fmt.Errorf("spool: %s: %w", segmentID(stream, seq), ErrUnknownSegment)
}

// ReadAt reads the file. ErrChanged when it is not the file that it was.
func (f *SealedFile) ReadAt(p []byte, off int64) (n int, err error) {
	ok, err := f.f.with(func(seg *segment.Segment) error {
		if in := seg.Info(); in.FileBytes != f.Bytes || in.Records != f.Records {
			return ErrChanged
		}
		n, err = seg.ReadAt(p, off)
		return err
	})
	if !ok {
		return 0, ErrChanged
	}
	return n, err
}

// Topics calls fn for each topic of the segment's index, in order; ErrNoIndex when there is none.
func (f *SealedFile) Topics(fn func(topic string) error) error {
	ok, err := f.f.with(func(seg *segment.Segment) error { return topicsOf(seg, fn) })
	if !ok {
		return ErrChanged
	}
	return err
}

// ErrNoIndex means that a segment has too many topics for an index, or that it could not be written.
var ErrNoIndex = errors.New("segment has no index")

func topicsOf(seg *segment.Segment, fn func(topic string) error) error {
	err := seg.Keys(segment.KindTopic, func(key string, _ int) error { return fn(key) })
	if errors.Is(err, segment.ErrNoIndex) || errors.Is(err, segment.ErrNotSealed) {
		return ErrNoIndex
	}
	return err
}

// RemoveSealed removes the local file of a segment that is stored elsewhere. False when it cannot go now: it is not the oldest of
// its stream, or somebody who protects it has not had it.
func (s *Spool) RemoveSealed(ctx context.Context, stream string, seq uint64) (bool, error) {
	f, err := s.sealedFile(stream, seq)
	if err != nil {
		return false, err
	}
	s.cleanMu.Lock() // one remover at a time
	defer s.cleanMu.Unlock()
	if s.gone.Load() {
		return false, fmt.Errorf("spool: remove %s: %w", segmentID(stream, seq), errGone)
	}
	if f.st.oldest() != f || !s.delivered(f) {
		return false, nil
	}
	return s.removeFor(ctx, f, GapRetention, removedStored), ctx.Err()
}

// LoadKeys reads the keys of the configuration, for files of a spool that are elsewhere.
func LoadKeys(cfg EncryptionConfig) (*crypt.Keyring, error) { return loadKeys(cfg) }

// OnSealed registers fn to be called after segments were sealed. It must not block.
func (s *Spool) OnSealed(fn func()) {
	s.onGroupMu.Lock()
	defer s.onGroupMu.Unlock()
	s.onSealed = append(s.onSealed[:len(s.onSealed):len(s.onSealed)], fn)
}

func (s *Spool) tellSealed() {
	s.onGroupMu.Lock()
	fns := s.onSealed
	s.onGroupMu.Unlock()
	for _, fn := range fns {
		fn()
	}
}

// StreamSize is how much of the disk a stream's segments take, and its own max_size; 0 when it has none.
func (s *Spool) StreamSize(stream string) (used, limit int64) {
	st := s.byName[stream]
	if st == nil {
		return 0, 0
	}
	return st.bytes.Load(), int64(st.cfg.MaxSize)
}
