package tiering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// tiered is one stream that is stored. Its manifest is replaced, never changed.
type tiered struct {
	name string
	cfg  StreamConfig

	m      atomic.Pointer[manifest.Manifest] // as it was last known to be stored; nil before anything is known
	loaded bool                              // m is the store's, not the copy of an earlier run; the loop's
	swept  bool                              // garbage was looked for; likewise

	pending  pending              // what the manifest does not say yet; likewise
	size     int64                // of the stored manifest; likewise
	saved    time.Time            // when pending was last written into it; likewise
	retained time.Time            // when segments were last removed from it; likewise
	tries    map[uint64]time.Time // Parquet files that could not be written, and when; likewise

	mu      sync.Mutex
	behind  int       // sealed segments that are not stored
	bytes   int64     // of them
	oldest  time.Time // when the oldest of them was sealed
	problem error
	since   time.Time

	uploaded, uploadedBytes, removedLocal, removedCold, damagedReads atomic.Uint64
}

// stored tells whether a segment is in the store, or was removed there on purpose: that very one, not another of its number.
func (st *tiered) stored(id spool.SegmentID) bool {
	m := st.m.Load()
	if m == nil {
		return false
	}
	if seg, ok := m.Find(id.Sequence); ok {
		return seg.Created.UnixNano() == id.Created
	}
	return id.Sequence < m.Floor && id.Created <= m.FloorCreated.UnixNano()
}

// localCopy is where the manifest is kept beside the gateway, so that it knows after a start what is stored when the store cannot be
// reached.
func (t *Tier) localCopy(stream string) string { return filepath.Join(t.dir, stream+".manifest") }

func (t *Tier) readLocalCopy(stream string) *manifest.Manifest {
	b, err := os.ReadFile(t.localCopy(stream))
	if err != nil {
		return nil
	}
	m, err := manifest.Decode(b)
	if err != nil || m.Stream != stream {
		return nil // the store has it
	}
	return m
}

// writeLocalCopy writes it; b is m as it is stored.
func (t *Tier) writeLocalCopy(ctx context.Context, m *manifest.Manifest, b []byte) {
	if err := store.PutBytes(ctx, t.local, m.Stream+".manifest", b, false); err != nil && ctx.Err() == nil {
		t.log.Warn("local copy of the manifest cannot be written; it is read from the store at the next start", "stream", m.Stream, "err", err)
	}
}

// load reads a stream's manifest from the store, or makes it again from the objects.
func (t *Tier) load(ctx context.Context, st *tiered) error {
	m, b, err := manifest.LoadStored(ctx, t.store, st.name)
	if err == nil && m.Generation > 0 && m.Instance != t.owner.Instance {
		// It is what was there before we adopted the prefix, or somebody has adopted it since we have looked.
		t.claimed = time.Time{}
		if err := t.claim(ctx); err != nil {
			return err
		}
		t.log.Info("manifest of an earlier owner is taken over", "stream", st.name, "generation", m.Generation)
	}
	if errors.Is(err, manifest.ErrLost) || err == nil && m.Generation == 0 && len(t.readKnown(st).Segments) > 0 {
		m, b, err = t.rebuild(ctx, st)
	}
	if err != nil {
		return err
	}
	st.m.Store(m)
	st.loaded, st.swept = true, false
	st.pending, st.size = pending{}, int64(len(b))
	t.writeLocalCopy(ctx, m, b)
	return nil
}

// sameStore tells whether the copies of manifests are of the store that is configured now.
func (t *Tier) sameStore() bool {
	b, err := os.ReadFile(filepath.Join(t.dir, "store"))
	return err == nil && string(b) == t.store.String()+"\n"
}

// noteStore remembers which store the copies of manifests are of. Those of another one are removed first.
func (t *Tier) noteStore(ctx context.Context) error {
	if t.sameStore() {
		return nil
	}
	for _, st := range t.streams {
		if err := t.local.Delete(ctx, st.name+".manifest"); err != nil {
			return err
		}
	}
	return store.PutBytes(ctx, t.local, "store", []byte(t.store.String()+"\n"), false)
}

