package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// maxFindings bounds what Verify collects: a file that is damaged all over needs no longer list.
const maxFindings = 100

// Verify reads all of the segment and checks it against its own totals: every batch, the chain of offsets, the time
// index and, when sealed, page tree and topic index. It goes on after damage; the error joins up to 100 findings. An
// active segment is checked up to what it held at the start.
func (s *Segment) Verify(ctx context.Context) error { return s.VerifyEach(ctx, nil) }

// VerifyEach is Verify and calls body, unless it is nil, for each batch that can be read, so that whoever knows what is in a
// body checks that too. Damage is a *CorruptionError of body and one more finding; any other error ends it.
func (s *Segment) VerifyEach(ctx context.Context, body func(Batch) error) error {
	v := verifier{s: s, st: s.state.Load(), body: body}
	steps := []func(context.Context) error{v.batches, v.times}
	if v.st.sealed || s.o.ReadOnly {
		steps = []func(context.Context) error{v.tree, v.batches, v.times, v.index}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return s.wrap("verify", errors.Join(v.found...))
}

// VerifyFile opens the file at path read-only and verifies it. ErrLocked: it is the active segment of a running gateway.
// Info is what could be read, also with an error.
func VerifyFile(ctx context.Context, path string) (Info, error) {
	s, err := Open(path, Options{ReadOnly: true})
	if err != nil {
		return Info{Path: path}, err
	}
	return s.Info(), errors.Join(s.Verify(ctx), s.Close())
}

type verifier struct {
	s     *Segment
	body  func(Batch) error
	st    *state
	found []error
}

// note keeps damage and returns everything else. It returns errEnough when the list is full.
func (v *verifier) note(err error) error {
	var ce *CorruptionError
	if !errors.As(err, &ce) {
		return err
	}
	v.found = append(v.found, ce)
	if len(v.found) >= maxFindings {
		return errors.Join(v.found...)
	}
	return nil
}

func (v *verifier) damaged(format string, args ...any) error {
	return v.note(&CorruptionError{Path: v.s.path, Partition: -1, Reason: fmt.Sprintf(format, args...)})
}

func (v *verifier) tree(context.Context) error {
	if err := v.s.rlock(); err != nil {
		return v.note(err)
	}
	defer v.s.mu.RUnlock()
	if v.s.raw == nil {
		return ErrClosed
	}
	t, _, err := v.s.check(true)
	if err == nil && t.metaDamaged {
		return v.damaged("a meta page: the state may be one write old")
	}
	return v.note(err)
}

func (v *verifier) batches(ctx context.Context) error {
	for _, k := range slices.Sorted(maps.Keys(v.st.parts)) {
		if err := v.partition(ctx, v.st.parts[k]); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) partition(ctx context.Context, want PartitionInfo) error {
	got := PartitionInfo{Partition: want.Partition, First: want.First, Next: want.First}
	bad := len(v.found)
	for at := want.First; at < want.Next; {
		if err := ctx.Err(); err != nil {
			return err
		}
		next, err := v.s.Read(want.Partition, at, 4*maxChunk, func(b Batch) error {
			if b.Base >= want.Next {
				return errEnough
			}
			if b.Base != got.Next {
				got.Gaps++
				got.Missing += b.Base - got.Next
			}
			got.Next = b.Next
			got.Batches++
			got.Records += uint64(b.Count)
			got.RawBytes += uint64(len(b.Body))
			got.StoredBytes += uint64(b.StoredBytes)
			if v.body != nil {
				return v.note(v.body(b))
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			if err := v.note(err); err != nil {
				return err
			}
			damagedBase := next
			var ce *CorruptionError
			if errors.As(err, &ce) && ce.Partition >= 0 {
				damagedBase = max(next, ce.Base)
			}
			base, ok, err := v.s.Skip(want.Partition, damagedBase)
			if err != nil {
				return v.note(err)
			}
			if !ok {
				break
			}
			next = base
		}
		at = next
	}
	if got.MinTime, got.MaxTime = want.MinTime, want.MaxTime; len(v.found) == bad && got != want {
		return v.damaged("partition %d: counted %+v, its state says %+v", want.Partition, got, want)
	}
	return nil
}

// times checks that the time index leads to batches that are there, in their order.
func (v *verifier) times(context.Context) error {
	err := v.s.view(func(tx *bolt.Tx) error {
		d, c := tx.Bucket(bucketData).Cursor(), tx.Bucket(bucketTime).Cursor()
		var last Ref
		for k, _ := c.First(); k != nil; k, _ = c.Next() {
			r, _, err := parseTimeKey(k)
			if err != nil {
				return err
			}
			if r.Partition == last.Partition && r.Base < last.Base {
				return damaged("time index of partition %d goes back to batch %d", r.Partition, r.Base)
			}
			last = r
			want := dataKey(r.Partition, r.Base)
			if k, _ := d.Seek(want); string(k) != string(want) {
				return damaged("time index names partition %d batch %d", r.Partition, r.Base)
			}
		}
		return nil
	})
	return v.note(place(v.s.path, -1, 0, err))
}

func (v *verifier) index(context.Context) error {
	for _, kind := range []Kind{KindTopic, KindClient} {
		_, err := v.s.Lookup(kind, func(string) bool { return true })
		if errors.Is(err, ErrNoIndex) || errors.Is(err, ErrNotSealed) {
			continue
		}
		if ce, ok := errors.AsType[*CorruptionError](err); ok {
			ce.Index = true
		}
		if err := v.note(err); err != nil {
			return err
		}
	}
	return nil
}
