package segment

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A gateway that has no descriptor left closes the file for the switch to read-only and cannot open it again.
func TestSealOpensTheFileWhenItCanAgain(t *testing.T) {
	s := mustCreate(t, Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	if err := s.Write(1, []Batch{batch(rng, 0, 0, 100)}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.path, s.path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(t.Context(), indexBody); err == nil {
		t.Fatal("sealed a file that is not there")
	}
	if err := os.Rename(s.path+".away", s.path); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(t.Context(), indexBody); err != nil {
		t.Fatal(err)
	}
	if next, err := s.Read(0, 0, 1<<20, func(Batch) error { return nil }); err != nil || next != 100 {
		t.Errorf("read to %d, %v", next, err)
	}
}

// Retention counts from the time of creation: a rewrite must not begin it anew.
func TestRewriteIsAsOldAsWhatItCopies(t *testing.T) {
	at := time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)
	s := mustCreate(t, Options{Now: func() time.Time { return at }})
	rng := rand.New(rand.NewPCG(1, 2))
	if err := s.Write(1, []Batch{batch(rng, 0, 0, 100)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	later := func() time.Time { return at.Add(time.Hour) }
	in, err := s.Rewrite(t.Context(), filepath.Join(t.TempDir(), "2.db"), Options{Now: later}, nil, func(b Batch) (Batch, bool, error) { return b, true, nil })
	if err != nil || in.Created != at.UnixNano() || in.SealedAt != later().UnixNano() {
		t.Errorf("created %v, sealed %v, %v", time.Unix(0, in.Created), time.Unix(0, in.SealedAt), err)
	}
}

type badSector struct{ io.ReaderAt }

func (r badSector) ReadAt(p []byte, off int64) (int, error) {
	if off >= pageSize && off < 3*pageSize {
		return 0, &os.PathError{Op: "read", Path: "x", Err: syscall.EIO}
	}
	return r.ReaderAt.ReadAt(p, off)
}

func TestWhatTheDiskCannotReadIsDamage(t *testing.T) {
	s := mustCreate(t, Options{})
	_, err := checkTree(badSector{s.raw}, 4*pageSize, false)
	var damage storedError
	if !errors.As(err, &damage) {
		t.Errorf("%v", err)
	}
	if err := os.Mkdir(s.path+".dir", 0o750); err != nil {
		t.Fatal(err)
	}
	var ce *CorruptionError
	if _, err := Open(s.path+".dir", Options{}); !errors.As(err, &ce) {
		t.Error(fmt.Errorf("a directory: %w", err))
	}
}

// Somebody copies an old file over one that is in use. bbolt would keep a lock, and hold up everybody who asks again.
func TestFileThatIsWrittenOverIsDamageForEveryReader(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"cut":       func(path string) error { return os.Truncate(path, 0) },
		"overwrite": func(path string) error { return os.WriteFile(path, make([]byte, 1<<20), 0o640) },
	} {
		s := mustCreate(t, Options{})
		rng := rand.New(rand.NewPCG(1, 2))
		if err := s.Write(1, []Batch{batch(rng, 0, 0, 100)}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Seal(t.Context(), nil), spoil(s.path)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		for range 3 {
			go func() {
				_, err := s.Read(0, 0, 1<<20, func(Batch) error { return nil })
				done <- err
			}()
			select {
			case err := <-done:
				var ce *CorruptionError
				if !errors.As(err, &ce) {
					t.Errorf("%s: %v", what, err)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s: hangs", what)
			}
		}
	}
}
