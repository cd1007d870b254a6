package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Journal is an open journal. Append belongs to one goroutine; the other methods may be called from anywhere.
type Journal struct {
	cfg  Config
	opts Options
	fs   vfs.FS
	log  *slog.Logger
	now  func() time.Time

	newEpoch func() uint64

	// wmu is held for the whole of an Append, disk included, and by whoever else writes frames. Taken before mu.
	wmu  sync.Mutex
	idle *sync.Cond // on wmu: the background sync has ended
	buf  []byte     // header block and frames of the group that is being written
	enc  []byte     // buf, encrypted
	room int        // bytes that the cipher needs behind each payload
	next LSN        // of the next new payload; changes under wmu and mu

	// Mode interval: frames that were written and whose sync has not begun, and those whose sync is running. They are kept
	// in memory because a file whose sync failed is no place to read them back from.
	pend, fly []byte
	syncing   bool

	// mu guards all below. It is never held during a call to the file system, so that Room and Stats answer on a hung disk.
	mu   sync.Mutex
	cond *sync.Cond
	pool
	active     *file
	generation uint64
	synced     LSN // highest durable LSN
	freed      LSN // highest released LSN
	failed     error
	closed     bool
	stats      Stats

	recovery Report      // as Open found it
	replay   []replayRun // nil once Append was called; guarded by wmu, as the next two
	lost     []Range
	began    bool

	once     sync.Once
	closeErr error
	closing  chan struct{}
	dirty    chan struct{} // mode interval: something waits for a sync
	kept     chan struct{} // keeper has ended
	flushed  chan struct{} // background sync has ended
}

// Append writes the payloads as one group, with the LSNs first..last, and returns when they are as durable as the mode
// says: in mode sync after one write and one fdatasync. Only a group that is larger than a file takes more than one. It
// does not keep the payloads. An empty group does nothing.
//
// After an error nothing of the group may be acknowledged, and the next group gets the same LSNs; after a crash, frames
// of the refused group may be found all the same, as long as no later group was written. Errors wrap ErrFull (harmless),
// ErrTooLarge (harmless), ErrFailed or ErrClosed.
func (j *Journal) Append(payloads ...[]byte) (first, last LSN, err error) {
	j.wmu.Lock()
	defer j.wmu.Unlock()
	if len(payloads) == 0 {
		return 0, 0, nil
	}
	first, last = j.next, j.next+LSN(len(payloads))-1
	if err := j.append(first, payloads); err != nil {
		if errors.Is(err, ErrFull) {
			j.mu.Lock()
			j.stats.Full++
			j.mu.Unlock()
		}
		return 0, 0, fmt.Errorf("journal: append %d..%d: %w", first, last, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next = last + 1
	j.stats.Groups++
	j.stats.Frames += uint64(len(payloads))
	for _, p := range payloads {
		j.stats.Bytes += uint64(len(p))
	}
	return first, last, nil
}

func (j *Journal) append(first LSN, payloads [][]byte) error {
	if err := j.usable(); err != nil {
		return err
	}
	// A file is begun only when all of the one before is durable: the new header says so.
	if j.cfg.Sync == ModeInterval && len(j.pend)+len(j.fly) > 0 && !j.fits(payloads) {
		if err := j.flush(true); err != nil {
			return err
		}
	}
	j.began, j.replay = true, nil
	parts, err := j.split(payloads)
	if err != nil {
		return err
	}
	if err := j.reserve(len(parts)-1, j.cfg.Files); err != nil {
		return err
	}
	lsn := first
	for i, part := range parts {
		if i > 0 {
			err = j.turn(lsn)
		}
		if err == nil && len(part) > 0 {
			err = j.put(lsn, part)
		}
		if err != nil {
			j.giveUp(first)
			return err
		}
		lsn += LSN(len(part))
	}
	return nil
}

// turn goes on to a fresh file, whose first frame will be lsn.
func (j *Journal) turn(lsn LSN) error {
	if err := j.flush(true); err != nil { // does something only inside a group that is larger than a file
		return err
	}
	if err := j.reserve(1, j.cfg.Files); err != nil {
		return err
	}
	j.retire()
	j.take(lsn)
	return nil
}

// usable is nil when Append may go on.
func (j *Journal) usable() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrClosed
	}
	return j.failed
}

func (j *Journal) failedLocked() bool { return j.failed != nil }

func (j *Journal) isClosed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed
}

// left is the room in the active file. Only the holder of wmu changes it.
func (j *Journal) left() int64 {
	if j.active == nil {
		return 0
	}
	return j.active.size - max(j.active.off, headerSize)
}

func (j *Journal) fits(payloads [][]byte) bool {
	var n int64
	for _, p := range payloads {
		n += span(len(p) + j.room)
	}
	return n <= j.left()
}

// split divides a group into what goes to the active file and what to fresh ones after it. A group that fits into one
// file is never divided: better to leave the rest of a file empty than to sync twice.
func (j *Journal) split(payloads [][]byte) ([][][]byte, error) {
	if j.fits(payloads) {
		return [][][]byte{payloads}, nil
	}
	capacity := j.cfg.FileSize - headerSize
	parts := [][][]byte{nil}
	room, from := int64(0), 0
	for i, p := range payloads {
		n := span(len(p) + j.room)
		if n > capacity {
			return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(p), j.MaxPayload())
		}
		if n > room {
			if i > 0 {
				parts = append(parts, payloads[from:i])
			}
			room, from = capacity, i
		}
		room -= n
	}
	parts = append(parts, payloads[from:])
	if len(parts)-1 > j.cfg.Files-1 {
		return nil, fmt.Errorf("%w: a group that takes %d files of %d", ErrTooLarge, len(parts)-1, j.cfg.Files)
	}
	return parts, nil
}

