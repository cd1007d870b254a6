package tiering

import (
	"context"
	"errors"

	"github.com/forebay-gateway/forebay/spool"
)

// local dumps what the spool has from o on. Local copies that go meanwhile are read from the store instead.
func (d *coldDump) local(ctx context.Context, in spool.Inspector, p int, o spool.Offset) (*spool.DumpPosition, error) {
	for {
		starts, err := bounds(ctx, in, d.q.Stream)
		if err != nil {
			return nil, err
		}
		start, has := starts[p]
		if !has || start <= o {
			break
		}
		if d.m, err = d.c.latest(ctx, d.q.Stream); err != nil {
			return nil, err
		}
		at, enough, err := d.partition(ctx, p, o, start, true, true)
		if err != nil {
			return nil, err
		}
		if enough {
			return &spool.DumpPosition{Partition: p, Offset: at}, nil
		}
		o = start
	}
	q := d.q
	q.Partition, q.From, q.At = p, o, nil
	if q.Limit > 0 {
		if q.Limit -= d.records; q.Limit <= 0 {
			return &spool.DumpPosition{Partition: p, Offset: o}, nil
		}
	}
	var cut *spool.DumpPosition
	next, err := in.Dump(ctx, q, func(i spool.DumpItem) error {
		switch {
		case i.Record == nil:
			at, enough, err := d.gone(ctx, p, i)
			if enough && err == nil {
				cut, err = &spool.DumpPosition{Partition: p, Offset: at}, errEnough
			}
			return err
		case d.q.Limit > 0 && d.records >= d.q.Limit: // what came from the store in between counts too
			cut = &spool.DumpPosition{Partition: p, Offset: i.Record.Offset}
			return errEnough
		}
		return d.give(i)
	})
	if cut != nil && errors.Is(err, errEnough) {
		return cut, nil
	}
	return next, err
}

var errEnough = errors.New("enough")

// gone looks in the store for what is not in the spool any more, before it is told as a gap.
func (d *coldDump) gone(ctx context.Context, p int, i spool.DumpItem) (spool.Offset, bool, error) {
	if i.Gap.Reason != spool.GapRetention && i.Gap.Reason != spool.GapDamaged {
		return i.Gap.To, false, d.fn(i)
	}
	m, err := d.c.latest(ctx, d.q.Stream)
	if err != nil {
		return i.Gap.From, false, err
	}
	d.m = m
	for n := range m.Segments {
		if have, ok := m.Segments[n].Partition(p); ok && have.First < i.Gap.To && have.Next > i.Gap.From {
			return d.partition(ctx, p, i.Gap.From, i.Gap.To, true, true)
		}
	}
	return i.Gap.To, false, d.fn(i)
}
