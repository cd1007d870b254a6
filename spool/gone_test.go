package spool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What is acknowledged is in files that the next start finds. When somebody takes them away, nothing is acknowledged.
func TestSpoolEndsWhenItsFilesAreTakenAway(t *testing.T) {
	remove := func(t *testing.T, path string) {
		t.Helper()
		err := os.RemoveAll(path)
		for try := 0; err != nil && try < 100; try++ { // the journal is making its next file
			err = os.RemoveAll(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first := func(t *testing.T, dir string) string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, "journal", "*.journal"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		return files[0]
	}
	for name, take := range map[string]func(t *testing.T, dir string){
		"directory removed": func(t *testing.T, dir string) { remove(t, dir) },
		"directory moved": func(t *testing.T, dir string) {
			if err := os.Rename(dir, dir+".old"); err != nil {
				t.Fatal(err)
			}
		},
		"directory replaced": func(t *testing.T, dir string) {
			if err := errors.Join(os.Rename(dir, dir+".old"), os.CopyFS(dir, os.DirFS(dir+".old"))); err != nil {
				t.Fatal(err)
			}
		},
		"journal file removed": func(t *testing.T, dir string) { remove(t, first(t, dir)) },
		"journal file replaced": func(t *testing.T, dir string) {
			path := first(t, dir)
			b, err := os.ReadFile(path)
			remove(t, path)
			if err := errors.Join(err, os.WriteFile(path, b, 0o640)); err != nil {
				t.Fatal(err)
			}
		},
		"lock removed":    func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "LOCK")) },
		"meta.db removed": func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "meta.db")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spool")
			s := mustOpen(t, smallConfig(dir, oneStream(nil)), Options{})
			putMany(t, s, 0, 100)
			s.clean(t.Context())
			if err := s.Health(); err != nil {
				t.Fatalf("health before: %v", err)
			}
			take(t, dir)
			there := tree(t, dir)
			s.clean(t.Context()) // the janitor's round of every second
			if err := s.Append(t.Context(), Entry{Record: testRecord(0)}); !errors.Is(err, ErrFailed) {
				t.Errorf("append: %v", err)
			}
			err := s.Health()
			if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "bring back the directory "+dir) {
				t.Errorf("health %v", err)
			}
			began := time.Now()
			_ = s.Close() // may say that files are gone; it has to end, and to write nothing into a directory of others
			if d := time.Since(began); d > closeDeadline {
				t.Errorf("close took %v", d)
			}
			if after := tree(t, dir); after != there {
				t.Errorf("written after the files were gone:\n%s\nbefore:\n%s", after, there)
			}
		})
	}
}

func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.Contains(path, "/seg/") {
			b.WriteString(path + "\n")
		}
		return nil
	})
	return b.String()
}
