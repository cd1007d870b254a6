package spool

import (
	"syscall"

	"github.com/forebay-gateway/forebay/spool/segment"
)

const (
	poolShare = 16 // the part of the descriptors that sealed segments may take, one in so many: two each
	poolMin   = 16
	poolMax   = 512
)

// openSegments is how many sealed segments may be open.
func openSegments() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return poolMin
	}
	return int(min(max(r.Cur/poolShare/2, poolMin), poolMax))
}

const looksAtOnce = 256 // sealed segments whose file is looked after in a round, so that thousands take a few seconds

// lookAfterFiles finds segments whose file somebody has removed or replaced. An open one can still be read: it is copied to a
// new file. What is gone becomes a gap. Of an active one this comes before much is written that no start would find.
func (s *Spool) lookAfterFiles() {
	var sealed []*segmentFile
	for _, st := range s.streams {
		for _, f := range st.segments() {
			if f.sealed.Load() {
				sealed = append(sealed, f)
				continue
			}
			s.lookAfter(f)
		}
	}
	for range min(len(sealed), looksAtOnce) {
		s.nextLook = (s.nextLook + 1) % len(sealed)
		s.lookAfter(sealed[s.nextLook])
	}
}

func (s *Spool) lookAfter(f *segmentFile) {
	if f.bad.Load() {
		return
	}
	_, err := f.with(func(seg *segment.Segment) error { return seg.Missing() })
	if err == nil {
		return
	}
	s.segmentFailed(f, err)
	if !f.sealed.Load() {
		s.roll(f) // nothing more is written to it
	}
}
