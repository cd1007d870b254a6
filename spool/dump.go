package spool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// DumpQuery asks for stored records: of one stream, partition after partition, in the order of offsets. They stay where
// they are; no cursor moves. What is zero does not restrict.
type DumpQuery struct {
	Stream    string
	Partition int       // below 0 is all
	From, To  Offset    // [From, To), of each partition; To 0 is the log end
	Since     time.Time // received at or after
	Until     time.Time // received before
	Filter    string    // MQTT topic filter
	Client    string    // client ID
	Expired   bool      // those whose time is over too, as long as they are there

	At       *DumpPosition // where to go on: what Dump returned
	Limit    int           // records
	MaxBytes int           // of records in memory, about
	MaxTime  time.Duration
}

// DumpPosition is where a dump goes on.
type DumpPosition struct {
	Partition int    `json:"partition"`
	Offset    Offset `json:"offset"`
}

// DumpItem is a record or a gap.
type DumpItem struct {
	Stream    string
	Partition int
	Record    *Record // nil: a gap
	Gap       Gap
}

// Dump calls fn for each record that q asks for. next is nil when it got to the end; else a limit of q has ended it.
func (s *Spool) Dump(ctx context.Context, q DumpQuery, fn func(DumpItem) error) (next *DumpPosition, err error) {
	st := s.byName[q.Stream]
	if st == nil {
		return nil, unknownStream("dump", q.Stream)
	}
	if q.Filter != "" {
		if err := CheckFilter(q.Filter); err != nil {
			return nil, fmt.Errorf("spool: dump: %w", err)
		}
	}
	if q.Partition >= len(st.parts) {
		return nil, fmt.Errorf("spool: dump: %s/%d: %w", q.Stream, q.Partition, ErrUnknownStream)
	}
	d := dumper{s: s, q: q, fn: fn, began: time.Now()}
	d.now, d.skew = s.clock.read()
	d.since, d.until = math.MinInt64, math.MaxInt64
	if !q.Since.IsZero() {
		d.since = UnixNano(q.Since)
	}
	if !q.Until.IsZero() {
		d.until = UnixNano(q.Until)
	}
	for _, p := range st.parts {
		if q.Partition >= 0 && p.num != q.Partition || q.At != nil && p.num < q.At.Partition {
			continue
		}
		from := q.From
		if q.At != nil && q.At.Partition == p.num {
			from = q.At.Offset
		}
		at, err := d.partition(ctx, p, from)
		switch {
		case errors.Is(err, errEnough):
			return &DumpPosition{p.num, at}, nil
		case err != nil:
			return nil, err
		}
	}
	return nil, nil
}

// Dump calls fn for each record that the next start would find.
func (v *View) Dump(ctx context.Context, q DumpQuery, fn func(DumpItem) error) (next *DumpPosition, err error) {
	return v.s.Dump(ctx, q, fn)
}

// dumper is one call of Dump.
type dumper struct {
	s            *Spool
	q            DumpQuery
	fn           func(DumpItem) error
	since, until int64
	now          int64
	skew         int64 // of the wall clock to that
	began        time.Time
	records      int
	bytes        int
}

// partition dumps a partition from o on. With errEnough at is where to go on.
func (d *dumper) partition(ctx context.Context, p *partition, o Offset) (at Offset, err error) {
	start, end := p.bounds()
	if d.q.To > 0 {
		end = min(end, d.q.To)
	}
	if o < start {
		if err := d.lost(p, o, min(start, end), true); err != nil {
			return o, err
		}
		o = start
	}
	for o < end {
		if err := ctx.Err(); err != nil {
			return o, err
		}
		if o, err = d.step(ctx, p, o, end); err != nil {
			return o, err
		}
	}
	return o, nil
}

// step dumps what one place has, memory or a segment, and returns where to go on. A segment that goes meanwhile is looked
// for again.
func (d *dumper) step(ctx context.Context, p *partition, o, end Offset) (Offset, error) {
	p.mu.RLock()
	if c := p.chunkLocked(o); c != nil {
		recs := c.records[o-c.first:]
		p.mu.RUnlock()
		return d.take(p, recs, o, min(end, recs[len(recs)-1].Offset+1))
	}
	hole := p.applied
	if hole <= o { // a loss of the journal: from here on memory has all that there is
		hole = end
		for _, c := range p.chunks {
			if c.first > o {
				hole = min(hole, c.first)
				break
			}
		}
	}
	p.mu.RUnlock()
	f, from := p.st.holder(p.num, o)
	if f == nil {
		return min(hole, end), d.lost(p, o, min(hole, end), false)
	}
	if from > o {
		return min(from, end), d.lost(p, o, min(from, end), false)
	}
	next := o
	_, err := f.with(func(seg *segment.Segment) (err error) {
		next, err = d.segment(ctx, p, seg, o, end)
		return err
	})
	return next, err
}

// segment dumps what a segment has from o on. With an index, only the batches that have the topic or client are read.
func (d *dumper) segment(ctx context.Context, p *partition, seg *segment.Segment, o, end Offset) (Offset, error) {
	in, ok := seg.Info().Partition(uint16(p.num))
	if !ok || Offset(in.Next) <= o {
		return max(o, Offset(in.Next)), nil
	}
	if in.Records > 0 && (in.MaxTime < d.since || in.MinTime >= d.until) {
		return min(end, Offset(in.Next)), nil
	}
	refs, indexed := d.lookup(seg, p)
	if !indexed {
		return d.scan(ctx, p, seg, o, min(end, Offset(in.Next)))
	}
	for _, base := range refs {
		if base >= end {
			break
		}
		if err := ctx.Err(); err != nil {
			return o, err
		}
		at, err := d.read(p, seg, max(o, base), end)
		if err != nil {
			return at, err
		}
		o = max(o, at)
	}
	return min(end, Offset(in.Next)), nil
}

