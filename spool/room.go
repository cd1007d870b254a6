package spool

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// rooms are the disk's marks. Trimming begins before there is no room, and there is room again only some way below the
// mark at which there was none, so that it does not flap.
type rooms struct {
	used, free int64
	trim       bool // delivered segments have to go
	full       bool // nothing new may come
	clear      bool // it may come again
}

// roomNow looks at the disk. The reserve below max_size is for the segment that is being sealed, and for what is accepted but
// not yet in segments: its memory is no less than its place on the disk.
func (s *Spool) roomNow() rooms {
	limit := int64(s.cfg.MaxSize)
	segment := min(int64(s.cfg.Segment.MaxSize), limit/8)
	reserve := segment + min(s.unappliedMax, limit/8)
	r := rooms{used: s.diskUsed()}
	r.used += max(int64(s.cfg.Journal.Files)*int64(s.cfg.Journal.FileSize)-s.journalBytes(), 0) // it is about to make the others
	free, err := s.fs.DiskFree(s.cfg.Dir)
	if err != nil {
		free = 1 << 62 // not known: max_size still holds
	}
	r.free = free
	floor := int64(s.cfg.MinFree)
	margin := max(floor/8, 1<<20)
	r.trim = r.used > limit-reserve-segment || free < floor+2*margin
	r.full = r.used > limit-reserve || free < floor
	r.clear = r.used <= limit-reserve-segment/2 && free >= floor+margin
	return r
}

// diskUsed is the sum of all files: segments with those that wait for their removal, journal, meta.db, quarantine.
func (s *Spool) diskUsed() int64 {
	n := s.journalBytes() + s.meta.size() + s.quarantineBytes.Load()
	for _, st := range s.streams {
		n += st.bytes.Load()
	}
	return n
}

func (s *Spool) journalBytes() int64 {
	return int64(s.journal.Stats().Files) * int64(s.cfg.Journal.FileSize)
}

// checkRoom sets or clears full, and wakes those who wait for it.
func (s *Spool) checkRoom() {
	r := s.roomNow()
	full := s.full.Load()
	switch {
	case r.full || s.noSpace.Load():
		full = true
	case r.clear:
		full = false
	}
	s.diskFree.Store(r.free)
	limit, why := "", ""
	if full {
		limit, why = s.whyFull(r)
	}
	s.healthMu.Lock()
	s.fullWhy = why
	s.healthMu.Unlock()
	if full == s.full.Swap(full) {
		return
	}
	used, free := approx(r.used), approx(r.free)
	if full {
		s.log.Warn("spool is full", "limit", limit, "problem", why, "used", used, "max_size", s.cfg.MaxSize, "free", free, "min_free", s.cfg.MinFree)
		s.kickJanitor()
		return
	}
	s.log.Info("spool has room again", "used", used, "max_size", s.cfg.MaxSize, "free", free, "min_free", s.cfg.MinFree)
	s.roomChanged()
}

// whyFull names the limit that keeps new records out, and what can be done about it.
func (s *Spool) whyFull(r rooms) (limit, why string) {
	switch {
	case s.noSpace.Load() && r.free >= int64(s.cfg.MinFree):
		limit, why = "disk", fmt.Sprintf("the file system of %s refuses to take more (no space, or a quota): free space there", s.cfg.Dir)
	case r.free < int64(s.cfg.MinFree)+max(int64(s.cfg.MinFree)/8, 1<<20):
		limit, why = "min_free", fmt.Sprintf("%s are free on the file system of %s, and spool.min_free is %v: free space there, or lower it",
			approx(r.free), s.cfg.Dir, s.cfg.MinFree)
	default:
		limit, why = "max_size", fmt.Sprintf("%s of spool.max_size %v are used, and the rest is for what was accepted before: raise it, or see who waits",
			approx(r.used), s.cfg.MaxSize)
	}
	return limit, why + s.whoHolds("")
}

// whoHolds names the protected cursor that keeps most on the disk, of a stream or of all.
func (s *Spool) whoHolds(stream string) string {
	var most CursorInfo
	for _, c := range s.Cursors() {
		if c.Protect && (stream == "" || c.Stream == stream) && c.HeldBytes > most.HeldBytes {
			most = c
		}
	}
	if most.HeldBytes == 0 {
		return ""
	}
	return fmt.Sprintf("; most is kept for cursor %s, which is %d records behind and holds %s", most.Name, most.Lag, approx(most.HeldBytes))
}

