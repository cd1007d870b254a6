package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

const (
	retryAfter  = 250 * time.Millisecond // between two attempts to make a file, while Append asks all the time
	shrinkStep  = 4 << 20                // removal truncates in steps: unlinking 64 MiB at once stalls other syncs for
	shrinkPause = 20 * time.Millisecond  // tens of milliseconds where the file system discards freed blocks
)

// pool is the files that are not written to. All fields are guarded by Journal.mu.
type pool struct {
	ready    []*file // free, header synced: the next group may go there
	released []*file // to be marked free; oldest first, so that no older file outlives a newer one
	retired  []*file // hold frames that are not released, oldest first
	doomed   []*file // to be removed or set aside

	busy     int   // files in the hands of the keeper or of a foreground create
	madeErr  error // why the last attempt to make a file failed; nil means that one may be made
	madeAt   time.Time
	nextSlot uint64
}

// liveLocked is the number of files that take part in the rotation.
func (j *Journal) liveLocked() int {
	n := len(j.ready) + len(j.released) + len(j.retired) + j.busy
	if j.active != nil {
		n++
	}
	return n
}

// keep is the keeper: the goroutine that recycles, makes and removes files, so that the acknowledgement path never does.
func (j *Journal) keep() {
	defer close(j.kept)
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		job := j.jobLocked()
		switch {
		case j.closed:
			return
		case job == nil:
			j.cond.Wait()
			continue
		}
		j.mu.Unlock()
		job()
		j.mu.Lock()
		j.cond.Broadcast()
	}
}

// jobLocked takes the most urgent work of the keeper, nil when there is none.
func (j *Journal) jobLocked() func() {
	switch live := j.liveLocked(); {
	case len(j.released) > 0 && live > j.cfg.Files:
		j.doomed = append(j.doomed, j.released[0])
		j.released = j.released[1:]
		return func() {}
	case len(j.released) > 0:
		f := j.released[0]
		j.released = j.released[1:]
		j.busy++
		return func() { j.recycle(f) }
	case live > j.cfg.Files && len(j.ready) > 1:
		j.doomed = append(j.doomed, j.ready[len(j.ready)-1])
		j.ready = j.ready[:len(j.ready)-1]
		return func() {}
	case live < j.cfg.Files && j.madeErr == nil && !j.failedLocked():
		j.busy++
		return func() { j.make() }
	case len(j.doomed) > 0:
		f := j.doomed[0] // it stays there until it is gone
		return func() { j.discard(f) }
	}
	return nil
}

// recycle makes a released file ready. It holds one busy.
func (j *Journal) recycle(f *file) {
	h := f.header
	h.first = j.floor()
	err := writeFree(f, h)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.busy--
	if err != nil {
		f.bad = true
		j.doomed = append(j.doomed, f)
		j.stats.RecycleErrors++
		j.log.Warn("journal file not recycled", "file", f.name, "err", err)
		return
	}
	f.state, f.first, f.off, f.last = stateFree, h.first, 0, h.first-1
	j.ready = append(j.ready, f)
	j.stats.Recycled++
}

// make creates a file and makes it ready. It holds one busy.
func (j *Journal) make() {
	j.mu.Lock()
	slot := j.nextSlot
	j.nextSlot++
	h := header{size: j.cfg.FileSize, generation: j.generation, first: j.floorLocked(), time: j.now().UnixNano()}
	j.mu.Unlock()
	f, err := createFile(j.fs, j.cfg.Dir, slot, h, j.isClosed)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.busy--
	j.madeErr, j.madeAt = err, time.Now()
	if err != nil {
		if !errors.Is(err, ErrClosed) {
			j.stats.CreateErrors++
			j.log.Warn("journal file not created, trying again when it is needed", "err", err)
		}
		return
	}
	f.last = h.first - 1
	j.ready = append(j.ready, f)
	j.stats.Created++
}

// discard removes the first of the files that are not wanted, and sets a damaged one aside.
func (j *Journal) discard(f *file) {
	defer func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.doomed = j.doomed[1:]
	}()
	path := filepath.Join(j.cfg.Dir, f.name)
	var err error
	if f.damaged {
		err = errors.Join(f.Close(), j.setAside(f.name))
	} else {
		if !f.bad {
			j.shrink(f)
		}
		err = errors.Join(f.Close(), j.fs.Remove(path), j.fs.SyncDir(j.cfg.Dir))
	}
	if err != nil {
		j.log.Warn("journal file not removed", "file", f.name, "err", err)
		return
	}
	j.mu.Lock()
	j.stats.Removed++
	j.mu.Unlock()
	j.log.Info("journal file removed", "file", f.name, "damaged", f.damaged, "bad", f.bad)
}

