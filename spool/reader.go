package spool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// Reader reads one partition in offset order: from memory at the tail, from segments when it is behind. It shows nothing
// that is not durable and nothing whose time is over. One goroutine uses it; Close may come from another.
type Reader struct {
	s      *Spool
	p      *partition
	next   Offset
	once   sync.Once
	closed chan struct{}

	mending <-chan struct{} // closed when a damaged segment that the reader waits for may have been replaced; nil when it waits for none

	match   *Match       // nil: everything
	aligned Offset       // where a batch of a segment begins
	refsOf  *segmentFile // whose index refs are
	refs    []Offset     // batches with something that is wanted
}

// readBytes is how much of a segment is read at once: a few batches, so that a reader that is behind does not take the
// lock of the segment for every one of them, and a thousand of them do not take a gigabyte.
const readBytes = 256 << 10

// NewReader starts at offset from. An offset below the log start gives a Gap first, one above the log end waits for it.
func (s *Spool) NewReader(stream string, partition int, from Offset) (*Reader, error) {
	p := s.partition(stream, partition)
	if p == nil {
		return nil, fmt.Errorf("spool: read %s/%d: %w", stream, partition, ErrUnknownStream)
	}
	return &Reader{s: s, p: p, next: from, aligned: NoOffset, closed: make(chan struct{})}, nil
}

// Next waits for records and returns the next batch. It ends with ctx's error, or ErrClosed when the reader or the spool
// is closed.
func (r *Reader) Next(ctx context.Context) (Batch, error) {
	for {
		wake := r.Wake()
		b, ok, err := r.TryNext()
		if errors.Is(err, ErrRepairing) {
			wake, err = r.mending, nil
		}
		if ok || err != nil {
			return b, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		case <-r.closed:
		case <-r.s.closed:
		}
	}
}

