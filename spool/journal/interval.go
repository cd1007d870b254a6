package journal

import "time"

// maxUnsynced bounds the memory of mode interval: with as much waiting and as much under way, 8 MiB.
const maxUnsynced = 4 << 20

// later notes frames that were written and wait for a sync. The caller holds wmu.
func (j *Journal) later(frames []byte) error {
	j.pend = append(j.pend, frames...)
	if len(j.pend) >= maxUnsynced {
		return j.flush(true)
	}
	select {
	case j.dirty <- struct{}{}:
	default:
	}
	return nil
}

// syncLoop is the background sync of mode interval.
func (j *Journal) syncLoop() {
	defer close(j.flushed)
	for {
		select {
		case <-j.dirty:
		case <-j.closing:
			return
		}
		t := time.NewTimer(j.cfg.SyncInterval)
		select {
		case <-t.C:
		case <-j.closing:
			t.Stop()
			return
		}
		j.wmu.Lock()
		if j.usable() == nil {
			_ = j.flush(false) // failure is logged and kept: the next Append returns it
		}
		j.wmu.Unlock()
	}
}

// Sync makes everything that was appended before the call durable. In mode sync it is so already. It may run beside Append;
// an error is that of the sync, and of the rescue that followed it: nothing of what was appended may be relied on.
func (j *Journal) Sync() error {
	if j.cfg.Sync != ModeInterval {
		return nil
	}
	j.wmu.Lock()
	defer j.wmu.Unlock()
	return j.flush(false)
}

// flush makes everything that was written durable. The caller holds wmu. Unless hold is set, wmu is given up during the
// sync, so that Append goes on meanwhile; Append itself holds it, so that nobody closes the files under it.
func (j *Journal) flush(hold bool) error {
	for j.syncing {
		j.idle.Wait()
	}
	if err := j.usable(); err != nil || len(j.pend) == 0 {
		return err
	}
	f := j.active
	j.fly, j.pend = j.pend, j.fly[:0]
	target := f.last
	j.syncing = !hold
	if !hold {
		j.wmu.Unlock()
	}
	err := j.datasync(f)
	if !hold {
		j.wmu.Lock()
		j.syncing = false
		defer j.idle.Broadcast()
	}
	if err != nil {
		return j.rescue(f, err, nil)
	}
	j.fly = j.fly[:0]
	j.mu.Lock()
	j.synced = max(j.synced, target)
	j.mu.Unlock()
	return nil
}
