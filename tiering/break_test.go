package tiering

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// What is cut or gone in the store before the local copy goes is stored once more, and then it goes.
func TestStoredCopyThatIsGoneIsStoredAgainFromTheLocalOne(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"gone": os.Remove,
		"cut":  func(path string) error { return os.Truncate(path, 100) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			r.segment(500)
			r.round()
			if err := spoil(r.file("seg", fmt.Sprintf("%016x.db.0001", r.tier.byName[stream].m.Load().Segments[0].Sequence))); err != nil {
				t.Fatal(err)
			}
			r.advance(2 * time.Hour)
			r.round()
			r.whole()
			if err := r.tier.Health(); err != nil {
				t.Error(err)
			}
			if list, _ := r.s.Sealed(stream); len(list) != 0 {
				t.Error("the local copy stays although the segment is stored again")
			}
			r.all(0)
		})
	}
}

// A disk that is not mounted is not an empty store: nothing is made in its place, nothing goes, nobody is told of a gap.
func TestStoreDirectoryThatVanishesIsWaitedFor(t *testing.T) {
	for _, mountPoint := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("mount point %v, restart %v", mountPoint, restart), func(t *testing.T) {
				r := newRig(t, nil)
				r.cold(2)
				r.segment(500)
				cold, away := filepath.Join(r.dir, "cold"), filepath.Join(r.dir, "away")
				vanish := func() {
					if err := os.Rename(cold, away); err != nil {
						t.Fatal(err)
					}
					if mountPoint {
						if err := os.Mkdir(cold, 0o750); err != nil {
							t.Fatal(err)
						}
					}
				}
				if restart {
					r.restart(vanish)
				} else {
					vanish()
				}
				r.advance(2 * time.Hour)
				for range 3 {
					if err := r.tier.Round(t.Context()); !errors.Is(err, store.ErrVanished) && !errors.Is(err, ErrEmptied) {
						t.Fatalf("round: %v", err)
					} else if label, _ := reason(err); label != "vanished" {
						t.Errorf("its reason is %s", label)
					}
				}
				if entries, _ := os.ReadDir(cold); len(entries) != 0 {
					t.Fatalf("%v was made in its place", entries)
				}
				rd, err := r.tier.NewReader(stream, 0, 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer rd.Close()
				if b, ok, err := rd.try(t.Context()); ok || err == nil {
					t.Errorf("a reader is told %+v: %v", b, err)
				}
				_ = os.Remove(cold)
				if err := os.Rename(away, cold); err != nil {
					t.Fatal(err)
				}
				r.round()
				r.all(0)
			})
		}
	}
}

// A store that was emptied on purpose is told so with tier adopt: what the spool still has is stored again, the rest is a gap.
func TestEmptiedStoreIsFilledAgainOnceItIsAdopted(t *testing.T) {
	r := newRig(t, nil)
	r.cold(2)
	r.segment(500)
	r.round()
	r.restart(func() {
		entries, err := os.ReadDir(filepath.Join(r.dir, "cold"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(r.dir, "cold", e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	})
	if err := r.tier.Round(t.Context()); !errors.Is(err, ErrEmptied) {
		t.Fatalf("round: %v", err)
	}
	if err := manifest.Adopt(t.Context(), r.faults, r.tier.owner); err != nil {
		t.Fatal(err)
	}
	r.round()
	if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 1 {
		t.Errorf("%d segments are stored, want the one that is still local", len(m.Segments))
	}
	r.all(2)
	r.advance(2 * time.Hour)
	r.round()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		t.Error("the local copy stays")
	}
	r.all(2)
}

// What has no room in the store, or cannot be stored, holds up neither the retention that makes room there nor the local copies that may go.
func TestRetentionGoesOnWhenTheStoreIsFull(t *testing.T) {
	for what, fault := range map[string]error{"full": syscall.ENOSPC, "damaged": ErrDamaged} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.cfg.Streams[0].Retention = 10 * unit.Hour })
			r.segment(500)
			r.segment(500)
			r.round()
			r.advance(20 * time.Hour)
			r.segment(500)
			r.faults.Fail(func(op, key string) error {
				if op == "put" && strings.Contains(key, ".db.") {
					return fault
				}
				return nil
			})
			if err := r.tier.Round(t.Context()); !errors.Is(errors.Join(err, r.tier.byName[stream].problem), fault) {
				t.Errorf("round: %v", err)
			}
			if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 0 {
				t.Errorf("%d segments that are too old are still stored", len(m.Segments))
			}
			if list, _ := r.s.Sealed(stream); len(list) != 1 {
				t.Errorf("%d segments are local, want the one that is not stored", len(list))
			}
			r.faults.Fail(nil)
			r.round()
			if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 1 {
				t.Errorf("%d segments are stored", len(m.Segments))
			}
		})
	}
}

// A wall clock that is set a year ahead, and back, makes no segment old.
func TestSteppedWallClockEmptiesNothing(t *testing.T) {
	var elapsed atomic.Int64
	r := newRig(t, func(r *rig) {
		r.cfg.Streams[0].Retention = 10 * unit.Hour
		r.mono = func() time.Duration { return time.Duration(elapsed.Load()) }
	})
	for range 2 {
		r.segment(500)
		elapsed.Add(int64(time.Minute))
	}
	r.round()
	for _, step := range []time.Duration{365 * 24 * time.Hour, -2 * 365 * 24 * time.Hour} {
		r.advance(step)
		r.round()
		list, _ := r.s.Sealed(stream)
		if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 2 || len(list) != 2 {
			t.Fatalf("after a step of %v: %d in the store, %d local", step, len(m.Segments), len(list))
		}
	}
	elapsed.Add(int64(2 * time.Hour))
	r.round()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		t.Errorf("%d local copies after keep_local has passed", len(list))
	}
	r.all(0)
	elapsed.Add(int64(9 * time.Hour))
	r.round()
	if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 0 {
		t.Errorf("%d in the store after retention has passed", len(m.Segments))
	}
}

