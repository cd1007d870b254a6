package tiering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

// The reader goes from the store to the spool without a gap and without a record twice.
func TestStoredSegmentsAreReadAsIfLocal(t *testing.T) {
	r := newRig(t, nil)
	r.cold(4)
	r.segment(300) // sealed, local
	done := make(durable, 1)
	if err := r.s.Append(t.Context(), spool.Entry{Record: record(r.n), Done: done}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.n++ // in the tail
	r.all(0)
	if got, gaps := r.dump(spool.DumpQuery{Partition: -1}); len(got) != r.n || gaps != 0 {
		t.Errorf("dump: %d records of %d, %d gaps", len(got), r.n, gaps)
	}
	r.restart(nil)
	r.all(0)
}

func TestOnlySegmentsThatCanMatterAreFetched(t *testing.T) {
	r := newRig(t, nil)
	r.cold(6) // one topic each
	before := r.tier.cache.misses.Load()
	got, _ := r.dump(spool.DumpQuery{Partition: -1, Filter: "plant/3/#"})
	if len(got) != 500 {
		t.Errorf("%d records of a topic, want 500", len(got))
	}
	if n := r.tier.cache.misses.Load() - before; n != 1 {
		t.Errorf("%d segments were fetched for the topic of one", n)
	}
	m := r.tier.byName[stream].m.Load()
	if got, _ := r.dump(spool.DumpQuery{Partition: -1, Since: m.Segments[4].MinTime, Until: m.Segments[5].MinTime}); len(got) != 500 {
		t.Errorf("%d records of a time, want 500", len(got))
	}
	if n := r.tier.cache.misses.Load() - before; n > 3 { // ends of times touch
		t.Errorf("%d segments were fetched for a topic and a time", n)
	}
	o, err := r.tier.SeekTime(t.Context(), stream, 0, m.Segments[3].MinTime)
	if p, _ := m.Segments[3].Partition(0); err != nil || o != p.First {
		t.Errorf("seek found %d, want %d: %v", o, p.First, err)
	}
}

func TestPositionOfACutDumpGoesOn(t *testing.T) {
	r := newRig(t, nil)
	r.cold(3)
	r.segment(200)
	seen, pages := map[string]bool{}, 0
	for at := (*spool.DumpPosition)(nil); ; pages++ {
		next, err := r.tier.Dump(t.Context(), spool.DumpQuery{Stream: stream, Partition: -1, Limit: 77, At: at}, func(i spool.DumpItem) error {
			seen[string(i.Record.Payload)] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if at = next; at == nil {
			break
		}
	}
	if len(seen) != r.n || pages < r.n/77 {
		t.Errorf("%d of %d records in %d pages", len(seen), r.n, pages)
	}
}

// A store that is down holds uploads and nothing else; what retention would have removed meanwhile is still there.
func TestStoreThatIsDownHoldsUploadsOnly(t *testing.T) {
	r := newRig(t, func(r *rig) { r.scfg.Streams[0].Retention, r.asked = unit.Hour, make(chan spool.Keep) })
	r.faults.Down()
	for range 3 {
		r.segment(500)
		if err := r.tier.Round(t.Context()); !errors.Is(err, storetest.ErrInjected) {
			t.Fatalf("round: %v", err)
		}
		r.advance(3 * time.Hour)
	}
	for range 2 { // once it asks again, it has done what it asked for before
		select {
		case k := <-r.asked:
			if k != spool.KeepAlways {
				t.Fatalf("retention was told %v", k)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("retention does not ask")
		}
	}
	if start, _ := r.s.Bounds(stream, 0); start != 0 {
		t.Fatalf("log start %d: retention has passed what is not stored", start)
	}
	if s := r.tier.Status().Streams[0]; s.BehindSegments != 3 || s.BehindBytes == 0 || s.BehindSince.IsZero() {
		t.Errorf("status: %+v", s)
	}
	r.faults.Fail(nil)
	r.round()
	r.round()
	if s := r.tier.Status().Streams[0]; s.BehindSegments != 0 || s.ColdSegments != 3 {
		t.Errorf("status: %+v", s)
	}
	r.all(0)
}

func TestLocalCopyOutlivesEveryFaultOfTheStore(t *testing.T) {
	part := func(n int) string { return fmt.Sprintf(".db.%04d", n) }
	faults := map[string]func(op, key string) error{
		"a part is refused":  func(op, key string) error { return failWhen(op == "put" && strings.HasSuffix(key, part(1))) },
		"the answer is lost": func(op, key string) error { return failWhen(op == "put done" && strings.HasSuffix(key, part(1))) },
		"reading back fails": func(op, key string) error { return failWhen(op == "get" && strings.HasSuffix(key, part(0))) },
		"the entry is refused": func(op, key string) error {
			return failWhen(op == "put" && strings.HasSuffix(key, ".json") && strings.Contains(key, "/seg/"))
		},
		"the manifest is refused":  func(op, key string) error { return failWhen(op == "put" && strings.Contains(key, "/manifest/")) },
		"its answer is lost":       func(op, key string) error { return failWhen(op == "put done" && strings.Contains(key, "/manifest/")) },
		"the marker is refused":    func(op, key string) error { return failWhen(op == "put" && key == "OWNER.json") },
		"lists fail":               func(op, _ string) error { return failWhen(op == "list") },
		"asking before removal":    func(op, key string) error { return failWhen(op == "stat" && strings.HasSuffix(key, part(0))) },
		"credentials have expired": func(string, string) error { return store.ErrDenied },
	}
	for what, fault := range faults {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			r.segment(500)
			r.faults.Fail(fault)
			for i := range 3 {
				r.advance(2 * time.Hour)
				if err := r.tier.Round(t.Context()); err == nil && i == 0 {
					t.Fatal("the fault did not show")
				}
				if list, _ := r.s.Sealed(stream); len(list) != 1 {
					r.whole()
				}
			}
			r.faults.Fail(nil)
			r.round()
			r.round()
			if list, _ := r.s.Sealed(stream); len(list) != 0 {
				t.Error("the local copy stays although the segment is stored")
			}
			for n := range 3 {
				if got := r.faults.Puts(part(n)); got > 1 {
					t.Errorf("part %d was stored %d times", n, got)
				}
			}
			r.all(0)
		})
	}
}

// whole wants every part of the first segment in the store, and an entry and a manifest that name it.
func (r *rig) whole() {
	r.t.Helper()
	m, err := manifest.Load(r.t.Context(), r.faults.Store, stream)
	if err != nil || len(m.Segments) != 1 {
		r.t.Fatalf("the local copy went, and the manifest is %+v: %v", m, err)
	}
	if _, err := Fetch(r.t.Context(), r.faults.Store, &m.Segments[0], io.Discard, nil); err != nil {
		r.t.Fatalf("the local copy went: %v", err)
	}
}

func failWhen(yes bool) error {
	if yes {
		return storetest.ErrInjected
	}
	return nil
}

// What is stored wrong, or not at all although the store says so, is found before the local copy goes.
func TestBytesThatTheStoreChangedAreFoundBeforeTheLocalCopyGoes(t *testing.T) {
	spoil := map[string]func(b []byte) []byte{
		"cut":     func(b []byte) []byte { return b[:len(b)/2] },
		"flipped": func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"empty":   func([]byte) []byte { return nil },
	}
	for what, fn := range spoil {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			r.segment(500)
			spoiled := false
			r.faults.Fail(func(op, key string) error {
				if op == "put done" && strings.HasSuffix(key, ".db.0001") && !spoiled {
					spoiled = true
					path := filepath.Join(r.dir, "cold", key)
					writeFile(t, path, fn(readFile(t, path)))
				}
				return nil
			})
			r.advance(2 * time.Hour)
			if err := r.tier.Round(t.Context()); err != nil {
				t.Fatal(err) // damage is the stream's problem, not the store's
			}
			if list, _ := r.s.Sealed(stream); len(list) != 1 {
				t.Fatal("the local copy went")
			}
			if err := r.tier.Health(); !errors.Is(err, ErrDamaged) {
				t.Errorf("health: %v", err)
			}
			r.round()
			r.round()
			if err := r.tier.Health(); err != nil {
				t.Errorf("health: %v", err)
			}
			r.all(0)
		})
	}
}

