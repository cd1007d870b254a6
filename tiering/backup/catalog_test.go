package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

// bench is a spool, and a store for its backups.
type bench struct {
	*testing.T
	s    *spool.Spool
	step atomic.Int64 // of the wall clock
	dir  string       // of the store
	st   store.Store
	n    int // records
	made int // restored directories
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: filepath.Join(t.TempDir(), "backups")}
	began := time.Now()
	b.s = spooltest.OpenConfig(t, spooltest.Config(t.TempDir()), spool.Options{
		Now:       func() time.Time { return time.Now().Add(time.Duration(b.step.Load())) },
		Monotonic: func() time.Duration { return time.Since(began) },
	})
	var err error
	if b.st, err = store.OpenDir(b.dir); err != nil {
		t.Fatal(err)
	}
	return b
}

// add appends records and seals them.
func (b *bench) add(n int) {
	b.Helper()
	for range n {
		if err := appendOne(b.Context(), b.s, b.n); err != nil {
			b.Fatal(err)
		}
		b.n++
	}
	snap, err := b.s.Snapshot(b.Context(), filepath.Join(b.TempDir(), "meta.db"))
	if err != nil {
		b.Fatal(err)
	}
	snap.Release()
}

func (b *bench) backup(st store.Store, o Options) *Info {
	b.Helper()
	o.Gateway, o.Scratch = "edge-1", b.TempDir()
	info, err := Create(b.Context(), b.s, st, o)
	if err != nil {
		b.Fatal(err)
	}
	return info
}

