package journal

import "fmt"

// rescue is called when a write to f or a sync of f has failed. Everything that f holds above the durable LSN, and the
// frames of the group in hand, which may be none, go to a fresh file and are synced there, in both modes. The caller
// holds wmu.
func (j *Journal) rescue(f *file, cause error, group []byte) error {
	// A background sync of f may be running, and fail as well: it must not begin a second rescue.
	for j.syncing {
		j.idle.Wait()
	}
	if err := j.usable(); err != nil {
		return err // that second failure has ended it all
	}
	if j.active != f {
		// The background sync failed while this group was being written, and has moved the frames before it.
		j.buf = append(append(make([]byte, 0, headerSize+len(group)), zeros[:]...), group...)
		return j.rewrite(j.active, cause, lastOf(group))
	}
	j.abandon(f, cause)

	acked := len(j.fly)+len(j.pend) > 0
	b := make([]byte, headerSize, headerSize+len(j.fly)+len(j.pend)+len(group))
	b = append(append(append(b, j.fly...), j.pend...), group...)
	if len(b) == headerSize {
		return nil // the file is given up, nothing was at stake
	}
	j.buf = b
	if err := j.reserve(1, j.cfg.Files+1); err != nil {
		if acked {
			return j.fail(fmt.Errorf("%w; no fresh file for what is acknowledged: %w", cause, err))
		}
		return fmt.Errorf("%w; no fresh file: %w", cause, err)
	}
	return j.rewrite(j.take(j.durable()+1), cause, lastOf(b[headerSize:]))
}

// rewrite stores buf, whose last frame is last, in f. It is the second attempt, and there is no third.
func (j *Journal) rewrite(f *file, cause error, last LSN) error {
	if err := j.store(f, j.buf, true); err != nil {
		j.abandon(f, err)
		both := fmt.Errorf("%w; again: %w", cause, err)
		if noSpace(err) && len(j.fly)+len(j.pend) == 0 {
			return fmt.Errorf("%w: %w", ErrFull, both) // nothing but this group was at stake, and space may come back
		}
		return j.fail(both)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	f.last, j.synced = last, last
	j.fly, j.pend = j.fly[:0], j.pend[:0]
	j.stats.Rescues++
	j.log.Info("journal group rewritten to a fresh file", "file", f.name, "lsn", last)
	return nil
}

// abandon takes f out of use for ever. What it holds up to the durable LSN still counts.
func (j *Journal) abandon(f *file, cause error) {
	j.mu.Lock()
	f.bad = true
	f.last = max(min(f.last, j.synced), f.first-1)
	j.stats.FileErrors++
	if f.last < f.first {
		j.doomed = append(j.doomed, f) // nothing in it counts, and its space may be what is missing
		j.active = nil
		j.cond.Broadcast()
	}
	j.mu.Unlock()
	j.retire()
	j.log.Error("journal file given up", "file", f.name, "err", cause)
}

// fail ends the journal.
func (j *Journal) fail(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed = fmt.Errorf("%w: %w", ErrFailed, cause)
	j.cond.Broadcast()
	j.log.Error("journal has failed", "err", cause)
	return j.failed
}

// lastOf is the LSN of the last frame in b.
func lastOf(b []byte) (lsn LSN) {
	for len(b) > 0 {
		n, l, err := peekFrame(b, int64(len(b)))
		if err != nil {
			panic(fmt.Sprintf("BUG: journal: own frame: %v", err))
		}
		lsn, b = l, b[span(n):]
	}
	return lsn
}
