package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/tiering/store"
)

// maxManifest bounds what is read into memory: 100,000 segments.
const maxManifest = 256 << 20

// PartKey is the key of a part of a segment.
func PartKey(stream string, seq uint64, part int) string {
	return fmt.Sprintf("%s/seg/%016x.db.%04d", stream, seq, part)
}

// EntryKey is the key of a segment's entry.
func EntryKey(stream string, seq uint64) string { return fmt.Sprintf("%s/seg/%016x.json", stream, seq) }

func generationKey(stream string, generation uint64) string {
	return fmt.Sprintf("%s/manifest/%016d.json", stream, generation)
}

const keptGenerations = 3 // the last good one is behind one that was damaged

// Load reads the newest manifest that is whole. An empty one when the store has nothing of the stream; ErrLost when it has segments and
// no manifest that can be read: Rebuild makes one.
func Load(ctx context.Context, s store.Store, stream string) (*Manifest, error) {
	m, _, err := LoadStored(ctx, s, stream)
	return m, err
}

// LoadStored is Load, and what is stored.
func LoadStored(ctx context.Context, s store.Store, stream string) (m *Manifest, stored []byte, err error) {
	generations, err := generations(ctx, s, stream)
	if err != nil {
		return nil, nil, err
	}
	for _, g := range slices.Backward(generations) {
		b, err := store.ReadAll(ctx, s, generationKey(stream, g), maxManifest)
		if errors.Is(err, store.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		m, err := Decode(b)
		switch {
		case errors.Is(err, ErrUnsupported):
			return nil, nil, fmt.Errorf("%s: %w", generationKey(stream, g), err)
		case err == nil && m.Stream == stream && m.Generation == g:
			if g != generations[len(generations)-1] { // newer ones are damaged: what they had is in the entries
				return nil, nil, fmt.Errorf("%s: generation %d: %w", stream, generations[len(generations)-1], ErrLost)
			}
			return m, b, nil
		}
	}
	any := len(generations) > 0
	if !any {
		err = s.List(ctx, stream+"/seg/", func(store.Object) error { any = true; return errStop })
		if err != nil && !errors.Is(err, errStop) {
			return nil, nil, err
		}
	}
	if any {
		return nil, nil, fmt.Errorf("%s: %w", stream, ErrLost)
	}
	m = &Manifest{Version: Version, Stream: stream}
	stored, err = m.Encode()
	return m, stored, err
}

var errStop = errors.New("stop")

// generations are those that there are, ascending.
func generations(ctx context.Context, s store.Store, stream string) (list []uint64, err error) {
	err = s.List(ctx, stream+"/manifest/", func(o store.Object) error {
		name := strings.TrimPrefix(o.Key, stream+"/manifest/")
		if g, err := strconv.ParseUint(strings.TrimSuffix(name, ".json"), 10, 64); err == nil && strings.HasSuffix(name, ".json") {
			list = append(list, g)
		}
		return nil
	})
	slices.Sort(list)
	return list, err
}

// Save stores m as the generation after its own, and removes old ones. store.ErrExist when somebody else made that one: Load again, and
// see who. stored is what it has written.
func Save(ctx context.Context, s store.Store, m *Manifest, instance string, now time.Time) (saved *Manifest, stored []byte, err error) {
	n := *m
	n.Version, n.Generation, n.Instance, n.Written = Version, m.Generation+1, instance, now.UTC()
	b, err := n.Encode()
	if err != nil {
		return nil, nil, err
	}
	if err := store.PutBytes(ctx, s, generationKey(n.Stream, n.Generation), b, true); err != nil {
		return nil, nil, err
	}
	for g := n.Generation - keptGenerations; g > 0 && g < n.Generation; g-- {
		key := generationKey(n.Stream, g)
		if _, err := s.Stat(ctx, key); err != nil {
			break // what is older is gone too
		}
		if err := s.Delete(ctx, key); err != nil {
			break // the next one tries again
		}
	}
	return &n, b, nil
}

// PutEntry stores the entry of a segment whose parts are there.
func PutEntry(ctx context.Context, s store.Store, seg *Segment) error {
	b, err := seal(seg)
	if err != nil {
		return err
	}
	return store.PutBytes(ctx, s, EntryKey(seg.Stream, seg.Sequence), b, false)
}

// ReadEntry reads it; store.ErrNotExist when there is none.
func ReadEntry(ctx context.Context, s store.Store, stream string, seq uint64) (*Segment, error) {
	b, err := store.ReadAll(ctx, s, EntryKey(stream, seq), 1<<20)
	if err != nil {
		return nil, err
	}
	seg := new(Segment)
	if err = unseal(b, seg); err == nil {
		err = seg.check()
	}
	if err == nil && (seg.Stream != stream || seg.Sequence != seq) {
		err = fmt.Errorf("%w: it is that of segment %d of %s", ErrDamaged, seg.Sequence, seg.Stream)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EntryKey(stream, seq), err)
	}
	return seg, nil
}

// DeleteSegment removes a segment that the manifest does not have any more: the entry first, so that none names parts that are gone.
func DeleteSegment(ctx context.Context, s store.Store, seg *Segment) error {
	if err := s.Delete(ctx, EntryKey(seg.Stream, seg.Sequence)); err != nil {
		return err
	}
	for part := range seg.Parts() {
		if err := s.Delete(ctx, PartKey(seg.Stream, seg.Sequence, part)); err != nil {
			return err
		}
	}
	for _, key := range seg.Parquet {
		if err := s.Delete(ctx, seg.Stream+"/"+key); err != nil {
			return err
		}
	}
	return nil
}