// wantRestored wants a backup to be whole, with the first n records.
func (b *bench) wantRestored(id string, n int) {
	b.Helper()
	info, err := Read(b.Context(), b.st, id)
	if err != nil {
		b.Fatal(err)
	}
	b.made++
	cfg := spooltest.Config(filepath.Join(b.TempDir(), fmt.Sprint("restored-", b.made)))
	if err := Restore(b.Context(), b.st, info, cfg, nil); err != nil {
		b.Fatal(err)
	}
	s, err := spool.Open(cfg, spool.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if got := payloads(b.T, s); len(got) != n {
		b.Errorf("%s has %d records, want %d", id, len(got), n)
	}
}

func (b *bench) file(key string) string { return filepath.Join(b.dir, filepath.FromSlash(key)) }

func (b *bench) keys(prefix string) (keys []string) {
	b.Helper()
	if err := b.st.List(b.Context(), prefix, func(o store.Object) error { keys = append(keys, o.Key); return nil }); err != nil {
		b.Fatal(err)
	}
	return keys
}

// A clock that is set back makes no older backup the latest, and --keep removes none that is newer. One that stands still does not
// make two of one ID either.
func TestTheOrderOfBackupsIsNotTheClocks(t *testing.T) {
	b := newBench(t)
	var ids []string
	for i, step := range []time.Duration{0, 24 * time.Hour, -48 * time.Hour, -48 * time.Hour, time.Hour} {
		b.step.Store(int64(step))
		b.add(10)
		info := b.backup(b.st, Options{})
		ids = append(ids, info.ID)
		if latest, err := Read(t.Context(), b.st, "latest"); err != nil || latest.ID != info.ID {
			t.Errorf("step %v: latest is %s, want %s: %v", step, latest.ID, info.ID, err)
		}
		b.wantRestored("latest", 10*(i+1))
	}
	removed, err := Prune(t.Context(), b.st, 2)
	if err != nil || !slices.Equal(removed, ids[:3]) {
		t.Errorf("removed %v, want the first three of %v: %v", removed, ids, err)
	}
	b.wantRestored(ids[3], 40)
	b.wantRestored(ids[4], 50)
}

// What a backup finds that broke off, before, beside or behind its meta.db, it neither overwrites nor counts on; Prune removes it once it
// cannot be one that is being made.
func TestBackupsThatBrokeOffAreRemovedLater(t *testing.T) {
	for _, until := range []string{"/meta.db", "/backup.json"} {
		t.Run(strings.TrimPrefix(until, "/"), func(t *testing.T) {
			b := newBench(t)
			b.add(10)
			first := b.backup(b.st, Options{})
			b.add(10)
			faulty := storetest.NewFaulty(b.st)
			faulty.Fail(func(op, key string) error {
				if op == "put" && strings.HasSuffix(key, until) {
					return storetest.ErrInjected
				}
				return nil
			})
			if _, err := Create(t.Context(), b.s, faulty, Options{Gateway: "edge-1", Scratch: t.TempDir()}); !errors.Is(err, storetest.ErrInjected) {
				t.Fatal(err)
			}
			stored := len(b.keys("segments/"))
			// It may be one that is being made: its segments stay.
			if removed, err := Prune(t.Context(), b.st, 1); err != nil || len(removed) != 0 || len(b.keys("segments/")) != stored {
				t.Errorf("removed %v, %d segments of %d are left: %v", removed, len(b.keys("segments/")), stored, err)
			}
			second := b.backup(b.st, Options{})
			b.wantRestored(first.ID, 10)
			b.wantRestored(second.ID, 20)
			third := b.backup(b.st, Options{})
			if removed, err := Prune(t.Context(), b.st, 2); err != nil || !slices.Equal(removed, []string{first.ID}) {
				t.Errorf("removed %v: %v", removed, err)
			}
			b.wantRestored(second.ID, 20)
			b.wantRestored(third.ID, 20)
			if got := b.keys("backups/"); len(got) != 4 {
				t.Errorf("there are %v, want those of two backups", got)
			}
		})
	}
}

// Prune that was killed anywhere leaves backups that are whole or none, and the next one finishes it.
func TestPruneGoesOnWhereItBrokeOff(t *testing.T) {
	b := newBench(t)
	for range 4 {
		b.add(10)
		b.backup(b.st, Options{})
	}
	for n := 0; ; n++ {
		faulty, left := storetest.NewFaulty(b.st), n
		faulty.Fail(func(op, _ string) error {
			if op == "delete" {
				if left--; left < 0 {
					return storetest.ErrInjected
				}
			}
			return nil
		})
		_, err := Prune(t.Context(), faulty, 2)
		ids, lerr := IDs(t.Context(), b.st)
		if lerr != nil || len(ids) < 2 {
			t.Fatalf("%v: %v", ids, lerr)
		}
		for _, id := range ids {
			info, err := Read(t.Context(), b.st, id)
			if err != nil {
				t.Fatal(err)
			}
			if err := info.Check(t.Context(), b.st); err != nil {
				t.Errorf("after %d calls: %v", n, err)
			}
		}
		if err == nil {
			break
		}
		if n > 100 {
			t.Fatal(err)
		}
	}
	if got := b.keys("backups/"); len(got) != 4 {
		t.Errorf("there are %v, want those of two backups", got)
	}
}

// A damaged backup keeps no good one from being made, and does not open the place for another gateway's.
func TestADamagedBackupDoesNotHideWhoseTheyAre(t *testing.T) {
	b := newBench(t)
	b.add(10)
	b.backup(b.st, Options{})
	info := b.backup(b.st, Options{})
	if err := os.WriteFile(b.file(infoKey(info.ID)), []byte("{}\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), b.s, b.st, Options{Gateway: "edge-2", Scratch: t.TempDir()}); !errors.Is(err, ErrOther) {
		t.Errorf("that of another gateway: %v", err)
	}
	b.backup(b.st, Options{})
	if _, err := Prune(t.Context(), b.st, 2); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), info.ID) {
		t.Errorf("prune: %v", err)
	}
	b.wantRestored("latest", 10)
}

// A copy that somebody has given a name is no latest one, and stays with all that it needs.
func TestPruneKeepsBackupsThatPeopleHaveNamed(t *testing.T) {
	b := newBench(t)
	b.add(10)
	info := b.backup(b.st, Options{})
	if err := os.CopyFS(b.file("backups/before-the-upgrade"), os.DirFS(b.file("backups/"+info.ID))); err != nil {
		t.Fatal(err)
	}
	b.add(10)
	b.backup(b.st, Options{})
	if latest, err := Read(t.Context(), b.st, "latest"); err != nil || latest.ID == info.ID {
		t.Errorf("latest is %v: %v", latest, err)
	}
	if removed, err := Prune(t.Context(), b.st, 1); err != nil || !slices.Equal(removed, []string{info.ID}) {
		t.Errorf("removed %v: %v", removed, err)
	}
	b.wantRestored("before-the-upgrade", 10)
}

