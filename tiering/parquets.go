package tiering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// parquetKey is the key of the Parquet file of a segment, below its stream: by day, as tools for data expect it.
func parquetKey(seg *manifest.Segment) string {
	at := later(seg.MinTime, seg.Created)
	if !seg.MinTime.IsZero() {
		at = seg.MinTime
	}
	return fmt.Sprintf("parquet/date=%s/%016x.parquet", at.UTC().Format("2006-01-02"), seg.Sequence)
}

const parquetAgain = 10 * time.Minute // after one that could not be written

// parquets writes the Parquet files that are missing. One that cannot be written holds nothing else.
func (t *Tier) parquets(ctx context.Context, st *tiered) error {
	if !st.cfg.Parquet || t.o.Parquet == nil {
		return nil
	}
	m := st.m.Load()
	for i := range m.Segments {
		seg := m.Segments[i]
		if len(seg.Parquet) > 0 || st.pending.has(seg.Sequence) || time.Since(st.tries[seg.Sequence]) < parquetAgain || t.pausedNow() {
			continue
		}
		if err := t.parquet(ctx, &seg); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			st.tries[seg.Sequence] = time.Now()
			t.log.Warn("Parquet file of a segment cannot be written; it is tried again", "stream", st.name, "segment", seg.Sequence, "err", err, "retry", parquetAgain)
			continue
		}
		if err := manifest.PutEntry(ctx, t.store, &seg); err != nil {
			return err
		}
		st.pending.add(&seg, false)
		if err := t.flush(ctx, st, false); err != nil {
			return err
		}
	}
	return t.flush(ctx, st, true)
}

// parquet writes the file of one segment, from its stored copy: that is what it stands beside.
func (t *Tier) parquet(ctx context.Context, seg *manifest.Segment) error {
	a, release, err := t.cache.get(ctx, t.store, seg)
	if err != nil {
		return err
	}
	defer release()
	path, done, err := t.scratch()
	if err != nil {
		return err
	}
	defer done()
	if err := t.o.Parquet(ctx, a, path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	key := parquetKey(seg)
	if err := t.store.Put(ctx, seg.Stream+"/"+key, t.cache.limit.reader(ctx, f), fi.Size(), store.PutOptions{}); err != nil {
		return err
	}
	if o, err := t.store.Stat(ctx, seg.Stream+"/"+key); err != nil || o.Size != fi.Size() {
		return errors.Join(ErrDamaged, err)
	}
	seg.Parquet, seg.ParquetBytes = []string{key}, fi.Size()
	return nil
}
