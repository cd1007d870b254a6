package tiering

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
)

// pending is what has been stored and the manifest does not say yet: segments with their entries, and Parquet files. A crash finds them
// by the entries.
type pending struct {
	segments map[uint64]entry // by sequence
	bytes    int64
	since    time.Time
}

type entry struct {
	*manifest.Segment
	uploaded bool // the segment itself, not something beside it
}

func (p *pending) add(seg *manifest.Segment, uploaded bool) {
	if p.segments == nil {
		p.segments, p.since = map[uint64]entry{}, time.Now()
	}
	p.segments[seg.Sequence] = entry{seg, uploaded}
	p.bytes += seg.Bytes
}

func (p *pending) has(seq uint64) bool {
	_, ok := p.segments[seq]
	return ok
}

func (p *pending) forget(seq uint64) { delete(p.segments, seq) }

// without leaves out what is stored.
func (p *pending) without(list []spool.Sealed) (rest []spool.Sealed) {
	for _, se := range list {
		if have, ok := p.segments[se.Sequence]; !ok || have.Created.UnixNano() != se.ID().Created {
			rest = append(rest, se)
		}
	}
	return rest
}

const (
	saveEvery = 10 * time.Second // the manifest is written at least this often while segments go up
	saveCount = 16

	// The manifest is one object with all segments, and is written as a whole. A small one is written at once; a large one is
	// not to be more than a fifth of what goes up, but for once in a while.
	manifestSmall = 1 << 20
	manifestShare = 4
	saveLatest    = time.Minute
)

// worth tells whether so many bytes of segments are worth writing the manifest for; last is when that was done last.
func (st *tiered) worth(bytes int64, last time.Time) bool {
	return st.size <= manifestSmall || bytes >= manifestShare*st.size || time.Since(last) >= saveLatest
}

// flush writes what is pending into the manifest, when there is enough of it. end says that nothing comes for now.
func (t *Tier) flush(ctx context.Context, st *tiered, end bool) error {
	p := st.pending
	enough := end || len(p.segments) >= saveCount || time.Since(p.since) > saveEvery
	if len(p.segments) == 0 || !enough || !st.worth(p.bytes, st.saved) {
		return nil
	}
	return t.savePending(ctx, st, st.withPending())
}

// withPending is the manifest with what it does not say yet.
func (st *tiered) withPending() *manifest.Manifest {
	if len(st.pending.segments) == 0 {
		return st.m.Load()
	}
	list := make([]manifest.Segment, 0, len(st.pending.segments))
	for _, e := range st.pending.segments {
		list = append(list, *e.Segment)
	}
	return st.m.Load().With(list...)
}

// savePending makes m, which has what is pending, the stored manifest.
func (t *Tier) savePending(ctx context.Context, st *tiered, m *manifest.Manifest) error {
	p := st.pending
	st.pending = pending{}
	if err := t.save(ctx, st, m); err != nil {
		return err
	}
	st.saved = time.Now()
	for _, seq := range slices.Sorted(maps.Keys(p.segments)) {
		if e := p.segments[seq]; e.uploaded {
			st.uploaded.Add(1)
			st.uploadedBytes.Add(uint64(e.Bytes))
			t.log.Info("segment stored", "stream", st.name, "segment", e.Sequence, "bytes", e.Bytes)
		}
	}
	return nil
}