// put writes one part of a group to the active file, and to a fresh one when that fails.
func (j *Journal) put(lsn LSN, part [][]byte) error {
	j.encode(lsn, part)
	f := j.active
	err := j.store(f, j.buf, j.cfg.Sync == ModeSync)
	if err != nil {
		return j.rescue(f, err, j.buf[headerSize:])
	}
	last := lsn + LSN(len(part)) - 1
	j.mu.Lock()
	f.last = last
	if j.cfg.Sync == ModeSync {
		j.synced = last
	}
	j.mu.Unlock()
	if j.cfg.Sync == ModeInterval {
		return j.later(j.buf[headerSize:])
	}
	return nil
}

// encode fills buf with a block for a header and the frames of part, without checksums.
func (j *Journal) encode(lsn LSN, part [][]byte) {
	now := j.now().UnixNano()
	if cap(j.buf) > keepBuffer {
		j.buf = nil
	}
	need := headerSize
	for _, p := range part {
		need += int(span(len(p) + j.room))
	}
	j.buf = slices.Grow(j.buf[:0], need)[:headerSize]
	synced := j.durable()
	for i, p := range part {
		j.buf = appendFrame(j.buf, frame{lsn: lsn + LSN(i), synced: synced, time: now, payload: p, room: j.room})
	}
}

const keepBuffer = 8 << 20 // a larger one, made for an uncommon group, is given back

// store writes the frames behind the header block of buf to f with one write; the first write to a file carries the
// header as well. The caller counts what became durable.
func (j *Journal) store(f *file, buf []byte, sync bool) error {
	if f.cipher != nil {
		buf = j.sealed(f.cipher, buf)
	}
	sealFrames(buf[headerSize:], seedOf(f.epoch))
	b, off := buf[headerSize:], f.off
	if off == 0 {
		f.begun = lastOf(b)
		f.header.put(buf)
		b = buf
	}
	if err := writeAll(f, b, off); err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	j.mu.Lock()
	f.off = off + int64(len(b))
	j.stats.Writes++
	j.stats.BytesWritten += uint64(len(b))
	j.mu.Unlock()
	if !sync {
		return nil
	}
	return j.datasync(f)
}

func (j *Journal) datasync(f *file) error {
	start := time.Now()
	err := f.Datasync()
	took := time.Since(start)
	j.mu.Lock()
	j.stats.Syncs++
	j.mu.Unlock()
	if j.opts.OnSync != nil {
		j.opts.OnSync(took)
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", f.name, err)
	}
	return nil
}

// durable is the highest durable LSN.
func (j *Journal) durable() LSN {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.synced
}

// giveUp makes sure that nothing follows the parts of a refused group that did reach a file. Its LSNs from first on go to
// the next group, in a fresh file whose header cuts off what stands here.
func (j *Journal) giveUp(first LSN) {
	j.retire()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.retired {
		f.last = min(f.last, first-1)
	}
	j.synced = min(j.synced, first-1)
	j.releaseLocked()
}

// Release says that all frames up to upTo are applied and synced elsewhere: their files may be recycled.
func (j *Journal) Release(upTo LSN) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.freed = max(j.freed, min(upTo, j.next-1))
	j.releaseLocked()
}

// Room is the number of bytes that frames may take until the oldest unreleased file stands in the way; see Footprint. A
// group that does not fit into the rest of the active file leaves it empty, so up to one group less may fit.
func (j *Journal) Room() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.roomLocked()
}

func (j *Journal) roomLocked() int64 {
	if j.closed || j.failedLocked() {
		return 0
	}
	files := len(j.ready) + len(j.released) + j.busy
	if j.madeErr == nil {
		files += max(0, j.cfg.Files-j.liveLocked())
	}
	return j.left() + int64(files)*(j.cfg.FileSize-headerSize)
}

// Footprint is what a payload of n bytes takes in a file.
func Footprint(n int) int64 { return span(n) }

// MaxPayload is the length of the largest payload.
func (j *Journal) MaxPayload() int { return int(j.cfg.FileSize-headerSize-frameHeader) - j.room }

// LastLSN is the LSN of the last payload, 0 when there was none.
func (j *Journal) LastLSN() LSN {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}

// DurableLSN is the LSN up to which all is synced; in mode sync that is LastLSN.
func (j *Journal) DurableLSN() LSN { return j.durable() }

// Err is nil, or why Append fails for ever.
func (j *Journal) Err() error { return j.usable() }

// Close syncs what mode interval left unsynced and closes the files. It waits for a running Append. Twice is fine.
func (j *Journal) Close() error {
	j.once.Do(func() { j.closeErr = j.close() })
	return j.closeErr
}

func (j *Journal) close() error {
	j.wmu.Lock()
	for j.syncing {
		j.idle.Wait()
	}
	var err error
	if j.usable() == nil {
		err = j.flush(true)
	}
	j.mu.Lock()
	j.closed = true
	close(j.closing)
	j.cond.Broadcast()
	j.mu.Unlock()
	j.wmu.Unlock()
	<-j.kept
	if j.flushed != nil {
		<-j.flushed
	}
	return errors.Join(err, j.closeFiles())
}

func (j *Journal) closeFiles() error {
	var errs []error
	all := slices.Concat(j.ready, j.released, j.retired, j.doomed)
	if j.active != nil {
		all = append(all, j.active)
	}
	for _, f := range all {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
