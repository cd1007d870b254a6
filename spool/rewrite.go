package spool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// rewriteExpired rewrites one sealed segment of which little lives, so that a few records of long life do not keep the
// space of many short ones.
func (s *Spool) rewriteExpired(ctx context.Context, st *stream, now int64) {
	for _, f := range st.segments() {
		if !f.sealed.Load() || f.bad.Load() || f.pinned.Load() > 0 || f.bytes.Load() < rewriteMinBytes {
			continue
		}
		little := false
		_, _ = f.with(func(seg *segment.Segment) error {
			in := seg.Info()
			_, live := in.Expiry.Live(now)
			little = in.RawBytes > 0 && live*100 < in.RawBytes*rewriteBelowPercent
			return nil
		})
		if little {
			if err := s.rewrite(ctx, f, now); err != nil {
				s.segmentFailed(f, fmt.Errorf("rewrite: %w", err))
			}
			return // one a round: it is long work
		}
	}
}

const (
	rewriteMinBytes     = 1 << 20
	rewriteBelowPercent = 30 // 2.1 x the live bytes on disk at 1.3 x the writes, for a mix of hours and days
)

// rewrite replaces f's file by one without the records that are expired.
func (s *Spool) rewrite(ctx context.Context, f *segmentFile, now int64) error {
	tmp := f.path + ".rewrite"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	before, had, kept := f.bytes.Load(), uint64(0), uint64(0)
	found, err := f.with(func(seg *segment.Segment) error {
		in, err := seg.Rewrite(ctx, tmp, s.segmentOptions(f.st, f.seq), indexBody, func(b segment.Batch) (segment.Batch, bool, error) {
			return withoutExpired(b, now)
		})
		had, kept = seg.Info().Records, in.Records
		return err
	})
	if err != nil || !found {
		_ = os.Remove(tmp)
		return err
	}
	if err := s.replaceFile(f, tmp); err != nil {
		return err
	}
	f.st.expired.Add(had - kept)
	s.hashSegment(ctx, f)
	f.catalogued.Store(false)
	s.log.Info("segment rewritten without expired records", "stream", f.st.name, "segment", f.seq, "bytes", f.bytes.Load(), "before", before)
	return nil
}

// replaceFile puts tmp in the place of f's file. Readers wait meanwhile. When the new file cannot be opened, for want of a
// descriptor, they go on with the old one, which has no name any more.
func (s *Spool) replaceFile(f *segmentFile, tmp string) error {
	f.use.Lock()
	defer f.use.Unlock()
	if f.seg == nil {
		return os.Remove(tmp)
	}
	if err := f.seg.Pin(); err != nil { // should the new one not open, the old one has no name
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, f.path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	f.hash.Store(nil)
	f.catalogued.Store(false)
	err := s.fs.SyncDir(s.segmentDir(f.st.name))
	seg, oerr := segment.Open(f.path, s.segmentOptions(f.st, f.seq))
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	if err := f.seg.Close(); err != nil {
		s.log.Warn("segment does not close", "path", f.path, "err", err)
	}
	f.seg = seg
	f.st.segMu.Lock()
	f.refreshLocked()
	f.st.segMu.Unlock()
	return err
}

// withoutExpired is the batch with the records that live at now; false when there are none.
func withoutExpired(b segment.Batch, now int64) (segment.Batch, bool, error) {
	if b.Never == 0 && b.MaxExpiry <= now || b.Count == 0 {
		return b, false, nil
	}
	if b.MinExpiry == 0 || b.MinExpiry > now {
		return b, true, nil // none is expired
	}
	recs, _, err := decodeRecords(nil, b.Body, b.Partition, Offset(b.Base))
	if err != nil {
		return b, false, err
	}
	out := segment.Batch{Partition: b.Partition, Base: b.Base, Next: b.Next}
	next := Offset(b.Base)
	for i := range recs {
		if r := &recs[i]; !r.expired(now) {
			addToBatch(&out, r, uint64(r.Offset-next))
			next = r.Offset + 1
		}
	}
	return out, out.Count > 0, nil
}

func (r *Record) expired(now int64) bool { return r.ExpiresAt != 0 && r.ExpiresAt <= now }
