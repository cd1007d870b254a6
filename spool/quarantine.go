package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// setAside moves a file to quarantine/, under a name that says when; nothing that was there is replaced.
func (s *Spool) setAside(path, name string) (to string, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	for i := 0; ; i++ {
		to = s.path("quarantine", fmt.Sprintf("%s.%d", name, i))
		if _, err := os.Lstat(to); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err := os.Rename(path, to); err != nil {
		return "", err
	}
	s.quarantineBytes.Add(fi.Size())
	s.quarantined.Add(1)
	return to, errors.Join(s.syncDir(filepath.Dir(path)), s.syncDir(filepath.Dir(to)))
}

func (s *Spool) syncDir(dir string) error { return vfs.OS.SyncDir(dir) }

// linkAside gives a file a second name in quarantine/: whatever happens then, one of the two is there.
func (s *Spool) linkAside(path, name string) (to string, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	for i := 0; ; i++ {
		to = s.path("quarantine", fmt.Sprintf("%s.%d", name, i))
		err := os.Link(path, to)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		s.quarantineBytes.Add(fi.Size())
		s.quarantined.Add(1)
		return to, s.syncDir(filepath.Dir(to))
	}
}

// quarantineBad sets damaged segments aside. Batches that can still be read are saved into a new file in its place.
func (s *Spool) quarantineBad(ctx context.Context, st *stream) {
	for _, f := range st.segments() {
		if !f.bad.Load() {
			continue
		}
		err := s.quarantineSegment(ctx, f)
		if err == nil {
			continue
		}
		f.stuck.Store(true)
		s.wakeMending()
		if ctx.Err() == nil && s.throttle.allow(s.clock.now()) {
			s.log.Error("damaged segment cannot be replaced now, it is tried again", "path", f.path, "err", err)
		}
	}
}

// wakeMending has those look again who wait for a damaged segment.
func (s *Spool) wakeMending() {
	s.healthMu.Lock()
	defer s.healthMu.Unlock()
	close(s.repaired)
	s.repaired = make(chan struct{})
}

// quarantineSegment saves what can be read of f into a file in its place. An error, such as a full disk, has changed
// nothing: what can be read is not given up because there is no room for it now.
func (s *Spool) quarantineSegment(ctx context.Context, f *segmentFile) error {
	st := f.st
	if !f.sealed.Load() { // the materialiser may be about to write to it
		s.materialiseMu.Lock()
		defer s.materialiseMu.Unlock()
	}
	st.segMu.RLock()
	before := f.ranges
	st.segMu.RUnlock()
	fresh, to, err := s.replacement(ctx, f)
	if err != nil {
		return err
	}
	cost := s.replaceSegment(f, fresh, before)
	if err := f.close(); err != nil {
		s.log.Warn("segment does not close", "path", f.path, "err", err)
	}
	s.lookAside()
	s.log.Error("damaged segment was set aside", append(cost.args(), "stream", st.name, "segment", f.seq, "quarantine", to, "saved", fresh != nil)...)
	if err := s.meta.update(func(tx *bolt.Tx) error {
		if err := s.meta.putNumber(tx, keyQuarantined, s.quarantined.Load()); err != nil {
			return err
		}
		if fresh == nil {
			if err := tx.Bucket(bucketSegments).Delete(segmentKey(st.name, f.seq)); err != nil {
				return err
			}
		}
		return s.putCatalog(tx)
	}); err != nil {
		s.log.Warn("catalog cannot be written after a quarantine", "err", err)
	}
	s.wakeMending()
	return nil
}

// replacement puts a file with what can be read of f in f's place, and f's file into quarantine. It is nil when nothing can be
// read.
func (s *Spool) replacement(ctx context.Context, f *segmentFile) (fresh *segmentFile, to string, err error) {
	tmp := f.path + ".rewrite"
	name := f.st.name + "-" + segmentName(f.seq)
	saved, err := s.salvage(ctx, f, tmp)
	if err != nil {
		return nil, "", err
	}
	if saved == nil {
		to, err = s.setAside(f.path, name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Error("damaged segment cannot be moved and stays where it is", "path", f.path, "err", err)
		}
		return nil, to, nil
	}
	to, err = s.linkAside(f.path, name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Error("damaged segment cannot be kept in quarantine", "path", f.path, "err", err) // such as without hard links
	}
	if err := errors.Join(os.Rename(tmp, f.path), s.syncDir(filepath.Dir(f.path))); err != nil {
		return nil, "", errors.Join(err, saved.Close())
	}
	seg, err := segment.Open(f.path, s.segmentOptions(f.st, f.seq))
	if err != nil { // without a descriptor the one that is open does as well
		s.log.Warn("what was saved is read by the name that it had", "path", f.path, "err", err)
		if seg = saved; seg.Pin() != nil {
			s.log.Error("what was saved cannot be read until the next start", "path", f.path)
		}
	} else if err := saved.Close(); err != nil {
		s.log.Warn("segment does not close", "path", tmp, "err", err)
	}
	fresh = newSegmentFile(f.st, f.seq, seg)
	fresh.path = f.path
	fresh.newest.Store(f.newest.Load())
	s.hashSegment(ctx, fresh)
	return fresh, to, nil
}

// salvage copies every batch that can be read to a new, sealed segment at dst; nil when there is none.
func (s *Spool) salvage(ctx context.Context, f *segmentFile, dst string) (out *segment.Segment, err error) {
	if err := os.Remove(dst); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	_, err = f.with(func(seg *segment.Segment) (err error) {
		if err := seg.Readable(); damaged(err) {
			return nil // nothing of it: no new file is needed, nor room for one
		}
		in := seg.Info()
		o := s.segmentOptions(f.st, f.seq)
		o.Created = in.Created
		o.MaxSize = max(o.MaxSize, 2*in.FileBytes, int64(in.RawBytes)*5/4) // it may be of a time when segments were larger
		if out, err = segment.Create(dst, o); err != nil {
			return err
		}
		for _, p := range in.Partitions {
			if err := salvagePartition(ctx, seg, out, p); err != nil {
				return err
			}
		}
		if len(out.Info().Partitions) == 0 {
			return nil
		}
		return out.Seal(ctx, indexBody) // which syncs
	})
	if out == nil || err == nil && len(out.Info().Partitions) > 0 {
		return out, err
	}
	return nil, errors.Join(err, out.Close(), os.Remove(dst))
}

func salvagePartition(ctx context.Context, seg, out *segment.Segment, p segment.PartitionInfo) error {
	for from := p.First; from < p.Next; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var batches []segment.Batch
		next, err := seg.Read(p.Partition, from, 1<<20, func(b segment.Batch) error {
			recs, _, derr := decodeRecords(nil, b.Body, b.Partition, Offset(b.Base))
			if derr != nil {
				return &segment.CorruptionError{Path: seg.Path(), Partition: int(b.Partition), Base: b.Base, Reason: derr.Error()}
			}
			b.Expiries = make([]int64, len(recs))
			for i := range recs {
				b.Expiries[i] = recs[i].ExpiresAt
			}
			if b.Base < p.Next { // more is a transaction that failed: it is in another segment
				batches = append(batches, b)
			}
			return nil
		})
		if len(batches) > 0 {
			if werr := out.Write(seg.Applied(), batches); werr != nil {
				return werr
			}
		}
		var ce *segment.CorruptionError
		switch {
		case err == nil && next <= from:
			return nil
		case err == nil:
			from = next
		case errors.As(err, &ce) && ce.Partition == int(p.Partition):
			base, ok, serr := seg.Skip(p.Partition, ce.Base)
			if serr != nil && !damaged(serr) {
				return serr
			}
			if serr != nil || !ok {
				return nil // the rest of the partition is gone, other partitions may not be
			}
			from = base
		case damaged(err):
			return nil // likewise
		default:
			return err
		}
	}
	return nil
}