// emptied tells whether the store has nothing at all of what was stored there.
func (t *Tier) emptied(ctx context.Context) error {
	if _, err := manifest.ReadOwner(ctx, t.store); !errors.Is(err, store.ErrNotExist) {
		return err
	}
	segments := 0
	for _, st := range t.streams {
		known := t.readKnown(st)
		if len(known.Segments) == 0 {
			continue
		}
		m, err := manifest.Load(ctx, t.store, st.name)
		if errors.Is(err, manifest.ErrLost) || err == nil && m.Generation > 0 {
			return nil // no more than the marker is gone
		}
		if err != nil {
			return err
		}
		segments += len(known.Segments)
	}
	if segments > 0 {
		return fmt.Errorf("%w: %d", ErrEmptied, segments)
	}
	return nil
}

// readKnown is what the last run knew.
func (t *Tier) readKnown(st *tiered) *manifest.Manifest {
	if m := st.m.Load(); m != nil {
		return m
	}
	return &manifest.Manifest{Stream: st.name}
}

func (t *Tier) rebuild(ctx context.Context, st *tiered) (*manifest.Manifest, []byte, error) {
	t.log.Warn("manifest is lost and is made again from the objects", "stream", st.name, "store", t.store.String())
	m, err := manifest.Rebuild(ctx, t.store, st.name, manifest.RebuildOptions{
		Floor: t.readKnown(st).Floor, FloorCreated: t.readKnown(st).FloorCreated,
		Open: func(ctx context.Context, stream string, seq uint64, parts []int64) (*manifest.Segment, error) {
			if _, err := t.spool.SealedFile(stream, seq); err == nil {
				return nil, fmt.Errorf("%w: it is in the spool and is uploaded again", manifest.ErrDamaged)
			}
			return t.uploader.openStored(ctx, stream, seq, parts, t.scratch)
		},
		Skip: func(seq uint64, err error) {
			t.log.Warn("segment in the store cannot be used", "stream", st.name, "segment", seq, "err", err)
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("rebuild the manifest of %s: %w", st.name, err)
	}
	m, b, err := manifest.Save(ctx, t.store, m, t.owner.Instance, t.now())
	if err != nil {
		return nil, nil, fmt.Errorf("rebuild the manifest of %s: %w", st.name, err)
	}
	t.log.Info("manifest was made again", "stream", st.name, "segments", len(m.Segments), "generation", m.Generation)
	return m, b, nil
}

// scratch is a file for a moment.
func (t *Tier) scratch() (path string, done func(), err error) {
	f, err := os.CreateTemp(t.cache.dir, "rebuild-*.fetched")
	if err != nil {
		return "", nil, err
	}
	path = f.Name()
	return path, func() { _ = os.Remove(path) }, f.Close()
}

func createFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
}

// save makes m the stored manifest. When somebody was faster, the next round reads what there is.
func (t *Tier) save(ctx context.Context, st *tiered, m *manifest.Manifest) error {
	saved, b, err := manifest.Save(ctx, t.store, m, t.owner.Instance, t.now())
	if errors.Is(err, store.ErrExist) {
		st.loaded = false
		have, lerr := manifest.Load(ctx, t.store, st.name)
		if lerr == nil && have.Instance != t.owner.Instance {
			t.claimed = time.Time{} // whose it is now says the marker
			return fmt.Errorf("%w: generation %d of %s was written by another one", manifest.ErrOwned, have.Generation, st.name)
		}
		return errors.Join(fmt.Errorf("manifest of %s: %w: it is read again", st.name, err), lerr)
	}
	if err != nil {
		st.loaded = false // it may be there all the same
		return fmt.Errorf("manifest of %s: %w", st.name, err)
	}
	st.m.Store(saved)
	st.size = int64(len(b))
	t.writeLocalCopy(ctx, saved, b)
	return nil
}

// fail notes what is wrong with a stream; nil that it is well.
func (st *tiered) fail(err error, now time.Time) (changed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	before, _ := reason(st.problem)
	after, _ := reason(err)
	if before != after {
		st.since = now
	}
	st.problem = err
	return before != after
}

// look counts what is not stored.
func (st *tiered) look(list []spool.Sealed) (missing []spool.Sealed) {
	var bytes int64
	var oldest time.Time
	for _, se := range list {
		if !st.stored(se.ID()) {
			missing = append(missing, se)
			bytes += se.Bytes
			if oldest.IsZero() || se.SealedAt.Before(oldest) {
				oldest = se.SealedAt
			}
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.behind, st.bytes, st.oldest = len(missing), bytes, oldest
	return missing
}
