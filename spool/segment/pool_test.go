package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// sealedFiles makes n sealed segments of 10 records each in dir.
func sealedFiles(t *testing.T, dir string, n int) (paths []string) {
	t.Helper()
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("%d.db", i))
		s, err := Create(path, Options{Stream: "s", Sequence: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		body := []byte(fmt.Sprintf("body %d", i))
		if err := errors.Join(s.Write(1, []Batch{{Base: 0, Next: 10, Count: 10, Never: 10, Body: body}}), s.Seal(t.Context(), nil), s.Close()); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func readOne(t *testing.T, s *Segment) (string, error) {
	t.Helper()
	var got string
	_, err := s.Read(0, 0, 1, func(b Batch) error { got = string(b.Body); return nil })
	return got, err
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(d)
}

func TestPoolBoundsDescriptors(t *testing.T) {
	pool := NewPool(3)
	before := openDescriptors(t)
	var segs []*Segment
	for _, path := range sealedFiles(t, t.TempDir(), 20) {
		s, err := Open(path, Options{Stream: "s", Sequence: uint64(len(segs)), Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		segs = append(segs, s)
	}
	for round := range 3 {
		for i, s := range segs {
			if got, err := readOne(t, s); err != nil || got != fmt.Sprintf("body %d", i) {
				t.Fatalf("round %d: segment %d says %q, %v", round, i, got, err)
			}
			if n, err := segs[(i+7)%len(segs)].ReadAt(make([]byte, 64), 0); n != 64 || err != nil {
				t.Fatalf("copy: %d bytes, %v", n, err)
			}
			if in := s.Info(); in.Records != 10 || in.FileBytes == 0 {
				t.Fatalf("segment %d: %+v", i, in)
			}
		}
		if n := openDescriptors(t) - before; n > 2*3 || pool.Open() > 3 {
			t.Fatalf("%d descriptors and %d segments are open, at most 3 segments may be", n, pool.Open())
		}
	}
	for _, s := range segs {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := readOne(t, s); !errors.Is(err, ErrClosed) {
			t.Fatalf("read after close: %v", err)
		}
	}
	if n := openDescriptors(t) - before; n > 0 || pool.Open() != 0 {
		t.Fatalf("%d descriptors are left, the pool has %d", n, pool.Open())
	}
}

func TestPoolServesManyReadersAtTheSameTime(t *testing.T) {
	pool := NewPool(2)
	var segs []*Segment
	for i, path := range sealedFiles(t, t.TempDir(), 6) {
		s, err := Open(path, Options{Stream: "s", Sequence: uint64(i), Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		segs = append(segs, s)
	}
	var wg sync.WaitGroup
	for r := range 8 {
		wg.Go(func() {
			for i := range 60 {
				n := (i*5 + r) % len(segs)
				if got, err := readOne(t, segs[n]); err != nil || got != fmt.Sprintf("body %d", n) {
					t.Errorf("segment %d says %q, %v", n, got, err)
				}
			}
		})
	}
	wg.Wait()
}

// A file that has gone, or is another, while it was not open is damage: its records are not there any more.
func TestParkedSegmentWhoseFileChangesIsDamage(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(path, other string) error
		want string
	}{
		"removed":  {func(path, _ string) error { return os.Remove(path) }, "file was removed"},
		"replaced": {func(path, other string) error { return os.Rename(other, path) }, "file was replaced by another"},
		"cut":      {func(path, _ string) error { return os.Truncate(path, 100) }, "100 bytes are too short"},
	} {
		t.Run(what, func(t *testing.T) {
			pool := NewPool(1)
			paths := sealedFiles(t, t.TempDir(), 3)
			a, err := Open(paths[0], Options{Stream: "s", Pool: pool})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			b, err := Open(paths[1], Options{Stream: "s", Sequence: 1, Pool: pool}) // a is parked
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := c.do(paths[0], paths[2]); err != nil {
				t.Fatal(err)
			}
			_, err = readOne(t, a)
			ce, ok := errors.AsType[*CorruptionError](err)
			if !ok || ce.Reason != c.want {
				t.Fatalf("read: %v, want %q", err, c.want)
			}
			if got, err := readOne(t, b); err != nil || got != "body 1" {
				t.Fatalf("the other says %q, %v", got, err)
			}
		})
	}
}

func TestPinnedSegmentIsReadWithoutItsName(t *testing.T) {
	pool := NewPool(1)
	paths := sealedFiles(t, t.TempDir(), 2)
	a, err := Open(paths[0], Options{Stream: "s", Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := errors.Join(a.Pin(), os.Remove(paths[0])); err != nil {
		t.Fatal(err)
	}
	b, err := Open(paths[1], Options{Stream: "s", Sequence: 1, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got, err := readOne(t, a); err != nil || got != "body 0" {
		t.Fatalf("says %q, %v", got, err)
	}
}

func TestMissingTellsWhatHasBecomeOfTheFile(t *testing.T) {
	paths := sealedFiles(t, t.TempDir(), 2)
	s, err := Open(paths[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Missing(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.Missing(); err == nil {
		t.Fatal("a file that was removed is not missing")
	}
	if err := os.Rename(paths[1], paths[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.Missing(); err == nil {
		t.Fatal("a file that was replaced is not missing")
	}
}
