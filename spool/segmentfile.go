package spool

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// segmentFile is a segment and what the stream knows about it.
type segmentFile struct {
	st   *stream
	seq  uint64
	path string

	// use is held for reading while somebody reads the file, and for writing to close, move or replace it.
	use sync.RWMutex
	seg *segment.Segment // nil once it is gone

	ranges     []segmentRange // guarded by st.segMu; ascending by partition
	newest     atomic.Int64   // own time at which its last record came, or later; 0 is not known
	created    int64          // Unix nanoseconds
	sealed     atomic.Bool
	rolled     atomic.Bool // it gets nothing more and waits for its sealing
	bytes      atomic.Int64
	catalogued atomic.Bool              // its last state is in the catalog
	hash       atomic.Pointer[fileHash] // nil: not known yet, or active
	bad        atomic.Bool              // damaged: the janitor sets it aside
	stuck      atomic.Bool              // it is bad, and the last try to replace it has failed: for want of room

	pinned atomic.Int32 // a backup copies it: it stays as it is
}

const segmentSuffix = ".db"

func segmentName(seq uint64) string { return fmt.Sprintf("%016x%s", seq, segmentSuffix) }

func parseSegmentName(name string) (seq uint64, ok bool) {
	hex, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(hex) != 16 {
		return 0, false
	}
	seq, err := strconv.ParseUint(hex, 16, 64)
	return seq, err == nil
}

func (s *Spool) segmentDir(stream string) string { return filepath.Join(s.cfg.Dir, "seg", stream) }

// segmentOptions leave room above the size at which a segment is rolled: one transaction, the index and a step of growth.
func (s *Spool) segmentOptions(st *stream, seq uint64) segment.Options {
	return segment.Options{
		Stream: st.name, Sequence: seq, Codec: s.codec, Keys: s.keys,
		MaxSize: 2*int64(s.cfg.Segment.MaxSize) + 2*segment.MaxBody + 16<<20,
		Now:     s.OwnNow, Pool: s.pool,
	}
}

// newSegmentFile wraps an open segment. The stream does not have it yet.
func newSegmentFile(st *stream, seq uint64, seg *segment.Segment) *segmentFile {
	f := &segmentFile{st: st, seq: seq, path: seg.Path(), seg: seg}
	f.refreshLocked()
	return f
}

// refreshLocked takes over what the segment says about itself. st.segMu is held for writing, or f is not shared yet.
func (f *segmentFile) refreshLocked() {
	in := f.seg.Info()
	f.ranges = f.ranges[:0:0] // readers may hold the old one
	for _, p := range in.Partitions {
		f.ranges = append(f.ranges, segmentRange{Partition: int(p.Partition), First: Offset(p.First), Next: Offset(p.Next)})
	}
	f.created = in.Created
	f.sealed.Store(in.Sealed)
	f.st.bytes.Add(in.FileBytes - f.bytes.Swap(in.FileBytes))
}

// rangeOf is what the segment holds of a partition. st.segMu is held.
func (f *segmentFile) rangeOf(partition int) (r segmentRange, ok bool) {
	for _, r := range f.ranges {
		if r.Partition == partition {
			return r, true
		}
	}
	return r, false
}

func (f *segmentFile) record() segmentRecord {
	f.st.segMu.RLock()
	defer f.st.segMu.RUnlock()
	r := segmentRecord{Sealed: f.sealed.Load(), Bytes: f.bytes.Load(), Partitions: f.ranges}
	if h := f.hash.Load(); h != nil && r.Sealed {
		r.Bytes, r.SHA256 = h.size, h.sum
	}
	if r.Sealed {
		r.Newest = f.newest.Load()
	}
	return r
}

// with runs fn with the open segment; false when it is gone, which means: look again.
func (f *segmentFile) with(fn func(seg *segment.Segment) error) (bool, error) {
	f.use.RLock()
	defer f.use.RUnlock()
	if f.seg == nil {
		return false, nil
	}
	return true, fn(f.seg)
}

// close waits for readers and closes the file.
func (f *segmentFile) close() error {
	f.use.Lock()
	defer f.use.Unlock()
	if f.seg == nil {
		return nil
	}
	err := f.seg.Close()
	f.seg = nil
	return err
}

// findRange is the segment that holds o of partition p, or else the first one after it, and what it holds of p; f is nil
// when no segment has any.
func (st *stream) findRange(p int, o Offset) (f *segmentFile, in segmentRange) {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	lo, hi := 0, len(st.segs)
	for lo < hi { // skip the segments that end at or before o; those without p are decided by the ones after them
		mid := (lo + hi) / 2
		k := mid
		var r segmentRange
		ok := false
		for ; k < hi; k++ {
			if r, ok = st.segs[k].rangeOf(p); ok {
				break
			}
		}
		switch {
		case !ok:
			hi = mid
		case r.Next <= o:
			lo = k + 1
		default:
			hi = mid
		}
	}
	for _, f := range st.segs[lo:] {
		if r, ok := f.rangeOf(p); ok && r.Next > o {
			return f, r
		}
	}
	return nil, segmentRange{}
}

// segments are those of st now, in the order of the log.
func (st *stream) segments() []*segmentFile {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	return append([]*segmentFile(nil), st.segs...)
}

// active is the segment that is written to, nil when there is none.
func (st *stream) active() *segmentFile {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	if n := len(st.segs); n > 0 && !st.segs[n-1].sealed.Load() && !st.segs[n-1].bad.Load() && !st.segs[n-1].rolled.Load() {
		return st.segs[n-1]
	}
	return nil
}

// nextSeq is above every sequence number that the stream ever used.
func (st *stream) nextSeq() uint64 {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	if n := len(st.segs); n > 0 {
		return max(st.lastSeq, st.segs[n-1].seq) + 1
	}
	return st.lastSeq + 1
}

func (st *stream) remove(f *segmentFile) {
	st.segMu.Lock()
	defer st.segMu.Unlock()
	for i := range st.segs {
		if st.segs[i] == f {
			st.lastSeq = max(st.lastSeq, f.seq)
			st.segs = append(append([]*segmentFile(nil), st.segs[:i]...), st.segs[i+1:]...)
			return
		}
	}
}

// damaged tells whether err means that the segment cannot be trusted.
func damaged(err error) bool {
	var ce *segment.CorruptionError
	var own *CorruptionError
	return errors.As(err, &ce) || errors.As(err, &own)
}

// age of a segment at now.
func (f *segmentFile) age(now int64) time.Duration { return time.Duration(now - f.created) }