// A read that breaks off goes on where it was, and one that the store spoils later is a gap with a name, never wrong records.
func TestReadsGoOnAfterALostConnection(t *testing.T) {
	r := newRig(t, nil)
	r.cold(2)
	r.faults.Cut(func(key string, _, _ int64) (int64, bool) {
		return 5000, strings.HasSuffix(key, ".db.0001") && r.faults.Gets(".db.0001") < 8
	})
	r.all(0)
}

// flip changes a byte in the middle of a file.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 0x10
	return os.WriteFile(path, b, 0o640)
}

func TestStoredSegmentThatIsDamagedLaterIsAGap(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"cut":  func(path string) error { return os.Truncate(path, 100) },
		"gone": os.Remove,
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			r.cold(3)
			m := r.tier.byName[stream].m.Load()
			if err := spoil(r.file("seg", fmt.Sprintf("%016x.db.0001", m.Segments[1].Sequence))); err != nil {
				t.Fatal(err)
			}
			r.all(2) // one for each partition
			got, gaps := r.dump(spool.DumpQuery{Partition: -1})
			if len(got) != 1000 || gaps != 2 {
				t.Errorf("dump: %d records, %d gaps", len(got), gaps)
			}
		})
	}
}

// A byte that has changed in the store costs the batch that it is in, and no other; once it is mended there, nothing.
func TestOtherBytesInTheStoreCostTheirBatchOnly(t *testing.T) {
	for _, inPlace := range []bool{false, true} {
		t.Run(fmt.Sprintf("in place %v", inPlace), func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.inPlace = inPlace })
			r.cold(3)
			part := "0001"
			if inPlace {
				part = "0000"
			}
			path := r.file("seg", fmt.Sprintf("%016x.db.%s", r.tier.byName[stream].m.Load().Segments[1].Sequence, part))
			sound := readFile(t, path)
			if err := flip(path); err != nil {
				t.Fatal(err)
			}
			r.all(1)
			if n := r.tier.byName[stream].damagedReads.Load(); n != 1 {
				t.Errorf("counted %d times", n)
			}
			if got, gaps := r.dump(spool.DumpQuery{Partition: -1}); len(got) <= 1000 || len(got) >= 1500 || gaps != 1 {
				t.Errorf("dump: %d records, %d gaps", len(got), gaps)
			}
			writeFile(t, path, sound)
			r.all(0)
		})
	}
}

