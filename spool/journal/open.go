package journal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Open scans the directory, which it makes when it is missing, and is ready for Replay and then Append. The caller holds a
// lock that keeps other processes away. Frames that were perhaps not durable are durable when Open returns.
//
// Damage and lack of space do not make it fail: see Recovery, Replay, and ErrFull. A newer format does: ErrUnsupported.
func Open(cfg Config, opts Options) (*Journal, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return open(cfg, opts, randomEpoch)
}

func randomEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// open is Open without the lower bound of the file size.
func open(cfg Config, opts Options, newEpoch func() uint64) (*Journal, error) {
	opts = opts.withDefaults()
	j := &Journal{
		cfg: cfg, opts: opts, fs: opts.FS, log: opts.Logger, now: opts.Now, newEpoch: newEpoch,
		closing: make(chan struct{}), kept: make(chan struct{}), dirty: make(chan struct{}, 1),
	}
	if opts.Sealer != nil {
		j.room = opts.Sealer.Overhead()
	}
	j.idle, j.cond = sync.NewCond(&j.wmu), sync.NewCond(&j.mu)
	if err := j.fs.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	s, err := look(j.fs, cfg.Dir, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	j.adopt(s)
	go j.keep()
	if cfg.Sync == ModeInterval {
		j.flushed = make(chan struct{})
		go j.syncLoop()
	}
	j.prove(s)
	j.sweep()
	return j, nil
}

// adopt makes the files that were found the journal's own.
func (j *Journal) adopt(s *survey) {
	j.recovery = s.report()
	j.lost = s.settled.lost
	j.next = s.settled.next
	j.synced = j.next - 1
	j.nextSlot = s.maxSlot + 1
	for _, name := range s.tmps {
		if err := j.fs.Remove(filepath.Join(j.cfg.Dir, name)); err != nil {
			j.log.Warn("unfinished journal file not removed", "file", name, "err", err)
		}
	}
	for _, f := range s.broken {
		_ = f.f.Close() // nothing was written
		j.recovery.Quarantined = append(j.recovery.Quarantined, f.name)
		j.log.Error("journal file without a readable header set aside", "file", f.name, "err", f.err)
		if err := j.setAside(f.name); err != nil {
			j.log.Error("journal file not set aside", "file", f.name, "err", err)
		}
	}
	for _, f := range s.free {
		j.generation = max(j.generation, f.generation)
		nf := j.own(f)
		if nf.bad {
			j.doomed = append(j.doomed, nf)
			continue
		}
		j.ready = append(j.ready, nf)
	}
	for i := range s.settled.files {
		sf := &s.settled.files[i]
		j.generation = max(j.generation, sf.generation)
		nf := j.own(s.files[sf.index])
		nf.last, nf.damaged = sf.lastTaken(), sf.hurt
		j.retired = append(j.retired, nf)
		for _, r := range sf.take {
			j.replay = append(j.replay, replayRun{run: r, file: nf})
		}
	}
	for _, r := range j.lost {
		j.log.Warn("journal file is damaged, frames are missing; the spool says what that costs", "from", uint64(r.From), "to", uint64(r.To))
	}
}

func (j *Journal) own(f surveyed) *file {
	nf := &file{File: f.f, name: f.name, slot: f.slot, header: f.header, last: f.first - 1}
	nf.bad = f.size != j.cfg.FileSize || f.header.size != j.cfg.FileSize
	return nf
}

// prove makes the frames durable that nothing proves yet: they are copied to a fresh file, which becomes the active one,
// with their LSNs. If there is no room for that, they are written again where they are, and synced.
func (j *Journal) prove(s *survey) {
	j.wmu.Lock()
	defer j.wmu.Unlock()
	from, last := max(s.settled.proven+1, s.floor), j.recovery.Last
	if from > last {
		return
	}
	// Behind an unreadable hole frames count although nothing proves them. A file has no hole: only the last run is copied.
	if begin := j.replay[len(j.replay)-1].from; begin > from {
		j.syncInPlace(from, begin-1)
		from = begin
	}
	if err := j.copyTail(from, last); err != nil {
		j.log.Warn("end of the journal not copied to a fresh file, syncing it where it is", "err", err)
		j.syncInPlace(from, last)
	}
}

func (j *Journal) syncInPlace(from, to LSN) {
	j.recovery.Unproven = true
	for _, r := range j.replay {
		if r.last < from || r.from > to {
			continue
		}
		if err := again(r.file, r.end); err != nil {
			// What was read can still be applied elsewhere; nothing more is accepted.
			_ = j.fail(fmt.Errorf("sync %s: %w", r.file.name, err))
		}
	}
}

// again writes the first end bytes of f once more and syncs them. A sync alone proves nothing: an earlier one may have failed,
// before the restart, and the system then takes the pages for clean although they never reached the disk. The bytes are the
// same, so that a power cut in between leaves what was there.
func again(f *file, end int64) error {
	b := make([]byte, min(end, windowSize))
	for off := int64(0); off < end; off += int64(len(b)) {
		b = b[:min(int64(len(b)), end-off)]
		if _, err := f.ReadAt(b, off); err != nil {
			return err
		}
		if err := writeAll(f, b, off); err != nil {
			return err
		}
	}
	return f.Datasync()
}

func (j *Journal) copyTail(from, last LSN) error {
	j.buf = make([]byte, headerSize)
	for _, r := range j.replay {
		c, err := j.cipherOf(r.file)
		if err == nil {
			err = r.eachFrame(r.file, r.file.header, max(r.from, from), last, func(fr frame, raw []byte) (err error) {
				if fr.payload, err = unseal(c, fr, raw); err != nil {
					return err
				}
				fr.room = j.room
				j.buf = appendFrame(j.buf, fr)
				return nil
			})
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", r.file.name, err)
		}
	}
	// In mode sync it is one group. A group of another configuration may be too large for a file of this one.
	if int64(len(j.buf)) > j.cfg.FileSize {
		return fmt.Errorf("%w: %d bytes to copy", ErrTooLarge, len(j.buf)-headerSize)
	}
	j.mu.Lock()
	j.synced = from - 1
	j.mu.Unlock()
	var err error
	for range 2 {
		if err = j.reserve(1, j.cfg.Files+1); err != nil {
			break
		}
		f := j.take(from)
		if err = j.store(f, j.buf, true); err != nil {
			j.abandon(f, err)
			continue
		}
		j.proved(f, from, last)
		if last+1 != j.next { // unreadable frames follow; a file has no hole
			j.retire()
		}
		return nil
	}
	j.mu.Lock()
	j.synced = j.next - 1
	j.mu.Unlock()
	return err
}

// proved puts the copy in the place of the frames that were copied.
func (j *Journal) proved(f *file, from, last LSN) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f.last, j.synced = last, j.next-1
	j.recovery.Rewritten = int(last - from + 1)
	keep := j.replay[:0]
	for _, r := range j.replay {
		r.last = min(r.last, from-1)
		if r.last >= r.from {
			keep = append(keep, r)
		}
	}
	for _, r := range j.retired {
		r.last = min(r.last, from-1)
	}
	j.replay = append(keep, replayRun{run: run{off: headerSize, end: f.off, first: from, last: last, from: from}, file: f})
}

// sweep gives back the files in which nothing counts, at the beginning or anywhere else. The copy is durable by now.
func (j *Journal) sweep() {
	j.mu.Lock()
	defer j.mu.Unlock()
	keep := j.retired[:0]
	for _, f := range j.retired {
		switch {
		case f.last >= f.first:
			keep = append(keep, f)
		case f.damaged || f.bad:
			j.doomed = append(j.doomed, f)
		default:
			j.released = append(j.released, f)
		}
	}
	j.retired = keep
	j.cond.Broadcast()
}

// Recovery tells what Open found.
func (j *Journal) Recovery() Report { return j.recovery }
