package spool

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/spool/journal"
)

// commitLoop is the one goroutine that writes to the journal: it takes whatever waits when the last sync has returned,
// and never waits for more. It ends when the spool is closing and nothing waits any more.
func (s *Spool) commitLoop() {
	defer close(s.committerDone)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		g := s.takeGroup()
		if g == nil {
			if s.commitDone() {
				return
			}
			select {
			case <-s.work:
			case <-s.cursorWork:
				timer.Reset(s.cfg.CommitInterval.Std())
			case <-timer.C:
				s.cursorsDue.Store(true)
			}
			continue
		}
		released := len(g.entries)
		s.commit(g)
		s.gather(released)
	}
}

// gather lets those whom the last group has released go first, as long as more of them come, up to half: the others come
// during the sync. Else the next group would be the few that were quickest: a thousand publishers that each wait for their
// acknowledgement made groups of a hundred. It waits for nobody: where nothing else can run it is over at once.
func (s *Spool) gather(released int) {
	for before := -1; ; {
		runtime.Gosched()
		n := s.waitingEntries()
		if n <= before || 2*n >= released {
			return
		}
		before = n
	}
}

// waitingEntries is how many of the next group somebody waits for.
func (s *Spool) waitingEntries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return 0
	}
	return len(s.waiting[0].entries)
}

func (s *Spool) wakeCommitter() { signal(s.work) }

// signal wakes the goroutine that waits on c, a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// takeGroup is the oldest waiting group, with cursors that are due. nil when there is nothing to write.
func (s *Spool) takeGroup() *group {
	due := s.cursorsDue.Swap(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing && len(s.waiting) <= 1 {
		due = due || s.cursors.dirty()
	}
	due = due && s.failed == nil && s.cursors.dirty()
	var g *group
	switch {
	case due && (len(s.waiting) == 0 || s.waiting[0].size > s.groupCap): // beside a huge entry they might not fit into a file
		g = s.newGroupLocked()
	case len(s.waiting) == 0:
		return nil
	default:
		g = s.waiting[0]
		s.waiting = append(s.waiting[:0], s.waiting[1:]...)
		s.sealGroup(g)
	}
	if due {
		s.queued += s.cursors.addDirty(g)
	}
	if g.empty() {
		s.spareLocked(g)
		return nil
	}
	return g
}

func (s *Spool) spareLocked(g *group) {
	g.reset()
	if len(s.spare) < 4 {
		s.spare = append(s.spare, g)
	}
}

// commitDone tells whether the committer may end.
func (s *Spool) commitDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing && len(s.waiting) == 0 && (s.failed != nil || !s.cursors.dirty())
}

// commit makes g durable, visible, and tells those who wait, in this order.
func (s *Spool) commit(g *group) {
	for _, sec := range g.sections[:g.lastUse] {
		sec.base = sec.p.end // only this goroutine moves end
		for i := range sec.recs {
			sec.recs[i].Offset = sec.base + Offset(i)
		}
	}
	lsn, err := s.journalGroup(g)
	if err == nil {
		s.publish(g, lsn)
	} else {
		s.fail(err)
		g.countLost()
	}
	s.complete(g, err)
	s.cursors.written(err)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued -= g.cost
	if err == nil {
		s.unapplied += g.cost
		s.groups++
	}
	s.roomChangedLocked()
	s.spareLocked(g)
}

// journalGroup writes and syncs g. It waits as long as the journal has no room, or the disk none for the journal. A group
// with nothing to write has nothing to sync.
func (s *Spool) journalGroup(g *group) (lsn uint64, err error) {
	if g.records == 0 && len(g.changes) == 0 {
		return 0, nil
	}
	if err := s.failure(); err != nil {
		return 0, err
	}
	s.frame = g.appendPayload(s.frame[:0])
	first := s.clock.source()
	for {
		began := s.clock.source()
		_, last, err := s.journal.Append(s.frame)
		if err == nil {
			lsn = uint64(last)
			s.metrics.group(s.clock.source().Sub(began), len(s.frame), g.records)
			break
		}
		if !errors.Is(err, journal.ErrFull) {
			return 0, fmt.Errorf("spool: append: %w: %w", ErrFailed, err)
		}
		if err := s.waitForJournal(err, began.Sub(first) >= journalRetry); err != nil {
			return 0, err
		}
	}
	s.setJournalFull(nil)
	if cap(s.frame) > 2*groupCap {
		s.frame = nil
	}
	return lsn, nil
}

const journalRetry = time.Second // between two tries when the disk has no room for a journal file

// waitForJournal waits until segments have taken what the next journal file holds, or for a while when the disk has no
// room for the file.
func (s *Spool) waitForJournal(full error, long bool) error {
	if noSpace(full) || long {
		s.setJournalFull(full)
	}
	s.hurry.Store(true)
	s.kickMaterialiser()
	t := time.NewTimer(journalRetry)
	defer t.Stop()
	select {
	case <-s.released:
	case <-t.C:
		s.setJournalFull(full) // segments do not take what it holds, or no file can be made
	case <-s.abandon:
		return fmt.Errorf("spool: append: %w: %w", ErrClosed, full)
	}
	return nil
}

// publish shows g to readers, and hands its changes on to meta.db.
func (s *Spool) publish(g *group, lsn uint64) {
	t := s.tail
	t.mu.Lock()
	for _, sec := range g.sections[:g.lastUse] {
		sec.p.st.appended.Add(uint64(len(sec.recs)))
		if t.publish(sec.p, sec.recs, sec.cost, sec.minExpiry) {
			sec.room = min(len(sec.recs)+len(sec.recs)/8, maxSpareRecords)
			sec.recs = nil
		}
	}
	if len(g.changes) > 0 {
		t.changes = append(t.changes, pendingChanges{b: append([]byte(nil), g.changes...), cost: int64(len(g.changes))})
	}
	if lsn > 0 {
		t.lsn = lsn
	}
	t.evictLocked()
	t.mu.Unlock()
	n := int64(g.size)
	switch before := s.unappliedRaw.Add(n) - n; {
	case before+n >= materialiseBytes:
		s.kickMaterialiser()
	case before == 0:
		signal(s.materialWaits)
	}
}

// complete tells everybody who waits for g, in the order of acceptance, and then runs what OnGroup registered.
func (s *Spool) complete(g *group, err error) {
	for i := range g.entries {
		e := &g.entries[i]
		if e.sec != nil {
			e.rec.Offset = e.sec.base + Offset(e.i)
		}
		e.done.Durable(e.rec, err)
	}
	s.onGroupMu.Lock()
	fns := s.onGroup
	s.onGroupMu.Unlock()
	for _, fn := range fns {
		fn()
	}
}

// fail stops the spool for ever: what was not durable is answered with err, readers go on.
func (s *Spool) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil && !errors.Is(err, ErrClosed) {
		s.failed = err
		close(s.gaveUp)
		s.log.Error("journal has failed: nothing is accepted until the gateway is started again", "err", err)
		s.roomChangedLocked()
	}
}

func (s *Spool) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
