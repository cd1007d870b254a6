package replay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// work is a page on its way from the reader to the sender of a partition.
type work struct {
	records []spool.Record
	bytes   int
	looked  spool.Offset // offsets that it speaks for
	next    spool.Offset // behind the last of them
	expired uint64
	gaps    []Gap
	began   time.Time

	before position // of the partition, when the page was sent
}

// walk carries one partition of a job from its position to its end. soft ends the reading: what is on its way still lands, until hard.
func (e *Engine) walk(soft, hard context.Context, j *job, sink Sink, r Range) error {
	reading, stop := context.WithCancel(soft)
	works := make(chan *work, 1)
	var readErr error
	go func() {
		defer close(works)
		readErr = e.read(reading, j, r, works)
	}()
	defer func() { // the reader uses the source
		stop()
		for range works {
		}
	}()
	var saved durable // of the position that was written last; who looks after the end of the run finds it
	settle := func() error {
		if saved == nil {
			return nil
		}
		defer func() { saved = nil }()
		return saved.wait(hard)
	}
	for w := range works {
		if e.limit(soft, j, w) != nil {
			break
		}
		// What a crash doubles is one page only when the position before it is durable.
		if err := settle(); err != nil {
			return err
		}
		var t Tally
		var err error
		if len(w.records) > 0 {
			if t, err = sink.Send(hard, j.page(r.Partition, w)); err != nil {
				return err
			}
		}
		if saved, err = e.move(hard, j, r.Partition, w, t); err != nil {
			return err
		}
		if soft.Err() != nil {
			break
		}
	}
	if err := settle(); err != nil {
		return err
	}
	if soft.Err() != nil {
		return soft.Err()
	}
	return readErr // works is closed
}

func (e *Engine) limit(ctx context.Context, j *job, w *work) error {
	if j.def.Request.DryRun {
		return ctx.Err()
	}
	return j.limiter.wait(ctx, len(w.records), w.bytes)
}

// move takes up the outcome of a page, and has it written down.
func (e *Engine) move(ctx context.Context, j *job, partition int, w *work, t Tally) (durable, error) {
	changes := j.moved(partition, w, t)
	if !j.def.Request.DryRun {
		e.count(t, w)
	}
	for _, g := range w.gaps {
		e.log.Warn("replay: offsets of its range are gone", "job", j.def.ID, "partition", g.Partition, "from", g.From, "to", g.To, "reason", g.Reason)
	}
	if j.def.Request.DryRun {
		return nil, nil
	}
	done := make(durable, 1)
	if err := e.source.Append(ctx, spool.Entry{Changes: changes, Done: done}); err != nil {
		return nil, fmt.Errorf("replay: position: %w", err)
	}
	return done, nil
}

// read makes pages of a partition, from its position on.
func (e *Engine) read(ctx context.Context, j *job, r Range, out chan<- *work) error {
	req := &j.def.Request
	var outside []Range
	if !j.def.Since.IsZero() || !j.def.Until.IsZero() {
		found, err := e.reads.Outside(req.Stream, r.Partition, j.def.Since, j.def.Until)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		outside = merged(found)
	}
	f := filler{j: j, r: r, out: out, at: j.next(r.Partition), now: e.now}
	f.records, f.bytes = j.limiter.page()
	f.begin()
	for f.at < r.To {
		to := spool.Offset(0)
		if f.at, to = inside(outside, f.at, r.To); to > f.at {
			if err := e.span(ctx, &f, to); err != nil {
				return err
			}
		}
	}
	f.at = r.To
	return f.flush(ctx)
}

// span reads up to an offset.
func (e *Engine) span(ctx context.Context, f *filler, to spool.Offset) error {
	req := &f.j.def.Request
	rd, err := e.reads.NewReader(req.Stream, f.r.Partition, f.at, spool.Match{Filters: req.Filters, ClientID: req.ClientID})
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer rd.Close()
	for f.at < to {
		b, err := rd.Next(ctx)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if err := f.take(ctx, &b, to); err != nil {
			return err
		}
	}
	return nil
}

// merged are ranges in order, without overlaps.
func merged(in []Range) []Range {
	slices.SortFunc(in, func(a, b Range) int {
		if a.From < b.From {
			return -1
		}
		return 1
	})
	var out []Range
	for _, r := range in {
		if n := len(out); n > 0 && r.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, r.To)
			continue
		}
		out = append(out, r)
	}
	return out
}

// inside is the first stretch at or behind an offset that has to be read.
func inside(outside []Range, at, end spool.Offset) (from, to spool.Offset) {
	for _, o := range outside {
		switch {
		case o.To <= at:
		case o.From <= at:
			at = o.To
		default:
			return min(at, end), min(o.From, end)
		}
	}
	return min(at, end), end
}

// filler fills pages with the records that a job wants.
type filler struct {
	j   *job
	r   Range
	out chan<- *work
	now func() time.Time

	records, bytes int // of a page, at most
	at             spool.Offset
	from           spool.Offset // of the page
	w              *work
}

func (f *filler) begin() { f.w, f.from = &work{began: f.now()}, f.at }

const pageTime = time.Second // a position moves that often, also where little is found

func (f *filler) take(ctx context.Context, b *spool.Batch, to spool.Offset) error {
	if g := b.Gap; g != nil {
		gap := Gap{Partition: f.r.Partition, From: max(g.From, f.r.From), To: min(g.To, f.r.To), Reason: g.Reason}
		if gap.From < gap.To {
			f.w.gaps = append(f.w.gaps, gap)
		}
	}
	f.w.expired += uint64(b.Expired)
	for i := range b.Records {
		rec := &b.Records[i]
		if rec.Offset < f.at {
			continue
		}
		if rec.Offset >= to {
			break
		}
		if !f.j.wants(rec) {
			continue
		}
		f.w.records = append(f.w.records, *rec)
		f.w.bytes += len(rec.Payload)
		if len(f.w.records) >= f.records || f.w.bytes >= f.bytes {
			f.at = rec.Offset + 1
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
	f.at = max(f.at, min(b.Next, to))
	if f.at-f.from >= maxLookOffset || f.now().Sub(f.w.began) >= pageTime {
		return f.flush(ctx)
	}
	return nil
}

// flush hands the page on.
func (f *filler) flush(ctx context.Context) error {
	w := f.w
	w.next, w.looked = f.at, f.at-f.from
	if w.looked > 0 || len(w.gaps) > 0 {
		select {
		case f.out <- w:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.begin()
	return nil
}