// lookup asks the index; false when all must be read. Damage of the index is no reason to show nothing.
func (d *dumper) lookup(seg *segment.Segment, p *partition) (bases []Offset, indexed bool) {
	var refs map[Offset]bool
	ask := func(kind segment.Kind, match func(string) bool) {
		found, err := seg.Lookup(kind, match)
		if err != nil {
			return
		}
		have := make(map[Offset]bool, len(found))
		bases = bases[:0]
		for _, r := range found {
			if int(r.Partition) == p.num && (!indexed || refs[Offset(r.Base)]) {
				have[Offset(r.Base)] = true
				bases = append(bases, Offset(r.Base))
			}
		}
		refs, indexed = have, true
	}
	if d.q.Client != "" {
		ask(segment.KindClient, func(c string) bool { return c == d.q.Client })
	}
	if d.q.Filter != "" {
		ask(segment.KindTopic, func(topic string) bool { return MatchFilter(d.q.Filter, topic) })
	}
	return bases, indexed
}

func (d *dumper) scan(ctx context.Context, p *partition, seg *segment.Segment, o, end Offset) (Offset, error) {
	if d.q.Since.IsZero() {
		return d.scanFrom(ctx, p, seg, o, end)
	}
	// Where the clock went back, later batches may be older: the index leads to the first that can matter.
	base, ok, err := seg.SeekTime(uint16(p.num), d.since)
	if err == nil && !ok {
		return end, nil
	}
	return d.scanFrom(ctx, p, seg, max(o, Offset(base)), end)
}

func (d *dumper) scanFrom(ctx context.Context, p *partition, seg *segment.Segment, o, end Offset) (Offset, error) {
	for o < end {
		if err := ctx.Err(); err != nil {
			return o, err
		}
		at, err := d.read(p, seg, o, end)
		if err != nil {
			return at, err
		}
		if at <= o {
			return end, nil
		}
		o = at
	}
	return o, nil
}

// read dumps the batch that holds o, or the next one. A damaged one is shown as a gap.
func (d *dumper) read(p *partition, seg *segment.Segment, o, end Offset) (Offset, error) {
	at := o
	var enough error
	_, err := seg.Read(uint16(p.num), uint64(o), 1, func(b segment.Batch) error {
		if Offset(b.Base) > at {
			if err := d.lost(p, at, min(Offset(b.Base), end), false); err != nil {
				enough = err
				return nil
			}
			at = min(Offset(b.Base), end)
		}
		recs, _, err := decodeRecords(make([]Record, 0, b.Count), b.Body, b.Partition, Offset(b.Base))
		if err != nil {
			return &segment.CorruptionError{Path: seg.Path(), Partition: p.num, Base: b.Base, Reason: err.Error()}
		}
		at, enough = d.take(p, recs, at, min(end, Offset(b.Next)))
		return nil
	})
	if err == nil || enough != nil {
		return at, enough
	}
	var ce *segment.CorruptionError
	if !errors.As(err, &ce) {
		return at, err
	}
	base, ok, serr := seg.Skip(uint16(p.num), max(uint64(o), ce.Base))
	if serr != nil || !ok {
		in, _ := seg.Info().Partition(uint16(p.num))
		base = in.Next
	}
	to := min(end, Offset(base))
	return to, d.gap(p, Gap{From: o, To: to, Reason: GapDamaged})
}

// take gives fn the records of [o, next) that are asked for. When it stops in between, it returns where.
func (d *dumper) take(p *partition, recs []Record, o, next Offset) (Offset, error) {
	for i := range recs {
		r := &recs[i]
		if r.Offset < o || r.Offset >= next || !d.wants(r) {
			continue
		}
		if d.enough() {
			return r.Offset, errEnough
		}
		d.records++
		d.bytes += recordMemory(r)
		if err := d.fn(DumpItem{Stream: p.st.name, Partition: p.num, Record: &wallTimes(recs[i:i+1], d.skew)[0]}); err != nil {
			return r.Offset, err
		}
	}
	if d.q.MaxTime > 0 && time.Since(d.began) > d.q.MaxTime {
		return next, errEnough
	}
	return next, nil
}

func (d *dumper) wants(r *Record) bool {
	return r.ReceivedAt >= d.since && r.ReceivedAt < d.until && (d.q.Expired || !r.expired(d.now)) &&
		(d.q.Client == "" || r.ClientID == d.q.Client) && (d.q.Filter == "" || MatchFilter(d.q.Filter, r.Topic))
}

func (d *dumper) enough() bool {
	return d.q.Limit > 0 && d.records >= d.q.Limit || d.q.MaxBytes > 0 && d.bytes >= d.q.MaxBytes
}

// lost tells about offsets [from, to) that are in no file, by the reasons that are known. Below the log start only what is
// more than retention is told: nobody asked for all of the past.
func (d *dumper) lost(p *partition, from, to Offset, belowStart bool) error {
	for from < to {
		p.mu.RLock()
		b := p.goneLocked(from, to)
		p.mu.RUnlock()
		if b.Gap != nil && b.Gap.To > from {
			g := *b.Gap
			g.From, g.To = from, min(g.To, to)
			if g.Reason == GapRetention && !belowStart {
				g.Reason = GapDamaged // inside the log nothing goes by retention
			}
			if !belowStart || g.Reason != GapRetention {
				if err := d.gap(p, g); err != nil {
					return err
				}
			}
			from = g.To
			continue
		}
		from = max(b.Next, from+1)
	}
	return nil
}

func (d *dumper) gap(p *partition, g Gap) error {
	return d.fn(DumpItem{Stream: p.st.name, Partition: p.num, Gap: g})
}