func (j *Journal) shrink(f *file) {
	// Marked free first: a crash between two steps must not show a header over frames that are gone.
	h := f.header
	h.first = j.floor()
	if writeFree(f, h) != nil {
		return
	}
	for size := f.size - shrinkStep; size > shrinkStep; size -= shrinkStep {
		if f.Truncate(size) != nil {
			return
		}
		select {
		case <-time.After(shrinkPause):
		case <-j.closing:
			return
		}
	}
}

// setAside moves a damaged file out of the way, name and all.
func (j *Journal) setAside(name string) error {
	from := filepath.Join(j.cfg.Dir, name)
	dir := j.cfg.Dir
	if j.opts.Quarantine != "" {
		dir = j.opts.Quarantine
		if err := j.fs.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	to := filepath.Join(dir, name+badSuffix)
	for n := 2; ; n++ {
		if _, err := j.fs.Stat(to); err != nil {
			break
		}
		to = filepath.Join(dir, fmt.Sprintf("%s%s.%d", name, badSuffix, n))
	}
	if err := j.fs.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(j.fs.SyncDir(dir), j.fs.SyncDir(j.cfg.Dir))
}

// reserve waits until n files are ready. It returns ErrFull, with the cause if there is one, when that needs more than the
// keeper can do now. limit is the number of files that may exist.
func (j *Journal) reserve(n, limit int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.madeErr != nil && len(j.ready) < n && time.Since(j.madeAt) >= retryAfter {
		j.madeErr = nil
		j.cond.Broadcast()
	}
	for len(j.ready) < n {
		switch {
		case j.closed:
			return ErrClosed
		case j.busy > 0, len(j.released) > 0:
		case j.madeErr != nil:
			return fmt.Errorf("%w: %w", ErrFull, j.madeErr)
		case j.liveLocked() < j.cfg.Files:
		case j.liveLocked() < limit:
			// Beyond the rotation the keeper makes none.
			j.busy++
			j.mu.Unlock()
			j.make()
			j.mu.Lock()
			continue
		default:
			return fmt.Errorf("%w: %d files hold frames that are not released", ErrFull, len(j.retired))
		}
		j.cond.Broadcast()
		j.cond.Wait()
	}
	return nil
}

// take makes a ready file the active one, for frames from first on. The caller holds wmu and has reserved.
func (j *Journal) take(first LSN) *file {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ready) == 0 {
		panic("BUG: journal: no file is ready after reserve")
	}
	f := j.ready[0]
	j.ready = slices.Delete(j.ready, 0, 1)
	j.generation++
	f.header = header{
		state: stateInUse, size: f.size, epoch: j.newEpoch(), generation: j.generation, first: first, time: j.now().UnixNano(),
	}
	f.cipher = nil
	if j.room > 0 {
		var params []byte
		if f.cipher, params = j.opts.Sealer.Begin(); len(params) == 0 || len(params) > maxSeal {
			panic(fmt.Sprintf("BUG: journal: %d bytes of encryption parameters", len(params)))
		}
		f.seal = string(params)
	}
	f.off, f.last = 0, first-1
	j.active = f
	j.stats.Switches++
	j.cond.Broadcast()
	return f
}

// retire takes the active file out of use. Its frames stay until they are released.
func (j *Journal) retire() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.active == nil {
		return
	}
	j.retired = append(j.retired, j.active)
	j.active = nil
	j.releaseLocked()
}

// releaseLocked passes on the retired files whose frames are all released.
func (j *Journal) releaseLocked() {
	for len(j.retired) > 0 && j.retired[0].last <= j.freed {
		f := j.retired[0]
		j.retired = j.retired[1:]
		if f.bad || f.damaged {
			j.doomed = append(j.doomed, f)
		} else {
			j.released = append(j.released, f)
		}
	}
	j.cond.Broadcast()
}

// floor is what a free header says: LSNs below it were used.
func (j *Journal) floor() LSN {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.floorLocked()
}

// floorLocked stays behind the frames that are not released: a free file may outlive the files that held the others only
// when those were released.
func (j *Journal) floorLocked() LSN { return j.freed + 1 }
