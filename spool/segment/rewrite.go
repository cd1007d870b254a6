package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// rewriteBytes is how much raw body one transaction of Rewrite holds.
const rewriteBytes = 4 << 20

// Rewrite makes a sealed segment at dst from s, which is sealed, with what keep returns for each batch. false leaves a
// hole (Count 0, no body) for the batch's offsets, so that no gap shows; neighbours share one. keep must not change
// partition, base or next. Stream, sequence, time of creation and applied position are those of s unless o names others. dst is synced and
// complete when Rewrite returns nil, and not there otherwise; the caller renames it and syncs the directory.
func (s *Segment) Rewrite(ctx context.Context, dst string, o Options, index IndexFunc, keep func(Batch) (Batch, bool, error)) (info Info, err error) {
	if !s.state.Load().sealed {
		return Info{}, s.wrap("rewrite", ErrNotSealed)
	}
	in := s.Info()
	if o.Stream == "" {
		o.Stream, o.Sequence = in.Stream, in.Sequence
	}
	if o.Created == 0 {
		o.Created = in.Created // retention counts from there
	}
	// Room for all of it in whatever codec: address space only.
	o.MaxSize = max(o.MaxSize, defaultMaxSize, 2*in.FileBytes, int64(in.RawBytes)*5/4)
	d, err := Create(dst, o)
	if err != nil {
		return Info{}, s.wrap("rewrite", err)
	}
	defer func() {
		err = s.wrap("rewrite", errors.Join(err, d.Close()))
		if err != nil {
			info = Info{}
			_ = os.Remove(dst)
		}
	}()
	w := rewriter{dst: d}
	err = s.each(ctx, func(b Batch) error { return w.take(b, keep) })
	if err != nil {
		return Info{}, err
	}
	if err := w.flush(in.Applied); err != nil {
		return Info{}, err
	}
	if err := d.Seal(ctx, index); err != nil {
		return Info{}, err
	}
	return d.Info(), nil
}

type rewriter struct {
	dst   *Segment
	batch []Batch
	bytes int
}

func (w *rewriter) take(b Batch, keep func(Batch) (Batch, bool, error)) error {
	out := b
	out.Count = 0
	if b.Count > 0 {
		kept, ok, err := keep(b)
		if err != nil {
			return err
		}
		if ok {
			out = kept
		}
		if out.Partition != b.Partition || out.Base != b.Base || out.Next != b.Next {
			return fmt.Errorf("partition %d [%d, %d): kept as partition %d [%d, %d)", b.Partition, b.Base, b.Next, out.Partition, out.Base, out.Next)
		}
	}
	if out.Count == 0 {
		out = Batch{Partition: b.Partition, Base: b.Base, Next: b.Next}
		if n := len(w.batch) - 1; n >= 0 && w.batch[n].Count == 0 && w.batch[n].Partition == out.Partition && w.batch[n].Next == out.Base {
			w.batch[n].Next = out.Next
			return nil
		}
	}
	w.batch = append(w.batch, out)
	w.bytes += len(out.Body)
	if w.bytes < rewriteBytes {
		return nil
	}
	return w.flush(0)
}

func (w *rewriter) flush(applied uint64) error {
	if err := w.dst.Write(applied, w.batch); err != nil {
		return err
	}
	w.batch, w.bytes = nil, 0
	return nil
}
