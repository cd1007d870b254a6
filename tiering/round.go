package tiering

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Round does once what Run repeats: claim the prefix, read the manifests, store what is due, remove what may go. Its error is one of
// the store, and the next round tries again; what is wrong with one stream does not hold the others.
func (t *Tier) Round(ctx context.Context) error {
	if err := t.claim(ctx); err != nil {
		for _, st := range t.streams {
			t.count(st)
		}
		return err
	}
	var errs []error
	for _, st := range t.streams {
		err := t.roundOf(ctx, st)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch label, hint := reason(err); label {
		case "conflict", "damaged", "unsupported": // of this stream, and it does not pass
			if st.fail(err, t.now()) {
				t.log.Error("stream cannot be stored", "stream", st.name, "err", err, "hint", hint)
			}
			t.metrics.errors.WithLabelValues(label).Inc()
		case "changed":
			t.Kick()
		default:
			st.fail(nil, t.now())
			errs = append(errs, err)
		}
	}
	t.growth.note(t)
	return errors.Join(errs...)
}

// claim makes sure that the prefix is ours, at the start and from time to time.
func (t *Tier) claim(ctx context.Context) error {
	if !t.claimed.IsZero() && time.Since(t.claimed) < claimEvery {
		return nil
	}
	t.ours.Store(false)
	err := t.emptied(ctx)
	if err == nil {
		err = manifest.Claim(ctx, t.store, t.owner)
	}
	if err == nil {
		err = t.noteStore(ctx)
	}
	if err != nil {
		if errors.Is(err, manifest.ErrOwned) {
			for _, st := range t.streams {
				st.loaded = false
			}
		}
		t.claimed = time.Time{}
		return fmt.Errorf("owner marker: %w", err)
	}
	t.claimed = time.Now()
	t.ours.Store(true)
	return nil
}

func (t *Tier) count(st *tiered) []spool.Sealed {
	list, err := t.spool.Sealed(st.name)
	if err != nil {
		return nil
	}
	return st.look(list)
}

func (t *Tier) roundOf(ctx context.Context, st *tiered) error {
	defer t.count(st)
	if !st.loaded {
		if err := t.load(ctx, st); err != nil {
			return err
		}
	}
	err := t.uploads(ctx, st)
	if err == nil {
		err = t.parquets(ctx, st)
	}
	// What cannot be stored must not keep what makes room, in a store that is full above all. With a conflict nothing goes: it may be
	// the log of another one.
	if label, _ := reason(err); err != nil && label != "full" && label != "damaged" || ctx.Err() != nil || !st.loaded {
		return err
	}
	if lerr := t.removeLocal(ctx, st); lerr != nil {
		return errors.Join(err, lerr)
	}
	return errors.Join(err, t.retain(ctx, st))
}

// uploads stores what is due, oldest first. The manifest is written for a few at a time: a crash in between finds them by their
// entries.
func (t *Tier) uploads(ctx context.Context, st *tiered) error {
	err := t.uploadEach(ctx, st, t.due(st, st.pending.without(t.count(st))), func(seg *manifest.Segment) error {
		st.pending.add(seg, true)
		return t.flush(ctx, st, false)
	})
	return errors.Join(err, t.flush(ctx, st, true))
}

// upload is one segment on its way.
type upload struct {
	seg  *manifest.Segment
	err  error
	done chan struct{}
}

// uploadEach uploads segments, two at a time: while one is written, the other is read back and hashed; but one at a time while records
// come, so that a processor is free for them. fn gets what is stored, in order.
// It returns when nothing is on its way any more; at the first error, none is begun.
func (t *Tier) uploadEach(ctx context.Context, st *tiered, list []spool.Sealed, fn func(*manifest.Segment) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var flying []*upload
	await := func() {
		u := flying[0]
		flying = flying[1:]
		<-u.done
		switch {
		case err != nil, errors.Is(u.err, spool.ErrChanged), errors.Is(u.err, spool.ErrUnknownSegment):
			return // what has been stored behind an error is found by its entry
		case u.err == nil:
			err = fn(u.seg)
		default:
			err = u.err
		}
		if err != nil {
			cancel()
		}
	}
	for i, se := range list {
		if err != nil || t.pausedNow() {
			break
		}
		t.uploader.yield.backlog(len(list)-i, t.watermark(st.name))
		u := &upload{done: make(chan struct{})}
		flying = append(flying, u)
		go func() {
			defer close(u.done)
			u.seg, u.err = t.uploadOne(ctx, st, se)
		}()
		if len(flying) == 2 || t.uploader.yield.busy(time.Now()) {
			await()
		}
	}
	for len(flying) > 0 {
		await()
	}
	return err
}

