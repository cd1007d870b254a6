package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Snapshot is the whole spool at one position of the journal: a copy of meta.db and the segments that belong to it. With these files
// alone, in a directory of their own, a spool starts and has every record and every change of state that was acknowledged before the
// call, with the same offsets and cursors.
type Snapshot struct {
	Time     time.Time
	LSN      uint64 // of the journal
	Meta     string // the copy of meta.db
	Segments []Sealed

	files []*segmentFile
}

// Snapshot takes one, with its copy of meta.db at metaPath. The segments stay as they are until Release: no retention removes them, also
// when the disk is full. Publishers are acknowledged meanwhile; segments that are written to are ended and sealed.
func (s *Spool) Snapshot(ctx context.Context, metaPath string) (*Snapshot, error) {
	n := &Snapshot{Time: s.Now(), Meta: metaPath}
	if err := s.cut(n); err != nil {
		n.Release()
		return nil, fmt.Errorf("spool: snapshot: %w", err)
	}
	if err := s.sealOf(ctx, n); err != nil {
		n.Release()
		return nil, fmt.Errorf("spool: snapshot: %w", err)
	}
	return n, nil
}

// Release lets retention have the segments again. Twice is fine.
func (n *Snapshot) Release() {
	for _, f := range n.files {
		f.pinned.Add(-1)
	}
	n.files = nil
}

// cut copies meta.db and ends the active segments at the same position: nobody moves records or changes meanwhile.
func (s *Spool) cut(n *Snapshot) error {
	s.cleanMu.Lock() // nothing is removed meanwhile. Taken before materialiseMu
	defer s.cleanMu.Unlock()
	s.materialiseMu.Lock()
	defer s.materialiseMu.Unlock()
	if err := s.materialiseLocked(true); err != nil {
		return err
	}
	n.LSN = s.metaApplied
	for _, st := range s.streams {
		for _, f := range st.segments() {
			if f.bad.Load() {
				return fmt.Errorf("segment %s is damaged and not set aside yet: try again", f.path)
			}
			f.pinned.Add(1)
			n.files = append(n.files, f)
			if !f.sealed.Load() {
				f.rolled.Store(true)
			}
		}
	}
	return s.copyMeta(n.Meta)
}

// copyMeta copies meta.db. The copy says that nothing of a journal is applied: it has one of its own.
func (s *Spool) copyMeta(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := s.meta.view(func(tx *bolt.Tx) error { return tx.CopyFile(path, 0o640) }); err != nil {
		return err
	}
	m, err := openMeta(path, false)
	if err != nil {
		return err
	}
	err = m.update(func(tx *bolt.Tx) error {
		if err := m.putNumber(tx, keyApplied, 0); err != nil {
			return err
		}
		return m.putNumber(tx, keyQuarantined, 0)
	})
	return errors.Join(err, m.close())
}

// sealOf waits until all segments of the snapshot are sealed. One without a record is left out.
func (s *Spool) sealOf(ctx context.Context, n *Snapshot) error {
	s.cleanMu.Lock()
	for _, st := range s.streams {
		s.sealRolled(ctx, st)
	}
	s.cleanMu.Unlock()
	for _, f := range n.files {
		var in segment.Info
		ok, err := f.with(func(seg *segment.Segment) error { in = seg.Info(); return nil })
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("segment %s is gone", f.path)
		case !in.Sealed:
			return errors.Join(fmt.Errorf("segment %s could not be sealed: try again", f.path), ctx.Err())
		}
		n.Segments = append(n.Segments, sealedOf(in))
	}
	return nil
}

// SegmentFile is where a segment lies below a spool's directory.
func SegmentFile(dir, stream string, seq uint64) string {
	return filepath.Join(dir, "seg", stream, segmentName(seq))
}

// MakeTree makes the directories that a spool of these streams has, synced, so that files can be put there for its first start.
func MakeTree(dir string, streams []string) error {
	for _, st := range streams {
		if !validStreamName(st) {
			return fmt.Errorf("spool: stream name %q: %w", st, ErrInvalid)
		}
		if err := vfs.OS.MkdirAll(filepath.Join(dir, "seg", st), 0o750); err != nil {
			return err
		}
	}
	for _, name := range []string{"journal", "quarantine", "seg"} {
		if err := vfs.OS.MkdirAll(filepath.Join(dir, name), 0o750); err != nil {
			return err
		}
	}
	return vfs.OS.SyncDir(dir)
}