func TestLostManifestComesBack(t *testing.T) {
	r := newRig(t, nil)
	r.cold(3)
	before := r.tier.byName[stream].m.Load()
	r.restart(func() {
		for _, path := range []string{r.file("manifest"), r.file("seg", fmt.Sprintf("%016x.json", before.Segments[1].Sequence)), filepath.Join(r.dir, "tier", stream+".manifest")} {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
	})
	r.round()
	after := r.tier.byName[stream].m.Load()
	if len(after.Segments) != 3 || after.Segments[1].SHA256 != before.Segments[1].SHA256 || after.Segments[1].Topics.All {
		t.Errorf("it has %d segments, %+v", len(after.Segments), after.Segments[1])
	}
	r.all(0)
}

func TestTwoGatewaysDoNotShareAPrefix(t *testing.T) {
	r := newRig(t, nil)
	r.cold(1)
	two := newRig(t, func(two *rig) {
		two.advance(time.Second) // no two logs begin a segment in the same nanosecond
		if err := os.Symlink(filepath.Join(r.dir, "cold"), filepath.Join(two.dir, "cold")); err != nil {
			t.Fatal(err)
		}
	})
	two.segment(100)
	if err := two.tier.Round(t.Context()); !errors.Is(err, manifest.ErrOwned) {
		t.Fatalf("the second gateway: %v", err)
	}
	two.advance(time.Minute)
	if two.tier.note(two.tier.Round(t.Context())); two.tier.Status().Problem == "" {
		t.Error("nothing is said of it")
	}
	if two.faults.Puts("") != 0 {
		t.Error("it has written something")
	}
	if err := manifest.Adopt(t.Context(), two.faults, two.tier.owner); err != nil {
		t.Fatal(err)
	}
	// Its log has another history: what is there under the same number must not be replaced.
	before := readFile(t, r.file("seg", fmt.Sprintf("%016x.db.0000", r.tier.byName[stream].m.Load().Segments[0].Sequence)))
	two.round()
	if err := two.tier.Health(); !errors.Is(err, ErrConflict) {
		t.Errorf("after it was adopted: %v", err)
	}
	if m := two.tier.byName[stream].m.Load(); len(m.Segments) != 1 || m.Segments[0].Records != 500 {
		t.Errorf("after it was adopted, the manifest has %+v", m.Segments)
	}
	if after := readFile(t, r.file("seg", fmt.Sprintf("%016x.db.0000", r.tier.byName[stream].m.Load().Segments[0].Sequence))); !bytes.Equal(before, after) {
		t.Error("what the first had stored was replaced")
	}
	r.all(0)
}

// The first owner of a prefix that was adopted stops with its first manifest, however lately it has looked at the marker.
func TestFormerOwnerStopsWhenThePrefixIsAdopted(t *testing.T) {
	r := newRig(t, nil)
	r.cold(1)
	two := newRig(t, func(two *rig) {
		if err := os.Symlink(filepath.Join(r.dir, "cold"), filepath.Join(two.dir, "cold")); err != nil {
			t.Fatal(err)
		}
	})
	if err := manifest.Adopt(t.Context(), two.faults, two.tier.owner); err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(t.Context(), two.faults, stream)
	if err == nil {
		_, _, err = manifest.Save(t.Context(), two.faults, m, two.tier.owner.Instance, two.now())
	}
	if err != nil {
		t.Fatal(err)
	}
	r.segment(100)
	for range 3 {
		if err := r.tier.Round(t.Context()); !errors.Is(err, manifest.ErrOwned) {
			t.Errorf("the former owner: %v", err)
		}
	}
	if m, err = manifest.Load(t.Context(), two.faults, stream); err != nil || m.Instance != two.tier.owner.Instance || len(m.Segments) != 1 {
		t.Errorf("the manifest is of %s with %d segments: %v", m.Instance, len(m.Segments), err)
	}
	if list, _ := r.s.Sealed(stream); len(list) != 1 {
		t.Error("the former owner has lost its local copy")
	}
}

func TestColdRetentionRemovesTheOldest(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Streams[0].Retention = 10 * unit.Hour })
	r.cold(3)
	r.advance(7 * time.Hour)
	r.segment(500)
	r.advance(2 * time.Hour)
	r.faults.Fail(func(op, key string) error { return failWhen(op == "delete" && strings.HasSuffix(key, ".db.0001")) })
	_ = r.tier.Round(t.Context()) // ends in the middle of the removal
	r.restart(nil)
	r.round()
	m := r.tier.byName[stream].m.Load()
	if len(m.Segments) != 1 || m.Segments[0].Records != 500 || m.Floor != m.Segments[0].Sequence {
		t.Fatalf("manifest: %+v", m)
	}
	files, _ := filepath.Glob(r.file("seg", "*.db.*"))
	if len(files) != m.Segments[0].Parts() {
		t.Errorf("objects that nobody knows: %v", files)
	}
	r.advance(2 * time.Hour)
	r.round()
	r.all(2)
}