func (t *Tier) uploadOne(ctx context.Context, st *tiered, se spool.Sealed) (*manifest.Segment, error) {
	f, err := t.spool.SealedFile(st.name, se.Sequence)
	if err != nil {
		return nil, err
	}
	parts := time.Duration(1 + se.Bytes/int64(t.cfg.PartSize))
	limit := callMax * parts
	if t.cfg.Bandwidth > 0 {
		limit += time.Duration(float64(3*se.Bytes) / float64(t.cfg.Bandwidth) * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.uploader.upload(ctx, f)
}

// pausedNow tells whether now is one of the configured times.
func (t *Tier) pausedNow() bool {
	paused := false
	for _, p := range t.pauses {
		paused = paused || p.has(t.now().Local())
	}
	if paused != t.paused.Swap(paused) {
		t.log.Info("uploads are paused by configuration", "paused", paused)
	}
	return paused
}

// due is what of the missing segments has to go up now.
func (t *Tier) due(st *tiered, missing []spool.Sealed) []spool.Sealed {
	c := st.cfg
	if len(missing) == 0 || c.UploadAfter == 0 && c.UploadCount == 0 && c.UploadWatermark == 0 {
		return missing
	}
	if c.UploadCount > 0 && len(missing) >= c.UploadCount || c.UploadWatermark > 0 && t.watermark(st.name) >= float64(c.UploadWatermark) {
		return missing
	}
	own, _ := t.spool.Clock() // SealedAt is in it
	var due []spool.Sealed
	for _, se := range missing {
		if c.UploadAfter > 0 && own.Sub(se.SealedAt) >= c.UploadAfter.Std() {
			due = append(due, se)
		}
	}
	return due
}

// watermark is how full the spool or the stream is, in percent of what it may have.
func (t *Tier) watermark(stream string) float64 {
	stats := t.spool.Stats()
	full := 100 * float64(stats.BytesOnDisk) / float64(max(stats.MaxSize, 1))
	if used, limit := t.spool.StreamSize(stream); limit > 0 {
		full = max(full, 100*float64(used)/float64(limit))
	}
	return full
}

// removeLocal removes local copies that are old enough. The store is asked once more for each: what somebody took away there must not
// cost the last copy.
func (t *Tier) removeLocal(ctx context.Context, st *tiered) error {
	if st.cfg.KeepLocal == 0 {
		return nil
	}
	own, _ := t.spool.Clock() // no step of the wall clock makes anything old
	list, err := t.spool.Sealed(st.name)
	if err != nil {
		return err
	}
	for i, se := range list { // the next is the oldest once the one before is gone; RemoveSealed looks again
		seg, stored := st.m.Load().Find(se.Sequence)
		if !stored || seg.Created.UnixNano() != se.ID().Created || i == 0 && !se.Oldest || !se.Delivered || own.Sub(later(se.SealedAt, se.Created)) < st.cfg.KeepLocal.Std() {
			return nil
		}
		if err := present(ctx, t.store, seg); errors.Is(err, ErrDamaged) {
			if err := t.again(ctx, st, se, err); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		gone, err := t.spool.RemoveSealed(ctx, st.name, se.Sequence)
		if err != nil || !gone {
			return err
		}
		st.removedLocal.Add(1)
	}
	return nil
}

// again stores a segment once more whose stored copy is not what it was.
func (t *Tier) again(ctx context.Context, st *tiered, se spool.Sealed, why error) error {
	t.log.Warn("segment is stored once more", "stream", st.name, "segment", se.Sequence, "err", why)
	seg, err := t.uploadOne(ctx, st, se)
	if err != nil {
		return err
	}
	if have, ok := st.m.Load().Find(se.Sequence); ok {
		seg.Parquet, seg.ParquetBytes = have.Parquet, have.ParquetBytes
	}
	st.pending.forget(seg.Sequence)
	return t.save(ctx, st, st.m.Load().With(*seg))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// present asks the store whether all of a segment is there.
func present(ctx context.Context, s store.Store, seg *manifest.Segment) error {
	left := seg.Bytes
	for part := range seg.Parts() {
		want := min(left, seg.PartSize)
		o, err := s.Stat(ctx, manifest.PartKey(seg.Stream, seg.Sequence, part))
		if errors.Is(err, store.ErrNotExist) || err == nil && o.Size != want {
			return fmt.Errorf("segment %d of %s is stored, and part %d is not what it was: %w", seg.Sequence, seg.Stream, part, errors.Join(ErrDamaged, err))
		}
		if err != nil {
			return err
		}
		left -= want
	}
	return nil
}

// retain removes from the store what its retention does not keep: first the manifest says so, then the objects go. What a crash
// leaves is swept once after a start.
func (t *Tier) retain(ctx context.Context, st *tiered) error {
	m := st.withPending() // else what waits would come back behind the removal, and the floor with it
	if !st.swept {
		keys, err := manifest.Garbage(ctx, t.store, m)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if err := t.store.Delete(ctx, key); err != nil {
				return err
			}
		}
		st.swept = true
	}
	n := t.outdated(st, m)
	if n == 0 {
		return nil
	}
	gone, bytes := m.Segments[:n], int64(0)
	for i := range gone {
		bytes += gone[i].Bytes
	}
	if !st.worth(bytes, st.retained) {
		return nil
	}
	if err := t.savePending(ctx, st, m.WithoutFirst(n)); err != nil {
		return err
	}
	st.retained = time.Now()
	for i := range gone {
		if err := manifest.DeleteSegment(ctx, t.store, &gone[i]); err != nil {
			st.swept = false
			return err
		}
		st.removedCold.Add(1)
		t.log.Info("segment removed from the store", "stream", st.name, "segment", gone[i].Sequence, "bytes", gone[i].Bytes)
	}
	return nil
}

// outdated is how many of the oldest segments have to go.
func (t *Tier) outdated(st *tiered, m *manifest.Manifest) (n int) {
	bytes := m.Bytes()
	own, _ := t.spool.Clock() // a wall clock that is set a year ahead must not empty the store
	for n < len(m.Segments) {
		seg := &m.Segments[n]
		old := st.cfg.Retention > 0 && own.Sub(later(seg.SealedAt, seg.Created)) >= st.cfg.Retention.Std()
		if !old && (st.cfg.MaxSize == 0 || bytes <= int64(st.cfg.MaxSize)) {
			break
		}
		bytes -= seg.Bytes
		n++
	}
	return n
}