// replaceSegment puts fresh, or nothing, in f's place, and remembers which offsets that loses.
func (s *Spool) replaceSegment(f, fresh *segmentFile, before []segmentRange) (cost losses) {
	st := f.st
	lost := make(map[int][]lostRange)
	for _, r := range before {
		lost[r.Partition] = missingIn(fresh, r)
	}
	st.segMu.Lock()
	segs := make([]*segmentFile, 0, len(st.segs))
	for _, g := range st.segs {
		switch {
		case g != f:
			segs = append(segs, g)
		case fresh != nil:
			segs = append(segs, fresh)
		}
	}
	st.segs = segs
	st.lastSeq = max(st.lastSeq, f.seq)
	st.segMu.Unlock()
	st.bytes.Add(-f.bytes.Swap(0))
	for n, ls := range lost {
		p := st.parts[n]
		p.mu.Lock()
		for _, l := range ls {
			for _, l := range p.notLostLocked(l.From, l.To) { // the rest was lost when f was saved from a damaged one
				p.addLostLocked(l)
				st.dropped[dropDamaged].Add(uint64(l.To - l.From))
				cost.add(st.name, n, l.From, l.To)
			}
		}
		p.mu.Unlock()
		st.moveStart(p)
	}
	return cost
}

// missingIn are the offsets of r that fresh does not have.
func missingIn(fresh *segmentFile, r segmentRange) (lost []lostRange) {
	at := r.First
	if fresh != nil {
		_ = fresh.seg.Headers(context.Background(), uint16(r.Partition), uint64(r.First), func(b segment.Batch) error {
			if Offset(b.Base) > at {
				lost = append(lost, lostRange{From: at, To: Offset(b.Base), Reason: GapDamaged})
			}
			at = Offset(b.Next)
			return nil
		})
	}
	if at < r.Next {
		lost = append(lost, lostRange{From: at, To: r.Next, Reason: GapDamaged})
	}
	return lost
}
