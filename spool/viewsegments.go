package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// openSegments opens what recovery would open, read-only.
func (v *View) openSegments(r *recovery) error {
	dirs, err := os.ReadDir(v.s.path("seg"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range dirs {
		if !d.IsDir() || !validStreamName(d.Name()) {
			v.found(Finding{Severity: SeverityNote, Path: v.s.path("seg", d.Name()), What: "is no stream's directory", NextStart: "left alone"})
			continue
		}
		if err := v.openStream(r, d.Name()); err != nil {
			return err
		}
	}
	for name, segs := range r.catalog {
		for seq, rec := range segs {
			if rec.Removed {
				continue
			}
			path := filepath.Join(v.s.segmentDir(name), segmentName(seq))
			v.lose(name, seq, path, rec, "file is missing", "")
		}
	}
	return nil
}

func (v *View) openStream(r *recovery, name string) error {
	entries, err := os.ReadDir(v.s.segmentDir(name))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(v.s.segmentDir(name), e.Name())
		seq, ok := parseSegmentName(e.Name())
		switch {
		case ok:
			if err := v.openSegment(r, name, seq, path); err != nil {
				return err
			}
		case strings.HasSuffix(e.Name(), segmentSuffix+".rewrite"), strings.HasSuffix(e.Name(), segmentSuffix+".tmp"):
			v.found(Finding{Severity: SeverityNote, Path: path, Stream: name, What: "unfinished file of an interrupted run", NextStart: "removed or replaced; nothing needs it"})
		default:
			v.found(Finding{Severity: SeverityNote, Path: path, Stream: name, What: "is no segment", NextStart: "left alone"})
		}
	}
	if st := v.s.byName[name]; st != nil {
		for i, f := range st.segs {
			if !f.sealed.Load() && i < len(st.segs)-1 {
				f.rolled.Store(true)
			}
		}
	}
	return nil
}

func (v *View) openSegment(r *recovery, name string, seq uint64, path string) error {
	st := v.s.streamOnDisk(name, 0)
	rec, known := r.catalog[name][seq]
	delete(r.catalog[name], seq)
	st.lastSeq = max(st.lastSeq, seq)
	if rec.Removed {
		v.found(Finding{Severity: SeverityNote, Path: path, Stream: name, What: "its removal was interrupted", NextStart: "removed"})
		return nil
	}
	o := v.s.segmentOptions(st, seq)
	o.ReadOnly = true
	seg, err := segment.Open(path, o)
	switch {
	case err == nil:
	case errors.Is(err, segment.ErrUnsupported):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case errors.Is(err, segment.ErrLocked):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case damaged(err):
		v.bad = append(v.bad, v.damagedListing(name, seq, path, err))
		if !known {
			v.found(Finding{
				Severity: SeverityDamage, Path: path, Stream: name, What: detailOf(err), seq: seq,
				NextStart: "set aside in quarantine/; meta.db does not know what it held",
			})
			return nil
		}
		v.lose(name, seq, path, rec, detailOf(err), "set aside in quarantine/, ")
		return nil
	default:
		return err
	}
	f := newSegmentFile(st, seq, seg)
	if f.sealed.Load() && rec.SHA256 != "" {
		f.hash.Store(&fileHash{size: rec.Bytes, sum: rec.SHA256})
	}
	for _, rg := range f.ranges {
		st.grow(rg.Partition + 1)
	}
	st.segs = append(st.segs, f)
	return nil
}

func (v *View) damagedListing(stream string, seq uint64, path string, err error) SegmentListing {
	l := SegmentListing{Stream: stream, Sequence: seq, File: filepath.Base(path), State: "damaged", Problem: detailOf(err)}
	if fi, err := os.Stat(path); err == nil {
		l.FileBytes = fi.Size()
	}
	return l
}

// lose notes what a segment held that cannot be opened. The journal may still have some of it.
func (v *View) lose(stream string, seq uint64, path string, rec segmentRecord, what, does string) {
	st := v.s.streamOnDisk(stream, 0)
	told := false
	for _, rg := range rec.Partitions {
		st.grow(rg.Partition + 1)
		p := st.parts[rg.Partition]
		if rg.Next <= p.start || rg.Next <= rg.First {
			continue
		}
		told = true
		from := max(rg.First, p.start)
		v.found(Finding{
			Severity: SeverityDamage, Path: path, What: what, seq: seq,
			NextStart: does + "readers see a gap (damaged)",
		}.in(stream, rg.Partition, from, rg.Next))
		p.lost = append(p.lost, lostRange{From: from, To: rg.Next, Reason: GapDamaged})
	}
	if !told {
		v.found(Finding{Severity: SeverityDamage, Path: path, Stream: stream, What: what, seq: seq, NextStart: does + "no record is lost"})
	}
}

// firstKept is the first offset of p that can be read.
func (st *stream) firstKept(p *partition) Offset {
	if f, first := st.holder(p.num, 0); f != nil {
		return min(first, p.applied)
	}
	return p.applied
}

// holder is the segment that holds o of a partition, or else the first one behind it, and the first of its offsets that is
// not below o.
func (st *stream) holder(partition int, o Offset) (f *segmentFile, from Offset) {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	for _, f := range st.segs {
		if r, ok := f.rangeOf(partition); ok && r.Next > o {
			return f, max(o, r.First)
		}
	}
	return nil, 0
}
