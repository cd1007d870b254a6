package tiering

import (
	"context"
	"errors"
	"fmt"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Cold reads what a store holds of streams. It writes nothing there, so that it may belong to anybody: a tool, another machine.
type Cold struct {
	Store store.Store
	Cache *Cache
	Clock spool.Clock // of the spool that wrote it; nil takes its own time for the wall clock

	Known func(stream string) *manifest.Manifest // the latest that there is, of who writes it; nil reads it from the store
}

// latest is a stream's manifest as it is now.
func (c *Cold) latest(ctx context.Context, stream string) (*manifest.Manifest, error) {
	if c.Known != nil {
		if m := c.Known(stream); m != nil {
			return m, nil
		}
	}
	return c.Manifest(ctx, stream)
}

func (c *Cold) clock() spool.Clock {
	if c.Clock == nil {
		return spool.WallClock
	}
	return c.Clock
}

// Manifest reads what the store holds of a stream, also when its manifest is lost: then from the entries.
func (c *Cold) Manifest(ctx context.Context, stream string) (*manifest.Manifest, error) {
	m, err := manifest.Load(ctx, c.Store, stream)
	if errors.Is(err, manifest.ErrLost) {
		m, err = manifest.Rebuild(ctx, c.Store, stream, manifest.RebuildOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("tiering: %w", err)
	}
	return m, nil
}

// wanted tells whether a segment can have a record that q asks for.
func (c *Cold) wanted(seg *manifest.Segment, p manifest.Partition, q *spool.DumpQuery) bool {
	switch {
	case !q.Since.IsZero() && !p.MaxTime.IsZero() && p.MaxTime.Before(q.Since):
		return false
	case !q.Until.IsZero() && !p.MinTime.IsZero() && !p.MinTime.Before(q.Until):
		return false
	case q.To > 0 && p.First >= q.To:
		return false
	case q.Filter != "" && !seg.Topics.May([]string{q.Filter}, c.Cache.keys):
		return false
	}
	return true
}

// Dump calls fn for each record that q asks for and for gaps, partition after partition, as spool.Spool.Dump does: from the store below
// the start of the local log, from local from there on. local is nil when there is no spool any more.
func (c *Cold) Dump(ctx context.Context, m *manifest.Manifest, local spool.Inspector, q spool.DumpQuery, fn func(spool.DumpItem) error) (next *spool.DumpPosition, err error) {
	if q.Filter != "" {
		if err := spool.CheckFilter(q.Filter); err != nil {
			return nil, fmt.Errorf("tiering: dump: %w", err)
		}
	}
	starts, err := bounds(ctx, local, q.Stream)
	if err != nil {
		return nil, err
	}
	partitions := len(starts)
	for i := range m.Segments {
		for _, p := range m.Segments[i].Partitions {
			partitions = max(partitions, p.Partition+1)
		}
	}
	d := &coldDump{c: c, m: m, q: q, fn: fn}
	defer func() { d.ahead.close() }()
	for p := range partitions {
		if q.Partition >= 0 && p != q.Partition || q.At != nil && p < q.At.Partition {
			continue
		}
		from := q.From
		if q.At != nil && q.At.Partition == p {
			from = q.At.Offset
		}
		start, has := starts[p]
		at, enough, err := d.partition(ctx, p, from, start, has, false)
		if err != nil {
			return nil, err
		}
		if enough {
			return &spool.DumpPosition{Partition: p, Offset: at}, nil
		}
		if !has {
			continue
		}
		next, err := d.local(ctx, local, p, max(from, start))
		if next != nil || err != nil {
			return next, err
		}
	}
	return nil, nil
}

// bounds are the starts of the local log by partition.
func bounds(ctx context.Context, local spool.Inspector, stream string) (map[int]spool.Offset, error) {
	starts := map[int]spool.Offset{}
	if local == nil {
		return starts, nil
	}
	l, err := local.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, st := range l.Streams {
		if st.Name != stream {
			continue
		}
		for _, p := range st.Partitions {
			starts[p.Partition] = p.Start
		}
	}
	return starts, nil
}

// coldDump is one call of Dump.
type coldDump struct {
	c       *Cold
	m       *manifest.Manifest
	q       spool.DumpQuery
	fn      func(spool.DumpItem) error
	records int
	ahead   *ahead // what is dumped after the segment that is dumped now
}

func (d *coldDump) give(i spool.DumpItem) error {
	if i.Record != nil {
		d.records++
	}
	return d.fn(i)
}

// partition dumps what the store has below the start of the local log. What is missing before all that there is, is told only inside a log.
func (d *coldDump) partition(ctx context.Context, p int, at, start spool.Offset, hasLocal, inside bool) (spool.Offset, bool, error) {
	first := !inside
	for i := range d.m.Segments {
		seg := &d.m.Segments[i]
		have, ok := seg.Partition(p)
		if !ok || have.Next <= at || hasLocal && have.First >= start {
			continue
		}
		if have.First > at && !first {
			if err := d.gap(p, at, have.First); err != nil {
				return at, false, err
			}
		}
		first = false
		at = max(at, have.First)
		if d.q.To > 0 && at >= d.q.To {
			return at, false, nil
		}
		end := have.Next
		if hasLocal {
			end = min(end, start)
		}
		if d.c.wanted(seg, have, &d.q) {
			next, enough, err := d.segment(ctx, seg, d.after(i, p, start, hasLocal), p, at, end)
			if err != nil || enough {
				return next, enough, err
			}
		}
		at = end
	}
	if hasLocal && !first && at < start && (d.q.To == 0 || at < d.q.To) {
		return start, false, d.gap(p, at, start)
	}
	return at, false, nil
}

// after is the segment that is dumped after segment i, nil when there is none or nobody knows whether it is wanted.
func (d *coldDump) after(i, p int, start spool.Offset, hasLocal bool) *manifest.Segment {
	if d.q.Limit > 0 {
		return nil
	}
	for i++; i < len(d.m.Segments); i++ {
		seg := &d.m.Segments[i]
		if have, ok := seg.Partition(p); ok && !(hasLocal && have.First >= start) && d.c.wanted(seg, have, &d.q) {
			return seg
		}
	}
	return nil
}

// segment dumps one, while the one after it is fetched.
func (d *coldDump) segment(ctx context.Context, seg, after *manifest.Segment, p int, at, end spool.Offset) (spool.Offset, bool, error) {
	d.ahead.await(ctx)
	a, release, err := d.c.Cache.get(ctx, d.c.Store, seg)
	d.ahead.close()
	d.ahead = nil
	if err == nil && after != nil {
		d.ahead = d.c.Cache.ahead(ctx, nil, d.c.Store, seg, after)
	}
	if err = missing(ctx, d.c.Store, err); errors.Is(err, ErrDamaged) || spool.IsDamage(err) {
		gap := spool.Gap{From: at, To: end, Reason: spool.GapDamaged}
		if m, err := d.c.latest(ctx, d.q.Stream); err == nil {
			if _, still := m.Find(seg.Sequence); !still { // cold retention was faster
				gap.Reason = spool.GapRetention
			}
		}
		return end, false, d.fn(spool.DumpItem{Stream: d.q.Stream, Partition: p, Gap: gap})
	}
	if err != nil {
		return at, false, err
	}
	defer release()
	q := d.q
	if q.To == 0 || q.To > end {
		q.To = end
	}
	if q.Limit > 0 {
		q.Limit -= d.records
		if q.Limit <= 0 {
			return at, true, nil
		}
	}
	var damage damage
	return a.Dump(ctx, p, at, q, d.c.clock(), func(i spool.DumpItem) error {
		if i.Record == nil && i.Gap.Reason == spool.GapDamaged {
			if _, err := damage.meets(ctx, d.c.Store, seg); err != nil {
				return err
			}
		}
		return d.give(i)
	})
}

// gap tells about offsets that neither the store nor the spool has.
func (d *coldDump) gap(p int, from, to spool.Offset) error {
	return d.fn(spool.DumpItem{Stream: d.q.Stream, Partition: p, Gap: spool.Gap{From: from, To: to, Reason: spool.GapRetention}})
}