// A byte that has changed in a segment of an earlier backup is found by --check, which names all of them, and mended by --verify.
func TestDamagedSegmentsOfEarlierBackupsAreFoundAndMended(t *testing.T) {
	b := newBench(t)
	for range 3 {
		b.add(10)
	}
	info := b.backup(b.st, Options{})
	for i, do := range []func(path string) error{
		func(path string) error {
			whole, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			whole[len(whole)/2] ^= 1
			return os.WriteFile(path, whole, 0o640)
		},
		os.Remove,
	} {
		if err := do(b.file(info.Segments[i].Key)); err != nil {
			t.Fatal(err)
		}
	}
	err := info.Check(t.Context(), b.st)
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), info.Segments[0].Key) || !strings.Contains(err.Error(), info.Segments[1].Key) || strings.Contains(err.Error(), info.Segments[2].Key) {
		t.Errorf("check: %v", err)
	}
	if err := Restore(t.Context(), b.st, info, spooltest.Config(filepath.Join(t.TempDir(), "r")), nil); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), info.Segments[0].Key) {
		t.Errorf("restore: %v", err)
	}
	b.backup(b.st, Options{})
	if err := info.Check(t.Context(), b.st); !errors.Is(err, ErrDamaged) {
		t.Errorf("the damage is gone without --verify: %v", err)
	}
	b.backup(b.st, Options{Verify: true})
	if err := info.Check(t.Context(), b.st); err != nil {
		t.Errorf("after --verify: %v", err)
	}
	b.wantRestored(info.ID, 30)
}

// Of two restores into one directory one waits for nobody: the second is refused, and does the first no harm.
func TestASecondRestoreLeavesTheFirstAlone(t *testing.T) {
	b := newBench(t)
	b.add(10)
	info := b.backup(b.st, Options{})
	cfg := spooltest.Config(filepath.Join(t.TempDir(), "restored"))
	tried := false
	if err := Restore(t.Context(), b.st, info, cfg, func(int64, int64) {
		tried = true
		if err := Restore(t.Context(), b.st, info, cfg, nil); !errors.Is(err, ErrRestoring) {
			t.Errorf("beside the first: %v", err)
		}
	}); err != nil || !tried {
		t.Fatalf("%v: %v", tried, err)
	}
	s, err := spool.Open(cfg, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := payloads(t, s); len(got) != 10 {
		t.Errorf("%d records", len(got))
	}
}

// Where a gateway stores its segments no backup is made: a stream may be called segments, and --keep removes what is below that name.
func TestNoBackupAmongSegmentsOfTiering(t *testing.T) {
	b := newBench(t)
	b.add(10)
	if err := manifest.Claim(t.Context(), b.st, manifest.Owner{Gateway: "edge-1", Instance: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), b.s, b.st, Options{Gateway: "edge-1", Scratch: t.TempDir()}); !errors.Is(err, ErrTiering) {
		t.Errorf("%v", err)
	}
}

// What a backup says of itself is not believed further than its bytes go: a stream that leads out of the directory, a key that leads
// out of the store, and an object that is longer than it was.
func TestRestoreBelievesNoBackupThatLeadsElsewhere(t *testing.T) {
	b := newBench(t)
	b.add(10)
	good := b.backup(b.st, Options{})
	root := t.TempDir()
	restore := func(edit func(*Info)) error {
		info := *good
		info.Segments = slices.Clone(good.Segments)
		edit(&info)
		return Restore(t.Context(), b.st, &info, spooltest.Config(filepath.Join(root, "in", "spool")), nil)
	}
	for name, edit := range map[string]func(*Info){
		"stream up":       func(i *Info) { i.Segments[0].Stream = "../../out" },
		"stream absolute": func(i *Info) { i.Segments[0].Stream = "/out" },
		"no stream":       func(i *Info) { i.Segments[0].Stream = "" },
		"both up":         func(i *Info) { i.Segments[0].Stream, i.Segments[0].Key = "../../out", "segments/../../out/x.db" },
		"key up":          func(i *Info) { i.Segments[0].Key = "../spool/LOCK" },
		"negative size":   func(i *Info) { i.Segments[0].Bytes = -5 },
		"twice":           func(i *Info) { i.Segments = append(i.Segments, i.Segments[0]) },
	} {
		if err := restore(edit); err == nil {
			t.Errorf("%s: it was restored", name)
		}
		if left, _ := filepath.Glob(filepath.Join(root, "*", "*")); len(left) != 0 {
			t.Fatalf("%s: %v was made", name, left)
		}
	}
	f, err := os.OpenFile(b.file(good.Segments[0].Key), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil { // a hole
		t.Fatal(err)
	}
	if err := restore(func(*Info) {}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), good.Segments[0].Key) {
		t.Errorf("longer than it was: %v", err)
	}
}
