package spool

import (
	"errors"
	"io/fs"

	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// activeSegment is the segment that st writes to; a new one is made when there is none.
func (s *Spool) activeSegment(st *stream) (*segmentFile, error) {
	if f := st.active(); f != nil {
		if len(f.ranges) == 0 || f.age(s.clock.now()) < s.cfg.Segment.MaxAge.Std() {
			return f, nil
		}
		s.roll(f)
	}
	seq := st.nextSeq()
	seg, err := s.createSegment(st, seq)
	if errors.Is(err, fs.ErrExist) { // whatever it is: it must not stop the stream
		s.log.Warn("something else lies in the place of a new segment", "stream", st.name, "segment", seq)
		st.segMu.Lock()
		st.lastSeq = max(st.lastSeq, seq)
		st.segMu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	f := newSegmentFile(st, seq, seg)
	st.segMu.Lock()
	st.segs = append(st.segs[:len(st.segs):len(st.segs)], f)
	st.segMu.Unlock()
	s.log.Info("segment begun", "stream", st.name, "segment", seq)
	return f, nil
}

func (s *Spool) createSegment(st *stream, seq uint64) (*segment.Segment, error) {
	path := s.segmentDir(st.name) + "/" + segmentName(seq)
	seg, err := segment.Create(path, s.segmentOptions(st, seq))
	if !errors.Is(err, fs.ErrNotExist) {
		return seg, err
	}
	// Somebody has removed the directory. The journal, and with it all other streams, would stand still.
	if err := vfs.OS.MkdirAll(s.segmentDir(st.name), 0o750); err != nil {
		return nil, err
	}
	return segment.Create(path, s.segmentOptions(st, seq))
}

// roll ends the writing to f; the janitor seals it.
func (s *Spool) roll(f *segmentFile) {
	f.rolled.Store(true)
	s.kickJanitor()
}
