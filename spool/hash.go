package spool

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// fileHash is what a sealed file is known by: it never changes again.
type fileHash struct {
	size int64
	sum  string // SHA-256, hexadecimal
}

// sum is the hash as tools show it, "" when it is not known.
func (f *segmentFile) sum() string {
	if h := f.hash.Load(); h != nil {
		return h.sum
	}
	return ""
}

// hashSegment computes the hash of a sealed segment, which the next catalog has. The janitor does it: no acknowledgement waits.
func (s *Spool) hashSegment(ctx context.Context, f *segmentFile) {
	var h fileHash
	found, err := f.with(func(*segment.Segment) error {
		size, sum, err := segment.Hash(ctx, f.path)
		h = fileHash{size: size, sum: hex.EncodeToString(sum[:])}
		return err
	})
	if err != nil {
		s.segmentFailed(f, err) // it is tried again with those of an earlier version
	}
	if err != nil || !found {
		return
	}
	f.hash.Store(&h)
	f.catalogued.Store(false)
	s.hashed.Store(true)
}

// saveHashes writes the catalog when it misses a hash: nothing else may come that would have it written.
func (s *Spool) saveHashes() {
	if !s.hashed.Swap(false) {
		return
	}
	if err := s.meta.update(s.putCatalog); err != nil {
		s.hashed.Store(true)
		if s.throttle.allow(s.clock.now()) {
			s.log.Warn("catalog cannot be written, the hash of a segment follows later", "err", err)
		}
	}
}

const hashEvery = 10 * time.Second // between two segments without hash, so that reading them all does not take the disk

// hashOld gives a hash to one segment that has none: of an earlier version, or of a run that ended before it had come to that.
func (s *Spool) hashOld(ctx context.Context, now int64) {
	if now < s.nextHash {
		return
	}
	s.nextHash = now + int64(hashEvery)
	for _, st := range s.streams {
		for _, f := range st.segments() {
			if f.sealed.Load() && !f.bad.Load() && f.hash.Load() == nil {
				s.hashSegment(ctx, f)
				return
			}
		}
	}
}
