package segment

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// mountTmpfs gives a file system of the given size.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("mounting a small file system is not allowed here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all space of dir but keep bytes.
func fill(t *testing.T, dir string, keep int64) (path string) {
	t.Helper()
	path = filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, neverEnding{})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal("disk not full: ", err)
	}
	if err := errors.Join(f.Truncate(max(0, n-keep)), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// mountExt4 makes an ext4 file system in a file: it reserves space late, so that ENOSPC may come from a sync.
func mountExt4(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	for _, c := range [][]string{
		{"truncate", "-s", size, image},
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no ext4 on a loop device here: %v: %v %s", c, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return dir
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

func TestFullDiskFailsOneWriteOnly(t *testing.T) {
	t.Run("tmpfs", func(t *testing.T) { fullDisk(t, mountTmpfs(t, "24m")) })
	t.Run("ext4", func(t *testing.T) { fullDisk(t, mountExt4(t, "48m")) })
}

func fullDisk(t *testing.T, dir string) {
	rng := rand.New(rand.NewPCG(1, 1))
	lost := map[string]bool{"lost+found": true}
	for _, keep := range []int64{0, 4 << 10, 20 << 10, 100 << 10, 1 << 20} {
		path := filepath.Join(dir, "full.db")
		s, err := Create(path, Options{MaxSize: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		b := batch(rng, 0, 0, 3000)
		mustWrite(t, s, 1, b)
		ballast := fill(t, dir, keep)
		at, applied, failures := b.Next, uint64(1), 0
		for failures < 3 {
			b := batch(rng, 0, at, 1000)
			if err := s.Write(applied+1, []Batch{b, batch(rng, 1, at, 1000)}); err != nil {
				if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrFailed) {
					t.Fatalf("keep %d: %v", keep, err)
				}
				failures++
				continue
			}
			at, applied = b.Next, applied+1
		}
		check := func(s *Segment) {
			t.Helper()
			if _, next, err := readAll(s, 0, 0, 1<<30); err != nil || next != at || s.Applied() != applied {
				t.Fatalf("keep %d: read to %d, applied %d, %v; want %d, %d", keep, next, s.Applied(), err, at, applied)
			}
			if err := s.Verify(context.Background()); err != nil {
				t.Fatalf("keep %d: %v", keep, err)
			}
		}
		check(s)
		if o, err := Create(filepath.Join(dir, "other.db"), Options{}); err == nil {
			_ = errors.Join(o.Close(), os.Remove(o.Path())) // it is small: there may be room for it
		} else if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("create on a full disk: %v", err)
		}
		if keep == 0 {
			// It may fit into pages that failed writes have left.
			if err := s.Seal(context.Background(), indexBody); err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("seal on a full disk: %v", err)
			}
			check(s)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if !s.Info().Sealed {
			b = batch(rng, 0, at, 1000)
			mustWrite(t, s, applied+1, b)
			at, applied = b.Next, applied+1
		}
		check(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(path, Options{MaxSize: 16 << 20}); err != nil {
			t.Fatal(err)
		}
		check(s)
		if err := s.Seal(context.Background(), indexBody); err != nil {
			t.Fatal(err)
		}
		check(s)
		names, _ := os.ReadDir(dir)
		for _, n := range names {
			if n.Name() != "full.db" && !lost[n.Name()] {
				t.Errorf("left behind: %v", n.Name())
			}
		}
		if err := errors.Join(s.Close(), os.Remove(path)); err != nil {
			t.Fatal(err)
		}
	}
}
