package spool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

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

func (st *stream) segments() []*segmentFile {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	return append([]*segmentFile(nil), st.segs...)
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

// removeSegment takes a segment out of the log and removes its file: first the catalog says so, then the file goes, in
// steps that do not stall the journal's syncs, then the catalog forgets it. A crash in between is finished at the start.
func (s *Spool) removeSegment(ctx context.Context, f *segmentFile, reason string) bool {
	st := f.st
	records := s.forget(f, reason)
	if err := s.tombstone(f); err != nil {
		// A full disk may refuse the catalog too. The file goes all the same: that makes the room.
		s.log.Warn("catalog cannot be written, segment is removed all the same", "path", f.path, "err", err)
	}
	if err := f.close(); err != nil {
		s.log.Warn("segment does not close", "path", f.path, "err", err)
	}
	if err := segment.Remove(ctx, f.path); err != nil {
		s.log.Warn("segment cannot be removed now, it goes at the next start", "path", f.path, "err", err)
		return false
	}
	st.bytes.Add(-f.bytes.Swap(0))
	s.uncatalogue(f)
	s.metrics.removed.WithLabelValues(reason).Inc()
	s.log.Info("segment removed", "stream", st.name, "segment", f.seq, "reason", reason, "records", records)
	s.checkRoom()
	return true
}

// forget takes f out of its stream, moves the log starts, and counts what that loses.
func (s *Spool) forget(f *segmentFile, reason string) (records uint64) {
	st := f.st
	st.segMu.RLock()
	ranges := f.ranges
	st.segMu.RUnlock()
	floors := make([]Offset, len(ranges))
	for i, r := range ranges {
		o, ok := s.cursors.floor(st.parts[r.Partition])
		if !ok {
			o = r.Next
		}
		floors[i] = max(r.First, o)
	}
	now := s.clock.now()
	_, _ = f.with(func(seg *segment.Segment) error {
		in := seg.Info()
		live, _ := in.Expiry.Live(now)
		st.expired.Add(in.Records - min(live, in.Records))
		return nil
	})
	for i, r := range ranges {
		p := st.parts[r.Partition]
		records += uint64(r.Next - r.First)
		var undelivered uint64
		if r.Next > floors[i] {
			undelivered = uint64(r.Next - floors[i])
		}
		switch reason {
		case GapDropped:
			st.dropped[dropOldest].Add(undelivered)
		case GapDamaged:
			st.dropped[dropDamaged].Add(uint64(r.Next - r.First))
		case GapNotStored:
			st.dropped[dropNotStored].Add(uint64(r.Next - r.First))
		}
		p.mu.Lock()
		if reason != GapRetention {
			p.addLostLocked(lostRange{From: r.First, To: r.Next, Reason: reason})
		}
		p.mu.Unlock()
		st.moveStartPast(p, f) // before it is gone: a reader must not take it for a hole
	}
	st.remove(f)
	return records
}

// moveStart sets the log start to the first offset that can be read.
func (st *stream) moveStart(p *partition) { st.moveStartPast(p, nil) }

// moveStartPast is moveStart as if without were gone already.
func (st *stream) moveStartPast(p *partition, without *segmentFile) {
	first := NoOffset
	for _, f := range st.segments() {
		st.segMu.RLock()
		r, ok := f.rangeOf(p.num)
		st.segMu.RUnlock()
		if ok && f != without {
			first = r.First
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = max(p.start, min(first, p.applied))
}

func (s *Spool) tombstone(f *segmentFile) error {
	return s.meta.update(func(tx *bolt.Tx) error {
		if err := s.putCatalog(tx); err != nil {
			return err
		}
		rec := f.record()
		rec.Removed = true
		return putJSON(tx.Bucket(bucketSegments), segmentKey(f.st.name, f.seq), rec)
	})
}

// uncatalogue forgets a removed segment, but for the highest number of its stream: that one stays, as removed, until there is a higher
// one. Else a start that finds no segment would give numbers out again, and what is stored elsewhere goes by them.
func (s *Spool) uncatalogue(f *segmentFile) {
	highest := f.seq+1 == f.st.nextSeq()
	if err := s.meta.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSegments)
		if !highest {
			if err := b.Delete(segmentKey(f.st.name, f.seq)); err != nil {
				return err
			}
		}
		return forgetRemoved(b, f.st.name, f.seq)
	}); err != nil && s.throttle.allow(s.clock.now()) {
		s.log.Warn("catalog keeps a removed segment until the next start", "path", f.path, "err", err)
	}
}

// forgetRemoved deletes the numbers below seq that stayed although their segments are removed.
func forgetRemoved(b *bolt.Bucket, stream string, seq uint64) error {
	prefix := append([]byte(stream), 0)
	var old [][]byte
	c := b.Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix) && bytes.Compare(k, segmentKey(stream, seq)) < 0; k, v = c.Next() {
		var rec segmentRecord
		if json.Unmarshal(v, &rec) == nil && rec.Removed {
			old = append(old, bytes.Clone(k))
		}
	}
	for _, k := range old {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
