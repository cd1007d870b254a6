package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

// TestPowerCutKeepsWhatWasAcknowledged rebuilds the journal as a power cut may leave it, after each of many calls, with
// none, some and all of what was not synced, beside the segments of that moment.
func TestPowerCutKeepsWhatWasAcknowledged(t *testing.T) {
	rnd := newRand(t)
	for range roundsOr(3) {
		disk := vfstest.NewDisk()
		dir := t.TempDir()
		cfg := smallConfig(dir, oneStream(nil))
		s := mustOpen(t, cfg, Options{FS: disk})
		type moment struct {
			ops, acked int
			dir        string
		}
		var moments []moment
		n := 0
		for range 12 {
			k := 1 + rnd.IntN(300)
			putMany(t, s, n, n+k)
			n += k
			switch rnd.IntN(4) {
			case 0:
				if err := s.materialise(true); err != nil {
					t.Fatal(err)
				}
			case 1:
				s.rollForRoom(s.streams[0])
			}
			to := t.TempDir()
			s.materialiseMu.Lock() // no journal file is released before the moment is over
			copyDir(t, dir, to)
			m := moment{disk.Ops(), n, to}
			for range 20 { // appends that nobody has waited for
				if err := s.Append(context.Background(), Entry{Record: testRecord(n)}); err != nil {
					t.Fatal(err)
				}
				n++
			}
			put(t, s, Entry{Record: testRecord(n)})
			n++
			// Any number of the calls since then may have happened, the segments being as old as the image.
			m.ops += rnd.IntN(disk.Ops() - m.ops + 1)
			s.materialiseMu.Unlock()
			moments = append(moments, m)
		}
		mustClose(t, s)
		for _, m := range moments {
			for _, keep := range []vfstest.Keep{vfstest.KeepNone, vfstest.KeepSome, vfstest.KeepAll} {
				cut := disk.Cut(m.ops, keep, rnd)
				to := t.TempDir()
				copyDir(t, m.dir, to)
				checkCut(t, cfg, &movedFS{Disk: cut, from: to, to: dir}, to, m.acked)
			}
		}
	}
}

func checkCut(t *testing.T, cfg Config, fs *movedFS, dir string, acked int) {
	t.Helper()
	cfg.Dir = dir
	s := mustOpen(t, cfg, Options{FS: fs})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(gaps) > 0 || len(got) < acked {
		t.Fatalf("%d records, %d acknowledged, gaps %v", len(got), acked, gaps)
	}
	wantPayloads(t, got, 0, len(got))
	putMany(t, s, len(got), len(got)+10)
	mustClose(t, s)
}

// TestSmallFullDiskLosesNothing fills a file system of 64 MB to the last byte while records come in, frees it, and counts.
func TestSmallFullDiskLosesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	cfg := smallConfig(filepath.Join(dir, "spool"), oneStream(nil))
	cfg.MaxSize, cfg.MinFree = 1<<30, 0 // nothing but the disk itself is a limit
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	var acked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for {
			r := testRecord(n)
			r.Payload = fmt.Appendf(nil, "value %d %04000d", n, n)
			if err := s.Append(ctx, Entry{Record: r, Done: completionFunc(func(_ *Record, err error) {
				if err == nil {
					acked.Add(1)
				}
			})}); err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("append: %v", err)
				}
				return
			}
			n++
		}
	}()
	eventually(t, "disk is full", func() bool { return s.noSpace.Load() || s.full.Load() })
	time.Sleep(300 * time.Millisecond)
	if err := s.Health(); err == nil {
		t.Error("a full disk is healthy")
	}
	stuck := acked.Load()
	var st syscall.Statfs_t
	_ = syscall.Statfs(dir, &st)
	t.Logf("%d acknowledged when the disk was full, %d bytes free", stuck, st.Bavail*uint64(st.Bsize))

	_, end := s.Bounds(DefaultStream, 0)
	checkNumbers(t, s, 0, int(end))
	c.Commit(0, end) // delivered: its segments may go, and make room
	eventually(t, "it goes on", func() bool { return acked.Load() > stuck+500 })
	cancel()
	n := <-done
	c.Commit(0, Offset(n))
	eventually(t, "all is acknowledged", func() bool { return int(acked.Load()) == n })
	start, end := s.Bounds(DefaultStream, 0)
	if int(end) != n || start == 0 {
		t.Errorf("bounds %d..%d, %d appended", start, end, n)
	}
	checkNumbers(t, s, int(start), n)
	eventually(t, "health", func() bool { return s.Health() == nil })
}

// checkNumbers reads [i, j) and checks that each offset holds its own number. What retention removes meanwhile may be gone.
func checkNumbers(t *testing.T, s *Spool, i, j int) {
	t.Helper()
	r, err := s.NewReader(DefaultStream, 0, Offset(i))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for next := Offset(i); next < Offset(j); {
		b, ok, err := r.TryNext()
		if err != nil || !ok || b.Gap != nil && b.Gap.Reason != GapRetention {
			t.Fatalf("at %d of %d: %v, gap %+v, %v", next, j, ok, b.Gap, err)
		}
		if b.Gap != nil {
			next = b.Gap.To
		}
		for k := range b.Records {
			var n int
			if _, err := fmt.Sscanf(string(b.Records[k].Payload), "value %d ", &n); err != nil || Offset(n) != next || b.Records[k].Offset != next {
				t.Fatalf("offset %d (%d) holds %.20q", next, b.Records[k].Offset, b.Records[k].Payload)
			}
			next++
		}
	}
}

// movedFS is a disk whose paths are seen under another directory.
type movedFS struct {
	*vfstest.Disk
	from, to string
}

func (m *movedFS) path(name string) string { return m.to + strings.TrimPrefix(name, m.from) }

func (m *movedFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	return m.Disk.OpenFile(m.path(name), flag, perm)
}
func (m *movedFS) Create(name string) (vfs.File, error)       { return m.Disk.Create(m.path(name)) }
func (m *movedFS) Rename(a, b string) error                   { return m.Disk.Rename(m.path(a), m.path(b)) }
func (m *movedFS) Remove(name string) error                   { return m.Disk.Remove(m.path(name)) }
func (m *movedFS) ReadDir(name string) ([]fs.DirEntry, error) { return m.Disk.ReadDir(m.path(name)) }
func (m *movedFS) Stat(name string) (fs.FileInfo, error)      { return m.Disk.Stat(m.path(name)) }
func (m *movedFS) MkdirAll(name string, perm fs.FileMode) error {
	return m.Disk.MkdirAll(m.path(name), perm)
}
func (m *movedFS) SyncDir(name string) error           { return m.Disk.SyncDir(m.path(name)) }
func (m *movedFS) Lock(name string) (io.Closer, error) { return m.Disk.Lock(m.path(name)) }
