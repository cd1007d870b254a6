package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// openSegments opens every segment of every stream on the disk.
func (r *recovery) openSegments() error {
	dirs, err := os.ReadDir(r.s.path("seg"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if !d.IsDir() || !validStreamName(d.Name()) {
			r.s.log.Warn("something else lies among the segments and is left alone", "path", r.s.path("seg", d.Name()))
			continue
		}
		if err := r.openStream(d.Name()); err != nil {
			return err
		}
	}
	for name, segs := range r.catalog {
		for seq, rec := range segs {
			if !rec.Removed {
				r.s.log.Warn("segment is missing; what the journal has of it comes back", "path", r.s.segmentDir(name)+"/"+segmentName(seq))
				r.missingFiles++
				r.lose(name, seq, rec)
			}
		}
	}
	for _, st := range r.s.streams {
		if err := vfs.OS.MkdirAll(r.s.segmentDir(st.name), 0o750); err != nil {
			return err
		}
	}
	return nil
}

// settleClock has the own time go on behind what segments know of it, when meta.db does not: a wall clock that is behind would take
// it back, and everything would be kept for so much longer.
func (r *recovery) settleClock() {
	if r.seen.Own == 0 {
		for _, st := range r.s.streams {
			for _, f := range st.segments() {
				_, _ = f.with(func(seg *segment.Segment) error {
					in := seg.Info()
					r.s.clock.notBefore(max(in.Created, in.SealedAt))
					return nil
				})
			}
		}
	}
}

func (r *recovery) openStream(name string) error {
	dir := r.s.segmentDir(name)
	entries, err := os.ReadDir(dir) // sorted, and the names sort by sequence
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		seq, ok := parseSegmentName(e.Name())
		switch {
		case ok:
			if err := r.openSegment(r.s.streamOnDisk(name, 0), seq, path); err != nil {
				return err
			}
		case strings.HasSuffix(e.Name(), segmentSuffix+".rewrite"):
			_ = os.Remove(path) // the segment that it was to replace is still there
		default:
			r.s.log.Warn("something else lies among the segments and is left alone", "path", path)
		}
	}
	st := r.s.byName[name]
	if st == nil {
		return nil
	}
	for i, f := range st.segs {
		if !f.sealed.Load() && i < len(st.segs)-1 {
			f.rolled.Store(true)
		}
	}
	return nil
}

func (r *recovery) openSegment(st *stream, seq uint64, path string) error {
	s := r.s
	rec, known := r.catalog[st.name][seq]
	delete(r.catalog[st.name], seq)
	if rec.Removed {
		s.log.Info("removal of a segment is finished", "path", path)
		if err := os.Remove(path); err != nil {
			s.log.Warn("removed segment keeps its place on the disk", "path", path, "err", err)
		}
		return nil
	}
	seg, err := segment.Open(path, s.segmentOptions(st, seq))
	switch {
	case err == nil:
	case errors.Is(err, segment.ErrUnsupported):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case errors.Is(err, segment.ErrLocked):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case damaged(err):
		to, qerr := s.setAside(path, st.name+"-"+filepath.Base(path))
		if qerr != nil {
			return errors.Join(err, qerr)
		}
		s.log.Warn("segment is damaged and was set aside; what the journal has of it comes back", "path", path, "err", err, "quarantine", to)
		if known {
			r.lose(st.name, seq, rec)
		}
		st.lastSeq = max(st.lastSeq, seq)
		return nil
	default:
		return err
	}
	f := newSegmentFile(st, seq, seg)
	if f.sealed.Load() && rec.SHA256 != "" && rec.Bytes == f.bytes.Load() {
		f.hash.Store(&fileHash{size: rec.Bytes, sum: rec.SHA256})
	}
	f.newest.Store(rec.Newest)
	f.catalogued.Store(known && rec.Sealed && slices.Equal(rec.Partitions, f.ranges))
	for _, rg := range f.ranges {
		st.grow(rg.Partition + 1)
	}
	st.segs = append(st.segs, f)
	r.segments++
	return nil
}

// lose notes what a segment held that is gone. The journal, or another segment, may have it all the same.
func (r *recovery) lose(stream string, seq uint64, rec segmentRecord) {
	st := r.s.byName[stream]
	r.changed = true
	for _, rg := range rec.Partitions {
		st.grow(rg.Partition + 1)
		p := st.parts[rg.Partition]
		if rg.Next <= p.start || rg.Next <= rg.First {
			continue
		}
		r.gone[p] = append(r.gone[p], lostRange{From: rg.First, To: rg.Next})
	}
	key := segmentKey(stream, seq)
	if err := r.s.meta.update(func(tx *bolt.Tx) error { return tx.Bucket(bucketSegments).Delete(key) }); err != nil {
		r.s.log.Warn("catalog keeps a lost segment", "stream", stream, "segment", seq, "err", err)
	}
}

// settlePartitions sets where each partition's segments end.
func (r *recovery) settlePartitions() {
	for _, st := range r.s.streams {
		for _, p := range st.parts {
			have := p.start
			for _, f := range st.segs {
				if rg, ok := f.rangeOf(p.num); ok {
					have = max(have, rg.Next)
				}
			}
			p.end, p.applied = have, have
			if have < r.floor[p] {
				r.missing = true
			}
		}
	}
}

// noteHoles remembers and counts what no segment has below the partitions' ends. What is above them is the journal's.
func (r *recovery) noteHoles() {
	for _, st := range r.s.streams {
		for _, p := range st.parts {
			at, first := p.start, true
			for _, f := range st.segs {
				rg, ok := f.rangeOf(p.num)
				switch {
				case !ok:
					continue
				case !first:
					r.hole(p, at, rg.First)
				default: // what is below the first segment may have been removed with good reason
					for _, l := range r.gone[p] {
						r.hole(p, max(at, l.From), min(l.To, rg.First))
					}
				}
				at, first = max(at, rg.Next), false
			}
		}
	}
}

// hole remembers and counts as lost what is not known to be gone already.
func (r *recovery) hole(p *partition, from, to Offset) {
	for _, l := range p.notLostLocked(from, to) {
		r.lost.add(p.st.name, p.num, l.From, l.To)
		p.addLostLocked(l)
		p.st.dropped[dropDamaged].Add(uint64(l.To - l.From))
		r.changed = true
	}
}
