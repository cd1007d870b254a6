package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// flipIn changes one bit in the middle of the first place in a file that holds what.
func flipIn(t testing.TB, path string, what []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, what)
	if at < 0 {
		t.Fatalf("%s does not hold %q", path, what)
	}
	b[at+len(what)/2] ^= 1
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

func findings(r VerifyResult, s Severity) (list []string) {
	for _, f := range r.Findings {
		if f.Severity == s {
			list = append(list, f.String())
		}
	}
	return list
}

func TestVerifyFindsAndRepairMends(t *testing.T) {
	plant := func(cfg Config, seq int) string {
		return filepath.Join(cfg.Dir, "seg", "plant", segmentName(uint64(seq)))
	}
	whole := len(dumpAll(t, mustView(t, mixedSpool(t)), DumpQuery{Stream: "plant", Partition: -1}))

	f := func(name string, harm func(t *testing.T, cfg Config), wantDamage string, wantNote string, lost bool) {
		t.Run(name, func(t *testing.T) {
			cfg := mixedSpool(t)
			harm(t, cfg)
			before := snapshot(t, cfg.Dir)
			r := mustVerify(t, cfg)
			damage, notes := strings.Join(findings(r, SeverityDamage), "\n"), strings.Join(findings(r, SeverityNote), "\n")
			if (damage != "") != (wantDamage != "") || !strings.Contains(damage, wantDamage) || !strings.Contains(notes, wantNote) {
				t.Fatalf("damage:\n%s\nnotes:\n%s\nwant %q and %q", damage, notes, wantDamage, wantNote)
			}
			if r.Damaged() != (wantDamage != "") {
				t.Errorf("damaged is %v", r.Damaged())
			}
			plan, err := PlanRepair(t.Context(), cfg, Options{}, VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if (wantDamage+wantNote != "") != (len(plan.Actions) > 0) || !plan.DryRun {
				t.Errorf("plan: %+v", plan)
			}
			wantUnchanged(t, cfg.Dir, before)

			_, logger := logTo(t)
			done, err := Repair(t.Context(), cfg, Options{Logger: logger}, VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range done.Actions {
				if !a.Done || a.Err != "" {
					t.Errorf("not done: %+v", a)
				}
			}
			if again := mustVerify(t, cfg); again.Damaged() {
				t.Errorf("after the repair:\n%s", strings.Join(findings(again, SeverityDamage), "\n"))
			}
			v := mustView(t, cfg)
			items := dumpAll(t, v, DumpQuery{Stream: "plant", Partition: -1})
			gap := slices.ContainsFunc(items, func(s string) bool { return strings.Contains(s, "gap") })
			if lost == (len(items) == whole && !gap) {
				t.Errorf("%d items of %d, a gap: %v, but lost is %v", len(items), whole, gap, lost)
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			for name, content := range before { // nothing was deleted: it is there, or in quarantine
				if strings.Contains(name, segmentSuffix) && !strings.HasSuffix(name, ".rewrite") && !kept(snapshot(t, cfg.Dir), name, content) {
					t.Errorf("%s is gone", name)
				}
			}
		})
	}
	f("nothing", func(*testing.T, Config) {}, "", "", false)
	f("a batch", func(t *testing.T, cfg Config) { flipIn(t, plant(cfg, 1), []byte("value 101")) }, "what can be read is kept", "", true)
	f("a cut segment", func(t *testing.T, cfg Config) {
		if err := os.Truncate(plant(cfg, 2), 20_000); err != nil {
			t.Fatal(err)
		}
	}, "set aside in quarantine/, readers see a gap", "", true)
	f("a missing segment", func(t *testing.T, cfg Config) {
		if err := os.Rename(plant(cfg, 1), filepath.Join(t.TempDir(), "x")); err != nil {
			t.Fatal(err)
		}
	}, "file is missing", "", true)
	f("meta.db", func(t *testing.T, cfg Config) {
		if err := os.Truncate(filepath.Join(cfg.Dir, "meta.db"), 4096); err != nil {
			t.Fatal(err)
		}
	}, "begun anew", "", false)
	f("a frame that is applied nowhere", func(t *testing.T, cfg Config) {
		files, _ := filepath.Glob(filepath.Join(cfg.Dir, "journal", "*"))
		for _, name := range files {
			if b, _ := os.ReadFile(name); bytes.Contains(b, []byte("value 620")) {
				flipIn(t, name, []byte("value 620"))
			}
		}
	}, "were durable and are not there", "", true)
	f("no index", func(t *testing.T, cfg Config) { dropIndex(t, plant(cfg, 1)) }, "is not the file that was sealed", "has no index", false)
	f("leftovers", func(t *testing.T, cfg Config) {
		if err := os.WriteFile(plant(cfg, 1)+".rewrite", []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}, "", "unfinished file", false)
}

func kept(files map[string]string, name, content string) bool {
	if _, there := files[name]; there {
		return true
	}
	for _, c := range files {
		if c == content {
			return true
		}
	}
	return false
}

// dropIndex makes a sealed segment again, without index.
func dropIndex(t *testing.T, path string) {
	t.Helper()
	seg, err := segment.Open(path, segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = seg.Rewrite(t.Context(), path+".tmp2", segment.Options{}, nil, func(b segment.Batch) (segment.Batch, bool, error) { return b, true, nil })
	if err = errors.Join(err, seg.Close(), os.Rename(path+".tmp2", path)); err != nil {
		t.Fatal(err)
	}
}

func TestRepairedIndexIsUsed(t *testing.T) {
	cfg := mixedSpool(t)
	dropIndex(t, filepath.Join(cfg.Dir, "seg", "plant", segmentName(1)))
	if _, err := Repair(t.Context(), cfg, Options{}, VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	v := mustView(t, cfg)
	d, err := v.InspectSegment(t.Context(), SegmentQuery{Stream: "plant", Sequence: 1, Partition: -1})
	if err != nil || len(d.Topics) != 7 || len(d.Clients) != 5 {
		t.Errorf("topics %v, clients %v, %v", d.Topics, d.Clients, err)
	}
}

func TestVerifyTellsAMovedSegment(t *testing.T) {
	cfg := mixedSpool(t)
	from := filepath.Join(cfg.Dir, "seg", "plant", segmentName(1))
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(filepath.Join(cfg.Dir, "seg", "plant", segmentName(9)), b, 0o640)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(findings(mustVerify(t, cfg), SeverityDamage), "\n")
	if !strings.Contains(got, "it was copied or renamed") || !strings.Contains(got, "set aside in quarantine/") {
		t.Errorf("findings:\n%s", got)
	}
}

func TestViewLeavesANewerFormatAlone(t *testing.T) {
	cfg := mixedSpool(t)
	db, err := bolt.Open(filepath.Join(cfg.Dir, "meta.db"), 0o640, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte{metaSealed + 1}) })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, cfg.Dir)
	if _, err := OpenView(cfg, Options{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("view: %v", err)
	}
	if _, err := Repair(t.Context(), cfg, Options{}, VerifyOptions{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("repair: %v", err)
	}
	wantUnchanged(t, cfg.Dir, before)
}

func TestVerifyOfARunningSpoolLeavesOutWhatIsInUse(t *testing.T) {
	cfg := mixedSpool(t)
	sealed := filepath.Join(cfg.Dir, "seg", "plant", segmentName(1))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 10)
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	r, err := VerifyRunning(t.Context(), cfg, VerifyOptions{})
	if err != nil || r.Segments < 4 || r.Damaged() || len(r.Skipped) < 3 {
		t.Errorf("%+v %v", r, err)
	}
	flipIn(t, sealed, []byte("value 101"))
	if r, err = VerifyRunning(t.Context(), cfg, VerifyOptions{Stream: "plant"}); err != nil || !r.Damaged() {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := Repair(t.Context(), cfg, Options{}, VerifyOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("repair of a running spool: %v", err)
	}
}

func TestFindingIsOneLine(t *testing.T) {
	f := Finding{Severity: SeverityDamage, Path: "/spool/seg/a/1.db", What: "crc", NextStart: "set aside"}.in("a", 3, 17, 43)
	if got, want := f.String(), "damage: /spool/seg/a/1.db: crc (a/3 offsets 17..42); at the next start: set aside"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := fmt.Sprint(Finding{Severity: SeverityNote, Path: "p", What: "w"}); got != "note: p: w" {
		t.Errorf("got %q", got)
	}
}
