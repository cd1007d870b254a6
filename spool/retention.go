package spool

import (
	"context"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// trimExpired removes sealed segments in which no record lives any more, wherever they are in the log.
func (s *Spool) trimExpired(ctx context.Context, st *stream, now int64) {
	for _, f := range st.segments() {
		if !f.sealed.Load() || f.bad.Load() || f.pinned.Load() > 0 {
			continue
		}
		expired := false
		_, _ = f.with(func(seg *segment.Segment) error {
			in := seg.Info()
			latest, never := in.Expiry.Latest()
			expired = !never && in.Records > 0 && latest <= now
			return nil
		})
		if expired {
			s.removeSegment(ctx, f, gapExpired)
		}
	}
}

// trimOld removes what retention does not keep and nobody waits for.
func (s *Spool) trimOld(ctx context.Context, st *stream, now int64) {
	if st.cfg.Retention == 0 {
		return
	}
	for {
		f := st.oldest()
		if f == nil || s.newest(f) > now-int64(st.cfg.Retention) || !s.mayAge(f) {
			return
		}
		if !s.removeSegment(ctx, f, GapRetention) {
			return
		}
	}
}

// oldest is the first segment when it may be removed.
func (st *stream) oldest() *segmentFile {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	if len(st.segs) == 0 || !st.segs[0].sealed.Load() || st.segs[0].bad.Load() || st.segs[0].pinned.Load() > 0 {
		return nil
	}
	return st.segs[0]
}

// newest is when the newest record of a segment came, in the spool's own time: those that records have are the wall clock's. Where
// the catalog does not know it, it was sealed after that.
func (s *Spool) newest(f *segmentFile) (t int64) {
	if t := f.newest.Load(); t != 0 {
		return t
	}
	_, _ = f.with(func(seg *segment.Segment) error {
		in := seg.Info()
		t = max(in.SealedAt, in.Created)
		return nil
	})
	return t
}

// delivered tells whether every protected cursor has passed the segment.
func (s *Spool) delivered(f *segmentFile) bool {
	if !f.st.configured {
		return false // nobody has said that it may go
	}
	f.st.segMu.RLock()
	ranges := f.ranges
	f.st.segMu.RUnlock()
	for _, r := range ranges {
		if o, ok := s.cursors.floor(f.st.parts[r.Partition]); ok && o < r.Next {
			return false
		}
	}
	return true
}

// trimStream keeps a stream's own max_size.
func (s *Spool) trimStream(ctx context.Context, st *stream) {
	limit := int64(st.cfg.MaxSize)
	if limit == 0 {
		return
	}
	reserve := min(int64(s.cfg.Segment.MaxSize), limit/8)
	over := func() bool { return st.bytes.Load() > limit-2*reserve }
	for over() {
		f := st.oldest()
		if f == nil || !s.mayShrink(f) || !s.removeSegment(ctx, f, s.shrinkReason(f)) {
			break
		}
	}
	full := st.full.Load()
	switch used := st.bytes.Load(); {
	case used > limit-reserve:
		full = true
	case used <= limit-reserve-reserve/2:
		full = false
	}
	if full && st.cfg.WhenFull == FullDropOldest {
		for st.bytes.Load() > limit-reserve-reserve/2 && s.dropOldest(ctx, st) {
		}
		full = st.bytes.Load() > limit-reserve
	}
	if full && st.oldest() == nil {
		s.rollForRoom(st) // all of it is in the active segment: sealed, it can go when it is delivered
	}
	if full != st.full.Swap(full) {
		if full {
			s.log.Warn("stream is full", "stream", st.name, "used", approx(st.bytes.Load()), "max_size", st.cfg.MaxSize, "when_full", st.cfg.WhenFull)
		} else {
			s.log.Info("stream has room again", "stream", st.name, "used", approx(st.bytes.Load()), "max_size", st.cfg.MaxSize)
		}
		s.roomChanged()
	}
}

// dropOldest removes the oldest segment of a stream although not everybody has had it.
func (s *Spool) dropOldest(ctx context.Context, st *stream) bool {
	f := st.oldest()
	if f == nil {
		s.rollForRoom(st)
		return false
	}
	reason := GapDropped
	if s.delivered(f) {
		reason = s.shrinkReason(f)
	}
	return s.removeSegment(ctx, f, reason)
}

func (s *Spool) rollForRoom(st *stream) {
	s.materialiseMu.Lock()
	defer s.materialiseMu.Unlock()
	if f := st.active(); f != nil && len(f.ranges) > 0 {
		f.rolled.Store(true)
		s.kickJanitor()
	}
}

// trimDisk keeps max_size and min_free: delivered segments go first, the oldest of all streams before the others, then
// those of the streams that say drop_oldest.
func (s *Spool) trimDisk(ctx context.Context) {
	for s.roomNow().trim {
		f := s.oldestOf(func(f *segmentFile) bool { return s.delivered(f) && s.kept(f) == KeepNot })
		if f == nil {
			f = s.oldestOf(s.mayShrink) // what is stored elsewhere goes before what is not
		}
		if f == nil || !s.removeSegment(ctx, f, s.shrinkReason(f)) {
			break
		}
	}
	s.checkRoom()
	for s.full.Load() {
		f := s.oldestOf(func(f *segmentFile) bool { return f.st.cfg.WhenFull == FullDropOldest })
		if f == nil || !s.dropOldest(ctx, f.st) {
			break
		}
		s.checkRoom()
	}
	if s.full.Load() {
		for _, st := range s.streams {
			if st.oldest() == nil {
				s.rollForRoom(st)
			}
		}
	}
}

func (s *Spool) oldestOf(ok func(f *segmentFile) bool) (oldest *segmentFile) {
	var at int64
	for _, st := range s.streams {
		if f := st.oldest(); f != nil && ok(f) {
			if t := s.newest(f); oldest == nil || t < at {
				oldest, at = f, t
			}
		}
	}
	return oldest
}
