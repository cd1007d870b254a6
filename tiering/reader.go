package tiering

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Reader reads one partition of a stream in the order of offsets, from the store as far as the local log does not reach back, and
// from there on as spool.Reader does. One goroutine uses it; Close may come from another.
type Reader struct {
	t         *Tier
	st        *tiered
	partition int
	next      spool.Offset
	match     *spool.Match

	local   *spool.Reader // nil while it is in the store
	archive *spool.ArchiveReader
	seg     *manifest.Segment // of archive
	release func()
	ahead   *ahead // what is read after archive; nil before it is worth it
	looked  bool   // for ahead, since archive was opened
	damage  damage // likewise

	once   sync.Once
	closed chan struct{}
	using  sync.Mutex // held by Next, and by Close to give back what it holds
}

// NewReader starts at offset from. A nil match selects all. An offset below all that is stored gives a Gap first.
func (t *Tier) NewReader(stream string, partition int, from spool.Offset, m *spool.Match) (*Reader, error) {
	st := t.byName[stream]
	if st == nil {
		return nil, fmt.Errorf("tiering: read %s: %w", stream, ErrNotTiered)
	}
	r := &Reader{t: t, st: st, partition: partition, next: from, match: m, closed: make(chan struct{})}
	probe, err := t.spool.NewReader(stream, partition, from) // unknown streams and partitions are its matter
	if err != nil {
		return nil, err
	}
	probe.Close()
	return r, nil
}

// Offset is the next offset that the reader will speak for.
func (r *Reader) Offset() spool.Offset { return r.next }

// Close ends the reader, wakes its Next and waits for it.
func (r *Reader) Close() {
	r.once.Do(func() { close(r.closed) })
	r.using.Lock()
	defer r.using.Unlock()
	r.drop()
}

// Next waits for records and returns the next batch. A store that does not answer is waited for. It ends with ctx's error, or
// ErrClosed when the reader or the tier is closed.
func (r *Reader) Next(ctx context.Context) (spool.Batch, error) {
	r.using.Lock()
	defer r.using.Unlock()
	if r.isClosed() {
		return spool.Batch{}, ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with Next
		select {
		case <-r.closed:
		case <-r.t.closed:
		case <-ctx.Done():
		}
		cancel()
	}()
	b, err := r.step(ctx)
	if r.isClosed() {
		return spool.Batch{}, ErrClosed
	}
	if err != nil {
		return spool.Batch{}, err
	}
	r.next = b.Next
	return b, nil
}

func (r *Reader) isClosed() bool {
	select {
	case <-r.closed:
		return true
	case <-r.t.closed:
		return true
	default:
		return false
	}
}

func (r *Reader) drop() {
	r.ahead.close()
	r.ahead = nil
	if r.release != nil {
		r.release()
		r.release, r.archive, r.seg = nil, nil, nil
	}
	if r.local != nil {
		r.local.Close()
		r.local = nil
	}
}

func (r *Reader) step(ctx context.Context) (spool.Batch, error) {
	for wait := retryFirst; ; wait = min(2*wait, retryMax) {
		b, ok, err := r.try(ctx)
		switch {
		case ctx.Err() != nil:
			return spool.Batch{}, ctx.Err()
		case ok:
			return b, nil
		case err == nil:
			wait = retryFirst / 2 // something has changed: look again at once
			continue
		case !passes(err):
			return spool.Batch{}, fmt.Errorf("tiering: read %s/%d at %d: %w", r.st.name, r.partition, r.next, err)
		}
		r.t.log.Warn("stored segment cannot be read now", "stream", r.st.name, "partition", r.partition, "offset", r.next, "err", err, "retry", wait)
		select {
		case <-ctx.Done():
			return spool.Batch{}, ctx.Err()
		case <-time.After(wait):
		}
	}
}

const retryFirst = time.Second

// passes tells whether waiting helps.
func passes(err error) bool {
	return !errors.Is(err, spool.ErrClosed) && !errors.Is(err, spool.ErrKey) && !errors.Is(err, spool.ErrUnsupported)
}

// try looks once where the next offset is; false without an error means: look again.
func (r *Reader) try(ctx context.Context) (spool.Batch, bool, error) {
	if r.archive != nil {
		b, ok, err := r.fromArchive(ctx)
		if ok {
			return b, true, nil
		}
		r.release()
		r.release, r.archive, r.seg = nil, nil, nil
		if err != nil {
			return spool.Batch{}, false, err
		}
	}
	start, _ := r.t.spool.Bounds(r.st.name, r.partition)
	if r.local == nil && r.next >= start {
		l, err := r.t.spool.NewReader(r.st.name, r.partition, r.next)
		if err != nil {
			return spool.Batch{}, false, err
		}
		if r.match != nil {
			l.Match(*r.match)
		}
		r.local = l
	}
	if r.local != nil {
		return r.fromLocal(ctx)
	}
	return r.fromStore(ctx, start)
}

// fromArchive reads the segment that is open; false at its end.
func (r *Reader) fromArchive(ctx context.Context) (spool.Batch, bool, error) {
	b, ok, err := r.archive.Next()
	if ok && b.Gap != nil && b.Gap.Reason == spool.GapDamaged {
		first, err := r.damage.meets(ctx, r.t.store, r.seg)
		if err != nil {
			return spool.Batch{}, false, err
		}
		if first {
			r.damaged(r.seg, fmt.Errorf("records %d to %d: %w", b.Gap.From, b.Gap.To-1, ErrDamaged))
		}
	}
	if ok && !r.looked {
		r.fetchAhead(b.Next)
	}
	return b, ok, err
}

