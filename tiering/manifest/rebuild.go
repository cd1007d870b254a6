package manifest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/tiering/store"
)

// found is what the store has of one segment.
type found struct {
	entry bool
	parts map[int]int64 // sizes

	read func() (*Segment, error) // of the entry
}

// RebuildOptions say what Rebuild cannot know.
type RebuildOptions struct {
	// Floor is the highest that is known: what is below was removed on purpose.
	Floor        uint64
	FloorCreated time.Time

	// Open makes the entry of a segment from its parts, fetched and verified; nil leaves segments without an entry out. Their upload was
	// not finished, or their entry is lost.
	Open func(ctx context.Context, stream string, seq uint64, parts []int64) (*Segment, error)

	// Skip tells about what cannot be used.
	Skip func(seq uint64, err error)
}

// Rebuild makes the manifest of a stream from the objects that the store has, with a generation above all that there are. It stores
// nothing but lost entries.
func Rebuild(ctx context.Context, s store.Store, stream string, o RebuildOptions) (*Manifest, error) {
	have, err := objects(ctx, s, stream)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Version: Version, Stream: stream, Floor: o.Floor, FloorCreated: o.FloorCreated}
	if list, err := generations(ctx, s, stream); err != nil {
		return nil, err
	} else if len(list) > 0 {
		m.Generation = list[len(list)-1]
	}
	maps.DeleteFunc(have, func(seq uint64, _ *found) bool { return seq < o.Floor })
	if err := readEntries(ctx, s, stream, have); err != nil {
		return nil, err
	}
	for _, seq := range slices.Sorted(maps.Keys(have)) {
		seg, err := o.entry(ctx, s, stream, seq, have[seq])
		switch {
		case err == nil && seg != nil:
			m.Segments = append(m.Segments, *seg)
		case errors.Is(err, ErrUnsupported), ctx.Err() != nil:
			return nil, errors.Join(err, ctx.Err())
		case err != nil && transient(err):
			return nil, err
		case err != nil && o.Skip != nil:
			o.Skip(seq, err)
		}
	}
	return m, nil
}

// transient tells what may pass from what is wrong with the objects.
func transient(err error) bool {
	return !errors.Is(err, ErrDamaged) && !errors.Is(err, store.ErrNotExist)
}

// objects is what the store has of a stream's segments.
func objects(ctx context.Context, s store.Store, stream string) (map[uint64]*found, error) {
	have := map[uint64]*found{}
	err := s.List(ctx, stream+"/seg/", func(ob store.Object) error {
		name, rest, _ := strings.Cut(strings.TrimPrefix(ob.Key, stream+"/seg/"), ".")
		seq, err := strconv.ParseUint(name, 16, 64)
		if err != nil || len(name) != 16 {
			return nil // somebody else's object
		}
		f := have[seq]
		if f == nil {
			f = &found{parts: map[int]int64{}}
			have[seq] = f
		}
		if number, ok := strings.CutPrefix(rest, "db."); ok {
			if part, err := strconv.Atoi(number); err == nil && part >= 0 {
				f.parts[part] = ob.Size
			}
		}
		f.entry = f.entry || rest == "json"
		return nil
	})
	return have, err
}

const readersMax = 16 // entries that are read at a time: a store in the cloud takes a moment for each

// readEntries reads the entries that there are. An error is one that may pass.
func readEntries(ctx context.Context, s store.Store, stream string, have map[uint64]*found) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	turn := make(chan struct{}, readersMax)
	for seq, f := range have {
		if !f.entry || ctx.Err() != nil {
			continue
		}
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			seg, err := ReadEntry(ctx, s, stream, seq)
			if err != nil && transient(err) && !errors.Is(err, ErrUnsupported) {
				cancel(err)
			}
			f.read = func() (*Segment, error) { return seg, err }
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// entry is the entry of a segment: its own, or one that Open makes.
func (o *RebuildOptions) entry(ctx context.Context, s store.Store, stream string, seq uint64, f *found) (*Segment, error) {
	var own error
	if f.entry {
		seg, err := f.read()
		if err == nil {
			return seg, f.complete(seg)
		}
		if errors.Is(err, ErrUnsupported) || transient(err) {
			return nil, err
		}
		own = err
	}
	sizes := make([]int64, 0, len(f.parts))
	for part := range len(f.parts) {
		size, ok := f.parts[part]
		if !ok {
			return nil, errors.Join(own, fmt.Errorf("%w: part %d is missing", ErrDamaged, part))
		}
		sizes = append(sizes, size)
	}
	if o.Open == nil || len(sizes) == 0 {
		return nil, errors.Join(own, fmt.Errorf("%w: it has no entry", ErrDamaged))
	}
	seg, err := o.Open(ctx, stream, seq, sizes)
	if err != nil {
		return nil, errors.Join(own, err)
	}
	return seg, PutEntry(ctx, s, seg)
}

// complete tells whether the parts of an entry are there in their sizes.
func (f *found) complete(seg *Segment) error {
	left := seg.Bytes
	for part := range seg.Parts() {
		want := min(left, seg.PartSize)
		if got, ok := f.parts[part]; !ok || got != want {
			return fmt.Errorf("%w: part %d has %d bytes, want %d", ErrDamaged, part, got, want)
		}
		left -= want
	}
	return nil
}

// Garbage are the keys of objects below the manifest's floor:
// what a crash of cold retention left.
func Garbage(ctx context.Context, s store.Store, m *Manifest) (keys []string, err error) {
	err = s.List(ctx, m.Stream+"/seg/", func(ob store.Object) error {
		name, _, _ := strings.Cut(strings.TrimPrefix(ob.Key, m.Stream+"/seg/"), ".")
		if seq, err := strconv.ParseUint(name, 16, 64); err == nil && len(name) == 16 && seq < m.Floor {
			keys = append(keys, ob.Key)
		}
		return nil
	})
	return keys, err
}