// Local copies that go while a dump is on its way are read from the store; none is missed, none comes twice.
func TestDumpGoesOnWhileLocalCopiesGo(t *testing.T) {
	for _, at := range []int{0, 700, 1400} {
		t.Run(fmt.Sprintf("after record %d", at), func(t *testing.T) {
			r := newRig(t, nil)
			for range 4 {
				r.segment(500)
			}
			r.cfg.Streams[0].KeepLocal = unit.Hour
			r.round()
			seen := map[string]int{}
			if _, err := r.tier.Dump(t.Context(), spool.DumpQuery{Stream: stream, Partition: -1}, func(i spool.DumpItem) error {
				if i.Record == nil {
					return fmt.Errorf("gap %+v", i.Gap)
				}
				if len(seen) == at {
					r.advance(2 * time.Hour)
					r.round()
				}
				seen[string(i.Record.Payload)]++
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if list, _ := r.s.Sealed(stream); len(list) == 4 {
				t.Fatal("no local copy has gone: the test shows nothing")
			}
			for i := range r.n {
				if seen[string(record(i).Payload)] != 1 {
					t.Fatalf("record %d comes %d times", i, seen[string(record(i).Payload)])
				}
			}
		})
	}
}

// What cold retention removes while a dump is on its way was removed by retention, and is not called damaged.
func TestDumpWhileColdRetentionRemoves(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Streams[0].Retention = 10 * unit.Hour })
	r.cold(4)
	records, gaps := 0, map[string]int{}
	if _, err := r.tier.Dump(t.Context(), spool.DumpQuery{Stream: stream, Partition: -1}, func(i spool.DumpItem) error {
		if records == 0 && i.Record != nil {
			r.advance(20 * time.Hour)
			r.round()
		}
		if i.Record == nil {
			gaps[i.Gap.Reason]++
		} else {
			records++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if records == 0 || gaps[spool.GapRetention] == 0 || gaps[spool.GapDamaged] != 0 {
		t.Errorf("%d records, gaps %v", records, gaps)
	}
}

// A directory that cannot be written is said to be that, and holds uploads only.
func TestStoreDirectoryThatCannotBeWritten(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root writes everywhere")
	}
	r := newRig(t, nil)
	r.segment(500)
	if err := os.Chmod(filepath.Join(r.dir, "cold"), 0o550); err != nil {
		t.Fatal(err)
	}
	err := r.tier.Round(t.Context())
	if label, _ := reason(err); label != "denied" {
		t.Errorf("%s: %v", label, err)
	}
	if err := os.Chmod(filepath.Join(r.dir, "cold"), 0o750); err != nil {
		t.Fatal(err)
	}
	r.round()
	r.all(0)
}

// A manifest that somebody removes while the gateway runs is there again with the next segment, whole.
func TestManifestThatIsDeletedWhileRunning(t *testing.T) {
	r := newRig(t, nil)
	r.cold(2)
	if err := os.RemoveAll(r.file("manifest")); err != nil {
		t.Fatal(err)
	}
	r.segment(500)
	r.round()
	m, err := manifest.Load(t.Context(), r.faults.Store, stream)
	if err != nil || len(m.Segments) != 3 {
		t.Fatalf("%+v: %v", m, err)
	}
	r.all(0)
}

// Segments of a key that is not the active one any more are read with it; without it they are told to need it.
func TestRotatedKeysReadWhatIsStored(t *testing.T) {
	var keys []spool.KeyConfig
	for id := range 2 {
		path := filepath.Join(t.TempDir(), "key")
		writeFile(t, path, crypt.NewKey())
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, spool.KeyConfig{ID: id + 1, File: path})
	}
	r := newRig(t, func(r *rig) { r.scfg.Encryption = spool.EncryptionConfig{Keys: keys[:1], Active: 1} })
	r.cold(2)
	r.restart(func() { r.scfg.Encryption = spool.EncryptionConfig{Keys: keys, Active: 2} })
	r.cold(2)
	ids := map[uint32]int{}
	for _, seg := range r.tier.byName[stream].m.Load().Segments {
		ids[seg.KeyID]++
	}
	if ids[1] == 0 || ids[2] == 0 {
		t.Fatalf("keys of segments %v: the test shows nothing", ids)
	}
	r.all(0)
	if got, gaps := r.dump(spool.DumpQuery{Partition: -1, Filter: "plant/0/#"}); len(got) != 500 || gaps != 0 {
		t.Errorf("%d records of the old key, %d gaps", len(got), gaps)
	}
}

// Files that a killed gateway has left half written do not stay for ever, and those of another writer do.
func TestLeftoversOfAKillAreRemoved(t *testing.T) {
	r := newRig(t, nil)
	r.segment(100)
	old, young := r.file("seg", "0000000000000009.db.0000.1.part~"), r.file("seg", "0000000000000009.db.0000.2.part~")
	if err := os.MkdirAll(filepath.Dir(old), 0o750); err != nil {
		t.Fatal(err)
	}
	writeFile(t, old, []byte("half"))
	writeFile(t, young, []byte("half"))
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	r.round()
	left, _ := filepath.Glob(r.file("seg", "*.part~"))
	if len(left) != 1 || left[0] != young {
		t.Errorf("left: %v", left)
	}
}
