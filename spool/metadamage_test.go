package spool

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Whatever has happened to meta.db, the process goes on, every record is there, and new state can be written.
func TestAnyDamageOfMetaIsSurvived(t *testing.T) {
	cfg, _ := threeSegments(t)
	s := mustOpen(t, cfg, Options{})
	for i := range 3000 {
		if err := s.Append(t.Context(), Entry{Changes: []Change{{"a", fmt.Sprint(i), make([]byte, 200)}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, Entry{Changes: []Change{{"b", "x", make([]byte, 20000)}}})
	mustClose(t, s)
	sound, err := os.ReadFile(filepath.Join(cfg.Dir, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for i := range 40 {
		b := append([]byte(nil), sound...)
		page := rng.IntN(len(b)/4096) * 4096
		switch i % 5 {
		case 0:
			b = b[:rng.IntN(len(b))]
		case 1:
			clear(b[page:][:4096])
		case 2:
			copy(b[page:][:4096], b[rng.IntN(len(b)/4096)*4096:])
		case 3:
			b[page+rng.IntN(64)] ^= 1 << rng.IntN(8)
		default:
			for range 50 {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
		}
		cfg := cfg
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		cfg.Dir = dir
		if err := os.WriteFile(filepath.Join(dir, "meta.db"), b, 0o640); err != nil {
			t.Fatal(err)
		}
		s, err := Open(cfg, Options{})
		if errors.Is(err, ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(got) != 400 || len(gaps) != 0 {
			t.Errorf("damage %d: %d records, gaps %v", i, len(got), gaps)
		}
		for i := range 200 {
			put(t, s, Entry{Changes: []Change{{"a", fmt.Sprint(i * 17), make([]byte, 300)}}})
		}
		if err := errors.Join(s.materialise(true), s.Load("a", func(string, []byte) error { return nil }), s.Close()); err != nil {
			t.Errorf("damage %d: %v", i, err)
		}
	}
}

func TestDamagedValueInMetaDoesNotStopTheStart(t *testing.T) {
	cfg, _ := threeSegments(t)
	path := filepath.Join(cfg.Dir, "meta.db")
	db, err := bolt.Open(path, 0o640, nil)
	if err == nil {
		err = db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketPartitions).Put(partitionKey(DefaultStream, 0), []byte("{\"next\":"))
		})
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg, Options{})
	got, _ := wantAccounts(t, s, 400)
	wantPayloads(t, got, 0, 400)
	if q := quarantined(t, cfg); len(q) != 1 || !strings.Contains(q[0], "meta.db") {
		t.Errorf("quarantine %v", q)
	}
}

const leakEnv = "FOREBAY_SPOOL_TEST_LEAKS" // the process leaves goroutines behind

// The same while the spool runs: somebody, or the disk, writes over the file under bbolt's map. No call may end the process or hang,
// and the next start has every record.
func TestDamageOfMetaWhileRunningIsContained(t *testing.T) {
	if os.Getenv(leakEnv) == "" { // what bbolt never comes back from is left behind: in a process of its own
		cmd := exec.Command(os.Args[0], "-test.run", "^TestDamageOfMetaWhileRunningIsContained$", "-test.v")
		cmd.Env = append(os.Environ(), leakEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	for name, harm := range map[string]func(f *os.File, size int64) error{
		"meta pages": func(f *os.File, _ int64) error { _, err := f.WriteAt(make([]byte, 2*4096), 0); return err },
		"all pages":  func(f *os.File, size int64) error { _, err := f.WriteAt(make([]byte, size-2*4096), 2*4096); return err },
		"ones": func(f *os.File, size int64) error {
			_, err := f.WriteAt(bytes.Repeat([]byte{0xff}, int(size-2*4096)), 2*4096)
			return err
		},
		"cut":         func(f *os.File, _ int64) error { return f.Truncate(2 * 4096) },
		"cut to none": func(f *os.File, _ int64) error { return f.Truncate(0) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := threeSegments(t)
			s, err := Open(cfg, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 300 {
				put(t, s, Entry{Changes: []Change{{"a", fmt.Sprint(i), make([]byte, 200)}}})
			}
			if err := s.materialise(true); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(cfg.Dir, "meta.db")
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			fi, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(harm(f, fi.Size()), f.Close()); err != nil {
				t.Fatal(err)
			}
			put(t, s, Entry{Record: testRecord(400), Changes: []Change{{"a", "1", []byte("x")}}})
			failed := s.materialise(true) != nil
			failed = s.Load("a", func(string, []byte) error { return nil }) != nil || failed
			_, err = s.InspectMeta(t.Context(), MetaQuery{})
			if failed = err != nil || failed; !failed {
				t.Error("nobody has seen the damage")
			}
			s.clean(t.Context())
			got, gaps := readAll(t, s, DefaultStream, 0, 0)
			if len(gaps) > 0 {
				t.Fatal(gaps)
			}
			wantPayloads(t, got, 0, 401)
			began := time.Now()
			_ = s.Close() // says that it is damaged; the process keeps the lock of the file then, so another one comes:
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("closing took %v", took)
			}
			was := cfg.Dir
			cfg.Dir = t.TempDir()
			if err := os.CopyFS(cfg.Dir, os.DirFS(was)); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, cfg, Options{})
			got, gaps = readAll(t, s, DefaultStream, 0, 0)
			if len(gaps) > 0 {
				t.Fatal(gaps)
			}
			wantPayloads(t, got, 0, 401)
		})
	}
}
