package spool

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Damage is told in one line that says what it has cost when that is known, and in the health until somebody has taken the
// files away; nothing says that records are lost which the journal gives back.
func TestDamageIsToldOnceAndTruly(t *testing.T) {
	for _, c := range []struct {
		name, file string // the last of the pattern's files is overwritten
		at         float64
		want       string // in the log
		lost       bool
	}{
		{"what the journal has", "seg/default/*.db", 0.01, "the spool was damaged; no record is lost", false},
		{"what is in a segment only", "seg/default/*1.db", 0.5, "damaged segment was set aside", true},
		{"meta.db", "meta.db", 0, "the spool was damaged; no record is lost", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := smallConfig(dir, oneStream(nil))
			s := mustOpen(t, cfg, Options{})
			rng := rand.NewChaCha8([32]byte{1})
			for i := range 3000 {
				if i == 2900 && !c.lost { // from here on the journal keeps what goes into a new segment
					rollAll(t, s)
					s.cleanMu.Lock()
					s.materialiseMu.Lock()
				}
				r := testRecord(i)
				r.Payload = make([]byte, 1500)
				_, _ = rng.Read(r.Payload)
				put(t, s, Entry{Record: r})
			}
			if c.lost {
				s.clean(t.Context())
			} else {
				s.metaWritten = s.clock.now() // so that the journal is not released yet
				if err := s.materialiseLocked(false); err != nil {
					t.Fatal(err)
				}
				dir = t.TempDir()
				copyDir(t, cfg.Dir, dir) // as a kill would leave it: the end of a spool may free the journal or not
				s.materialiseMu.Unlock()
				s.cleanMu.Unlock()
			}
			mustClose(t, s)
			cfg.Dir = dir
			files, err := filepath.Glob(filepath.Join(dir, c.file))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			wreck(t, files[len(files)-1], c.at)

			l, log := logTo(t)
			s = mustOpen(t, cfg, Options{Logger: log})
			got, gaps := readAll(t, s, DefaultStream, 0, 0)
			s.clean(t.Context())
			if c.lost { // a damaged batch shows when it is read
				got, gaps = readAll(t, s, DefaultStream, 0, 0)
			}
			var missing uint64
			for _, g := range gaps {
				missing += uint64(g.To - g.From)
			}
			if counted := s.byName[DefaultStream].dropped[dropDamaged].Load(); counted != missing || missing != uint64(3000-len(got)) || c.lost != (missing > 0) {
				t.Errorf("%d records read, %d in gaps, %d counted", len(got), missing, counted)
			}
			if n := strings.Count(l.b.String(), c.want); n != 1 {
				t.Errorf("%q stands %d times in the log", c.want, n)
			}
			wantErrors := 0
			if c.lost || c.file == "meta.db" {
				wantErrors = 1
			}
			if n := strings.Count(l.b.String(), "level=ERROR"); n != wantErrors {
				t.Errorf("%d errors in the log, want %d", n, wantErrors)
			}
			if err := s.Health(); err != nil {
				t.Errorf("health %v: publishers are served", err)
			}
			err = s.Worry()
			if err == nil || !strings.Contains(err.Error(), "were set aside since the start: ") || !strings.Contains(err.Error(), "move the files out of ") {
				t.Errorf("worry %v", err)
			}
			mustClose(t, s)
			s = mustOpen(t, cfg, Options{})
			if err := s.Worry(); err != nil {
				t.Errorf("worry after another start: %v", err)
			}
			mustClose(t, s)
		})
	}
}

// wreck overwrites an eighth of a file.
func wreck(t *testing.T, path string, at float64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, fi.Size()/8+5*4096), int64(at*float64(fi.Size()))); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWorryEndsWhenTheFilesAreTakenAway(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "quarantine"), 0o750); err != nil {
		t.Fatal(err)
	}
	f := func(name string) string { return filepath.Join(dir, "quarantine", name) }
	if err := os.WriteFile(f("old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, smallConfig(dir, oneStream(nil)), Options{})
	s.clean(t.Context())
	if err := s.Worry(); err != nil {
		t.Errorf("of what was there before: %v", err)
	}
	if err := os.WriteFile(f("new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.clean(t.Context())
	if err := s.Worry(); err == nil || !strings.Contains(err.Error(), ": new;") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(f("new")); err != nil {
		t.Fatal(err)
	}
	s.clean(t.Context())
	if err := s.Worry(); err != nil {
		t.Errorf("after it was taken away: %v", err)
	}
}
