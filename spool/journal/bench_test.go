package journal

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// BenchmarkAppend compares a group of one payload in three ways of making it durable: a growing file, a file of zeros
// that is overwritten, and the journal. -bench Append -benchtime 1000x -count 5, and compare the medians.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{300, 16 << 10, 256 << 10} {
		p := body("bench", size)
		b.Run(fmt.Sprintf("growing/%d", size), func(b *testing.B) { benchFile(b, p, 0) })
		b.Run(fmt.Sprintf("zeroed/%d", size), func(b *testing.B) { benchFile(b, p, 64<<20) })
		b.Run(fmt.Sprintf("journal/%d", size), func(b *testing.B) { benchJournal(b, p) })
	}
}

// BenchmarkAppendCPU is Append without a disk.
func BenchmarkAppendCPU(b *testing.B) {
	dir := b.TempDir()
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		dir = filepath.Join("/dev/shm", fmt.Sprintf("journal-bench-%d", os.Getpid()))
		b.Cleanup(func() { os.RemoveAll(dir) })
	}
	benchIn(b, dir, body("bench", 100_000))
}

func benchFile(b *testing.B, p []byte, size int64) {
	f, err := vfs.OS.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := zeroFill(f, size, func() bool { return false }); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	buf := appendFrame(nil, frame{lsn: 1, payload: p})
	b.SetBytes(int64(len(p)))
	off := int64(0)
	for b.Loop() {
		sealFrames(buf, 1)
		if size > 0 && off+int64(len(buf)) > size {
			off = 0
		}
		if err := writeAll(f, buf, off); err != nil {
			b.Fatal(err)
		}
		if err := f.Datasync(); err != nil {
			b.Fatal(err)
		}
		off += int64(len(buf))
	}
}

func benchJournal(b *testing.B, p []byte) { benchIn(b, b.TempDir(), p) }

func benchIn(b *testing.B, dir string, p []byte) {
	cfg := DefaultConfig()
	cfg.Dir = dir
	j, err := open(cfg, Options{}, rand.Uint64)
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	j.quiesce()
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, last, err := j.Append(p)
		if err != nil {
			b.Fatal(err)
		}
		j.Release(last)
	}
}