// Wake returns a channel that is closed when there may be more than at the last TryNext, so that one goroutine can wait
// for many readers. Ask for it before TryNext, or a record that comes in between is missed.
func (r *Reader) Wake() <-chan struct{} {
	if r.mending != nil {
		return r.mending
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.next < r.p.end {
		return readyNow
	}
	if r.p.wake == nil {
		r.p.wake = make(chan struct{})
	}
	return r.p.wake
}

var readyNow = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// TryNext is Next without waiting for records; false at the tail. It waits while a damaged segment is being replaced, and returns
// ErrRepairing when that cannot be done now.
func (r *Reader) TryNext() (Batch, bool, error) {
	r.mending = nil
	for {
		select {
		case <-r.closed:
			return Batch{}, false, ErrClosed
		case <-r.s.closed:
			return Batch{}, false, ErrClosed
		default:
		}
		b, found, err := r.step()
		switch {
		case err != nil:
			return Batch{}, false, err
		case found == stepTail:
			return Batch{}, false, nil
		case found == stepBatch:
			b = r.selected(b)
			b.Stream, b.Partition = r.p.st.name, r.p.num
			r.next = b.Next
			return b, true, nil
		}
	}
}

type step int

const (
	stepTail  step = iota // nothing there yet
	stepBatch             // a batch
	stepAgain             // the log has changed meanwhile
)

// step looks once where the next offset is.
func (r *Reader) step() (Batch, step, error) {
	p := r.p
	p.mu.RLock()
	if r.next >= p.end {
		p.mu.RUnlock()
		return Batch{}, stepTail, nil
	}
	if r.next < p.start {
		b := p.goneLocked(r.next, p.start)
		p.mu.RUnlock()
		return b, stepBatch, nil
	}
	if c := p.chunkLocked(r.next); c != nil {
		first := r.next
		recs := c.records[first-c.first:]
		recs = recs[:len(recs):len(recs)]
		minExpiry := c.minExpiry
		p.mu.RUnlock()
		return r.batch(first, first+Offset(len(recs)), recs, minExpiry), stepBatch, nil
	}
	p.mu.RUnlock()
	return r.fromSegment()
}

// goneLocked is what a reader at from is told about offsets below to that are gone: a gap, or no more than records whose
// time was over. Ranges that are gone for different reasons are told one after the other.
func (p *partition) goneLocked(from, to Offset) Batch {
	reason := GapRetention
	if l, ok := p.lostAtLocked(from); ok {
		reason, to = l.Reason, min(to, l.To)
	} else {
		for _, l := range p.lost {
			if l.From > from {
				to = min(to, l.From)
			}
		}
	}
	if reason == gapExpired {
		return Batch{First: from, Next: to, Expired: int(to - from)}
	}
	return Batch{First: to, Next: to, Gap: &Gap{From: from, To: to, Reason: reason}}
}

// batch filters out what is expired. recs are shared: they are copied only when one is.
func (r *Reader) batch(first, next Offset, recs []Record, minExpiry int64) (b Batch) {
	b = Batch{First: first, Next: next, Records: recs}
	if minExpiry == 0 {
		return b
	}
	now := r.s.clock.now()
	defer func() { b.Records = wallTimes(b.Records, r.s.clock.skew.Load()) }()
	if minExpiry > now {
		return b
	}
	for i := range recs {
		if recs[i].expired(now) {
			b.Expired++
		}
	}
	if b.Expired == 0 {
		return b
	}
	b.Records = make([]Record, 0, len(recs)-b.Expired)
	for i := range recs {
		if !recs[i].expired(now) && len(b.Records) < cap(b.Records) {
			b.Records = append(b.Records, recs[i])
		}
	}
	r.p.st.skipped.Add(uint64(b.Expired))
	return b
}

// fromSegment reads from the segment that holds the next offset.
func (r *Reader) fromSegment() (Batch, step, error) {
	p, o := r.p, r.next
	f, in := p.st.findRange(p.num, o)
	if f == nil || in.First > o {
		return r.hole(o, in.First, f != nil)
	}
	if o == in.First {
		r.aligned = o
	}
	if to := r.skipTo(f, o, in.Next); to > o {
		r.aligned = to
		return Batch{First: o, Next: to}, stepBatch, nil
	}
	limit := readBytes
	if r.match != nil {
		limit = 1 // one batch: the index says which one is next
	}
	var recs []Record
	var first, next Offset
	minExpiry := int64(0)
	got := false
	found, err := f.with(func(seg *segment.Segment) error {
		_, err := seg.Read(uint16(p.num), uint64(o), limit, func(b segment.Batch) error {
			if got && Offset(b.Base) != next { // a hole: it is told by the next step
				return errStop
			}
			if !got {
				first, got = max(o, Offset(b.Base)), true
			}
			var derr error
			if recs, _, derr = decodeRecords(recs, b.Body, b.Partition, Offset(b.Base)); derr != nil {
				return derr
			}
			next = Offset(b.Next)
			minExpiry = minNonZero(minExpiry, b.MinExpiry)
			return nil
		})
		return err
	})
	switch {
	case !found:
		return Batch{}, stepAgain, nil
	case got && next > o: // what was read before an error is good; the error comes again
	case err != nil && damaged(err):
		r.s.segmentFailed(f, err)
		if f.bad.Load() {
			return r.skipDamaged(f)
		}
		return Batch{}, stepAgain, nil
	case err != nil:
		return Batch{}, stepTail, fmt.Errorf("spool: read %s/%d at %d: %w", p.st.name, p.num, o, err)
	default: // the file holds less than the stream believes
		r.s.segmentFailed(f, &CorruptionError{Where: f.path, Detail: fmt.Sprintf("partition %d: nothing at offset %d", p.num, o)})
		return r.skipDamaged(f)
	}
	if first > o {
		return Batch{First: first, Next: first, Gap: &Gap{From: o, To: first, Reason: GapDamaged}}, stepBatch, nil
	}
	skip := 0
	for skip < len(recs) && recs[skip].Offset < o {
		skip++
	}
	r.s.metrics.readBehind.Inc()
	r.aligned = next
	return r.batch(o, next, recs[skip:], minExpiry), stepBatch, nil
}

var errStop = fmt.Errorf("stop")

// hole tells about offsets from o on that are in no segment: up to next, where a later segment goes on, or to where the tail
// does. What was evicted from the tail was in a segment before, so that it cannot be taken for a hole.
func (r *Reader) hole(o, next Offset, more bool) (Batch, step, error) {
	p := r.p
	p.mu.RLock()
	defer p.mu.RUnlock()
	if o < p.start || p.chunkLocked(o) != nil || o >= p.end {
		return Batch{}, stepAgain, nil // it was removed, or came into memory, since we looked
	}
	to := p.end
	if more {
		to = next
	}
	if o < p.applied {
		to = min(to, p.applied)
	}
	if c := p.chunkAfterLocked(o); c != nil {
		to = min(to, c.first)
	}
	if _, ok := p.lostAtLocked(o); ok {
		return p.goneLocked(o, to), stepBatch, nil
	}
	return Batch{First: to, Next: to, Gap: &Gap{From: o, To: to, Reason: GapDamaged}}, stepBatch, nil
}

// skipDamaged waits until the janitor has saved what can be saved from the segment; then the reader looks again. It does not wait for
// room on a full disk: nobody knows when that comes.
func (r *Reader) skipDamaged(f *segmentFile) (Batch, step, error) {
	r.s.healthMu.Lock()
	repaired := r.s.repaired
	r.s.healthMu.Unlock()
	if alive, _ := f.with(func(*segment.Segment) error { return nil }); !alive {
		return Batch{}, stepAgain, nil // it has been set aside before we asked
	}
	if f.stuck.Load() {
		r.mending = repaired
		return Batch{}, stepTail, fmt.Errorf("spool: read %s/%d at %d: %w", r.p.st.name, r.p.num, r.next, ErrRepairing)
	}
	r.s.kickJanitor()
	select {
	case <-r.s.closed:
		return Batch{}, stepTail, ErrClosed
	case <-r.closed:
		return Batch{}, stepTail, ErrClosed
	case <-repaired:
	}
	return Batch{}, stepAgain, nil
}

// Seek moves the reader: the next batch begins at o.
func (r *Reader) Seek(o Offset) { r.next, r.aligned = o, NoOffset }

// Offset is the next offset that the reader will speak for.
func (r *Reader) Offset() Offset { return r.next }

// Close ends the reader and wakes its Next.
func (r *Reader) Close() { r.once.Do(func() { close(r.closed) }) }

// SeekTime is the offset of the first record that was received at t or later; the log end when there is none. Where the
// clock has gone back it is the first such record, later ones may be older.
func (s *Spool) SeekTime(stream string, partition int, t time.Time) (Offset, error) {
	p := s.partition(stream, partition)
	if p == nil {
		return 0, fmt.Errorf("spool: seek %s/%d: %w", stream, partition, ErrUnknownStream)
	}
	at := UnixNano(t)
	for _, f := range p.st.segments() {
		o, ok, err := seekSegment(f, p.num, at)
		if err != nil {
			s.segmentFailed(f, err)
			continue
		}
		if ok {
			return max(o, p.startNow()), nil
		}
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, c := range p.chunks {
		if c.next() <= p.applied {
			continue
		}
		for i := range c.records {
			if c.records[i].ReceivedAt >= at {
				return c.records[i].Offset, nil
			}
		}
	}
	return p.end, nil
}

// seekSegment finds the batch by the segment's index, and the record inside it.
func seekSegment(f *segmentFile, partition int, at int64) (o Offset, ok bool, err error) {
	_, err = f.with(func(seg *segment.Segment) error {
		base, found, err := seg.SeekTime(uint16(partition), at)
		if err != nil || !found {
			return err
		}
		for !ok && err == nil && found {
			var next uint64
			next, err = seg.Read(uint16(partition), base, 1, func(b segment.Batch) error {
				recs, _, err := decodeRecords(nil, b.Body, b.Partition, Offset(b.Base))
				for i := range recs {
					if recs[i].ReceivedAt >= at && !ok {
						o, ok = recs[i].Offset, true
					}
				}
				return err
			})
			found, base = next > base, next
		}
		return err
	})
	return o, ok, err
}

func (p *partition) startNow() Offset {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.start
}

func (p *partition) bounds() (start, end Offset) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.start, p.end
}
