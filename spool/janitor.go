package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
)

const janitorInterval = time.Second // how late retention, expiry and the disk's free space may be noticed

// janitorLoop seals, expires and trims segments, sets damaged ones aside, and tells Append whether there is room.
func (s *Spool) janitorLoop(ctx context.Context) {
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.janitorNow:
		}
		s.clean(ctx)
	}
}

func (s *Spool) kickJanitor() { signal(s.janitorNow) }

// clean is one round of the janitor.
func (s *Spool) clean(ctx context.Context) {
	s.cleanMu.Lock()
	defer s.cleanMu.Unlock()
	if s.noticeGone() {
		return
	}
	now := s.clock.now()
	s.noticeClockStep()
	s.hot.watch(s, now)
	s.lookAfterFiles()
	for _, st := range s.streams {
		s.rollOld(st, now)
		s.sealRolled(ctx, st)
		s.quarantineBad(ctx, st)
		s.trimExpired(ctx, st, now)
		s.trimOld(ctx, st, now)
		s.trimStream(ctx, st)
		s.rewriteExpired(ctx, st, now)
	}
	s.trimDisk(ctx)
	s.checkRoom()
	s.trimQuarantine(ctx)
	s.hashOld(ctx, now)
	s.saveHashes()
	s.lookAside()
}

// rollOld ends the writing to a segment that is old enough, also when nothing comes any more.
func (s *Spool) rollOld(st *stream, now int64) {
	s.materialiseMu.Lock() // nobody writes to it meanwhile
	defer s.materialiseMu.Unlock()
	if f := st.active(); f != nil && len(f.ranges) > 0 && f.age(now) >= s.cfg.Segment.MaxAge.Std() {
		f.rolled.Store(true)
	}
}

// sealRolled seals what gets nothing more. One that cannot be sealed now stays readable as it is and is tried again.
func (s *Spool) sealRolled(ctx context.Context, st *stream) {
	for _, f := range st.segments() {
		if f.sealed.Load() || !f.rolled.Load() || f.bad.Load() {
			continue
		}
		_, err := f.with(func(seg *segment.Segment) error { return seg.Seal(ctx, indexBody) })
		if err != nil {
			if errors.Is(err, segment.ErrFailed) && s.unsealed(f) { // no write to it will ever succeed: it gets a copy
				f.bad.Store(true)
			}
			s.segmentFailed(f, fmt.Errorf("seal: %w", err))
			continue
		}
		st.segMu.Lock()
		f.refreshLocked()
		st.segMu.Unlock()
		f.catalogued.Store(false)
		s.hashSegment(ctx, f)
		s.metrics.sealed.Inc()
		s.tellSealed()
		s.log.Info("segment sealed", "stream", st.name, "segment", f.seq, "bytes", f.bytes.Load())
	}
}

func (s *Spool) unsealed(f *segmentFile) (yes bool) {
	_, _ = f.with(func(seg *segment.Segment) error { yes = !seg.Info().Sealed; return nil })
	return yes
}

// segmentFailed decides what an error of a segment means: damage sets it aside, anything else passes.
func (s *Spool) segmentFailed(f *segmentFile, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if damaged(err) && f.bad.CompareAndSwap(false, true) {
		s.log.Warn("segment is damaged and will be set aside", "stream", f.st.name, "path", f.path, "err", err)
		s.kickJanitor()
		return
	}
	if !damaged(err) && s.throttle.allow(s.clock.now()) {
		s.log.Warn("segment cannot be used now", "stream", f.st.name, "path", f.path, "err", err)
	}
}