func approx(n int64) string { return unit.Bytes(n).Approx() }

// tellSize warns when the disk is full long before max_size is reached.
func (s *Spool) tellSize() {
	free, err := s.fs.DiskFree(s.cfg.Dir)
	if err != nil {
		return
	}
	if room := s.diskUsed() + free - int64(s.cfg.MinFree); room < int64(s.cfg.MaxSize) {
		s.log.Warn("spool.max_size does not fit on the disk: the spool is full before", "max_size", s.cfg.MaxSize, "full_at", approx(max(room, 0)),
			"free", approx(free), "min_free", s.cfg.MinFree, "dir", s.cfg.Dir)
	}
}

// setMaterialiseError remembers why records do not get into segments; nil when they do.
func (s *Spool) setMaterialiseError(err error) {
	s.healthMu.Lock()
	before := s.materialiseErr
	s.materialiseErr = err
	s.healthMu.Unlock()
	if err != nil && (before == nil || s.throttle.allow(s.clock.now())) {
		s.log.Error("records cannot be moved to segments; they are safe in the journal, it is tried again", "err", err)
	}
	if err == nil && before != nil {
		s.log.Info("records are moved to segments again")
	}
	if s.noSpace.Swap(err != nil && noSpace(err)) != (err != nil && noSpace(err)) {
		s.checkRoom()
	}
}

// setJournalFull remembers why the journal has no file to write to; nil when it has.
func (s *Spool) setJournalFull(err error) {
	s.healthMu.Lock()
	before := s.journalErr
	s.journalErr = err
	s.healthMu.Unlock()
	if err != nil && before == nil {
		s.log.Error("journal has no file to write to: nothing is acknowledged until it has", "err", err)
	}
	if err == nil && before != nil {
		s.log.Info("journal goes on")
	}
}

// Health is nil, or says what is wrong and what to do about it.
func (s *Spool) Health() error {
	if err := s.failure(); err != nil && s.gone.Load() {
		return fmt.Errorf("%w: nothing is acknowledged any more; bring back the directory %s as it was, then start the gateway again", err, s.cfg.Dir)
	} else if err != nil {
		return fmt.Errorf("spool: %w: look at the disk of %s, then start the gateway again", err, s.cfg.Dir)
	}
	s.healthMu.Lock()
	journal, materialise, why := s.journalErr, s.materialiseErr, s.fullWhy
	s.healthMu.Unlock()
	switch {
	case journal != nil:
		return fmt.Errorf("spool: journal has no file to write to: %w: free space in %s, and look at its disk", journal, s.cfg.Dir)
	case s.full.Load():
		return fmt.Errorf("%w: %s", ErrFull, why)
	case materialise != nil:
		return fmt.Errorf("spool: records stay in the journal: %w", materialise)
	}
	for _, st := range s.streams {
		if st.full.Load() {
			return fmt.Errorf("stream %s: %w: %s of its max_size %v are used: raise it, or see who waits%s", st.name, ErrFull,
				approx(st.bytes.Load()), st.cfg.MaxSize, s.whoHolds(st.name))
		}
	}
	return nil
}

// throttle lets one log line through per minute.
type throttle struct{ last atomic.Int64 }

func (t *throttle) allow(now int64) bool {
	last := t.last.Load()
	return (last == 0 || now-last >= int64(time.Minute)) && t.last.CompareAndSwap(last, now)
}

// tellClock says at the start what is known of the wall clock.
func (s *Spool) tellClock() {
	s.clockTold = s.clock.skew.Load()
	if d := s.clock.down; d != 0 {
		s.log.Warn("wall clock was set while the gateway was down; times to live and retention go on as if it had not been", "step", d,
			"wall_clock_ahead", time.Duration(s.clockTold))
	}
}

func (s *Spool) noticeClockStep() {
	_, skew := s.clock.read()
	if d := time.Duration(skew - s.clockTold); d > clockStepMin || d < -clockStepMin {
		s.clockTold = skew
		s.log.Warn("wall clock was set; times to live and retention go on as if it had not been", "step", d, "wall_clock_ahead", time.Duration(skew))
	}
}