// damaged tells of a segment.
func (r *Reader) damaged(seg *manifest.Segment, err error) {
	r.st.damagedReads.Add(1)
	r.t.log.Error("stored segment is damaged; what cannot be read of it is a gap", "stream", r.st.name, "partition", r.partition, "segment", seg.Sequence, "err", err)
}

// fromLocal reads the spool. When the log start has passed us, what is missing may be in the store.
func (r *Reader) fromLocal(ctx context.Context) (spool.Batch, bool, error) {
	b, err := r.local.Next(ctx)
	if err != nil {
		return b, false, err
	}
	if b.Gap != nil && b.Gap.Reason != spool.GapDamaged && r.inStore(b.Gap.From, b.Gap.To) {
		r.local.Close()
		r.local = nil
		return b, false, nil
	}
	return b, true, nil
}

// inStore tells whether the store has an offset of [from, to).
func (r *Reader) inStore(from, to spool.Offset) bool {
	seg, p := r.find(from)
	return seg != nil && p.First < to
}

// find is the first stored segment that has the partition at or behind an offset.
func (r *Reader) find(at spool.Offset) (*manifest.Segment, manifest.Partition) {
	m := r.st.m.Load()
	if m == nil {
		return nil, manifest.Partition{}
	}
	return m.At(r.partition, at)
}

// fromStore opens the segment that has the next offset, or says what cannot be had below the local log's start.
func (r *Reader) fromStore(ctx context.Context, start spool.Offset) (spool.Batch, bool, error) {
	speak := func(to spool.Offset, gap string) (spool.Batch, bool, error) {
		b := spool.Batch{Stream: r.st.name, Partition: r.partition, First: r.next, Next: to}
		if gap != "" {
			b.First, b.Gap = to, &spool.Gap{From: r.next, To: to, Reason: gap}
		}
		return b, true, nil
	}
	seg, p := r.find(r.next)
	if seg == nil || p.First >= start {
		return speak(start, spool.GapRetention)
	}
	if p.First > r.next {
		return speak(p.First, spool.GapRetention)
	}
	if r.match != nil && !seg.Topics.May(r.match.Filters, r.t.cache.keys) {
		return speak(p.Next, "")
	}
	r.ahead.await(ctx)
	a, release, err := r.t.cache.get(ctx, r.t.store, seg)
	r.ahead.close()
	r.ahead = nil
	if err = missing(ctx, r.t.store, err); errors.Is(err, ErrDamaged) || spool.IsDamage(err) {
		if _, still := r.st.m.Load().Find(seg.Sequence); !still { // cold retention was faster: look again
			return spool.Batch{}, false, nil
		}
		if errors.Is(err, store.ErrNotExist) && !r.t.ours.Load() { // nothing is there: a disk that is not mounted, not damage
			return spool.Batch{}, false, err
		}
		r.damaged(seg, err)
		return speak(p.Next, spool.GapDamaged)
	}
	if err != nil {
		return spool.Batch{}, false, err
	}
	r.archive, r.release, r.seg = a.NewReader(r.partition, r.next, r.match, r.t.spool.Clock), release, seg
	r.looked, r.damage = false, damage{}
	return spool.Batch{}, false, nil
}

// fetchAhead has the segment behind this one fetched, once an eighth of this one is read: whoever wants a few records pays for no
// other.
func (r *Reader) fetchAhead(at spool.Offset) {
	p, _ := r.seg.Partition(r.partition)
	if at-p.First < (p.Next-p.First)/8 {
		return
	}
	r.looked = true
	start, _ := r.t.spool.Bounds(r.st.name, r.partition)
	for {
		seg, next := r.find(p.Next)
		switch {
		case seg == nil || next.First >= start:
			return
		case r.match == nil || seg.Topics.May(r.match.Filters, r.t.cache.keys):
			r.ahead = r.t.cache.ahead(context.Background(), r.t.closed, r.t.store, r.seg, seg)
			return
		}
		p = next
	}
}

// Cold is for dumps of what the tier has stored.
func (t *Tier) Cold() *Cold {
	return &Cold{Store: t.store, Cache: t.cache, Clock: t.spool.Clock, Known: func(stream string) *manifest.Manifest {
		if st := t.byName[stream]; st != nil {
			return st.m.Load()
		}
		return nil
	}}
}

// Dump is spool.Spool.Dump over the store and the spool.
func (t *Tier) Dump(ctx context.Context, q spool.DumpQuery, fn func(spool.DumpItem) error) (*spool.DumpPosition, error) {
	st := t.byName[q.Stream]
	if st == nil || st.m.Load() == nil {
		return t.spool.Dump(ctx, q, fn)
	}
	return t.Cold().Dump(ctx, st.m.Load(), t.spool, q, fn)
}

// SeekTime is the offset of the first record of a partition that was received at or after at, in the store or the spool; the log end
// when there is none.
func (t *Tier) SeekTime(ctx context.Context, stream string, partition int, at time.Time) (o spool.Offset, err error) {
	found := false
	_, err = t.Dump(ctx, spool.DumpQuery{Stream: stream, Partition: partition, Since: at, Limit: 1, Expired: true}, func(i spool.DumpItem) error {
		if i.Record != nil && !found {
			o, found = i.Record.Offset, true
		}
		return nil
	})
	if err == nil && !found {
		_, o = t.spool.Bounds(stream, partition)
	}
	return o, err
}