func TestUploadsWaitForAgeCountAndPause(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.cfg.Streams[0].UploadAfter, r.cfg.Streams[0].UploadCount = 5*unit.Hour, 3
	})
	stored := func() int { return r.tier.Status().Streams[0].ColdSegments }
	r.segment(100)
	r.round()
	if stored() != 0 {
		t.Error("stored before its age")
	}
	r.advance(6 * time.Hour)
	r.round()
	if stored() != 1 {
		t.Error("not stored at its age")
	}
	for range 3 {
		r.segment(100)
	}
	at := r.now().Local()
	r.tier.pauses = []pause{{at.Hour()*60 + at.Minute(), (at.Hour()*60 + at.Minute() + 120) % 1440}}
	r.round()
	if stored() != 1 || !r.tier.Status().Paused {
		t.Error("stored in a pause")
	}
	r.tier.pauses = nil
	r.round()
	if stored() != 4 {
		t.Errorf("%d are stored, want all by their count", stored())
	}
}

// Encrypted segments are stored as they are: the store has no byte of a topic or a payload.
func TestEncryptedSegmentsStayEncrypted(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	writeFile(t, key, crypt.NewKey())
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(r *rig) {
		r.scfg.Encryption = spool.EncryptionConfig{Keys: []spool.KeyConfig{{ID: 1, File: key}}, Active: 1}
	})
	r.cold(2)
	err := filepath.WalkDir(filepath.Join(r.dir, "cold"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			for _, secret := range []string{"plant/", "device-", string(record(7).Payload)} {
				if strings.Contains(string(readFile(t, path)), secret) {
					t.Errorf("%s shows %q", path, secret)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.all(0)
	before := r.tier.cache.misses.Load()
	if got, _ := r.dump(spool.DumpQuery{Partition: -1, Filter: "plant/9/#"}); len(got) != 0 || r.tier.cache.misses.Load() != before {
		t.Error("segments were fetched for a topic that none has")
	}
}

func TestCacheStaysWithinItsBound(t *testing.T) {
	r := newRig(t, nil)
	r.cold(5)
	r.tier.cache.size = 2 * r.tier.byName[stream].m.Load().Segments[0].Bytes
	r.all(0)
	if used := r.tier.cache.Used(); used > r.tier.cache.size {
		t.Errorf("%d bytes are in the cache, at most %d", used, r.tier.cache.size)
	}
	files, _ := filepath.Glob(filepath.Join(r.cfg.CacheDir, "*"))
	if len(files) > 2 {
		t.Errorf("files %v", files)
	}
}

func TestRunStoresWhatIsSealed(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	saved := make(chan struct{}, 16)
	r.faults.Fail(func(op, key string) error {
		if op == "put done" && strings.Contains(key, "/manifest/") {
			saved <- struct{}{}
		}
		return nil
	})
	go func() { ended <- r.tier.Run(ctx) }()
	r.segment(100)
	select {
	case <-saved:
	case <-time.After(20 * time.Second):
		t.Fatal("it is not stored")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := r.tier.Status().Streams[0].ColdSegments; n != 1 {
		t.Errorf("%d segments are stored", n)
	}
}
