package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

func read(t *testing.T, d vfs.FS, name string) ([]byte, bool) {
	t.Helper()
	f, err := d.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, _ := f.Size()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b, true
}

func create(t *testing.T, d vfs.FS, name string) vfs.File {
	t.Helper()
	f, err := d.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCutKeepsOnlyWhatWasSynced(t *testing.T) {
	d := NewDisk()
	f := create(t, d, "/f")
	f.WriteAt(bytes.Repeat([]byte("a"), 1024), 0)
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
	if _, ok := read(t, d.Cut(d.Ops(), KeepNone, nil), "/f"); ok {
		t.Error("a name was durable without SyncDir")
	}
	d.SyncDir("/")
	f.WriteAt(bytes.Repeat([]byte("b"), 1024), 512)
	if b, _ := read(t, d.Cut(d.Ops(), KeepNone, nil), "/f"); !bytes.Equal(b, bytes.Repeat([]byte("a"), 1024)) {
		t.Errorf("%q", b)
	}
	if b, _ := read(t, d.Cut(d.Ops(), KeepAll, nil), "/f"); len(b) != 1536 || b[511] != 'a' || b[512] != 'b' {
		t.Errorf("%d bytes", len(b))
	}
	seen := map[string]bool{}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		b, _ := read(t, d.Cut(d.Ops(), KeepSome, rnd), "/f")
		key := ""
		for i := 0; i < len(b); i += Sector { // each sector is the old or the new one, as a whole
			if !bytes.Equal(b[i:i+Sector], bytes.Repeat(b[i:i+1], Sector)) {
				t.Fatal("a sector is torn")
			}
			key += string(b[i : i+1])
		}
		seen[key] = true
	}
	if !seen["aa"] || !seen["ab"] || !seen["aab"] || !seen["abb"] || !seen["ab\x00"] || seen["ba"] {
		t.Errorf("%v", seen)
	}
}

func TestCutForgetsNamesThatWereNotSynced(t *testing.T) {
	d := NewDisk()
	f := create(t, d, "/a")
	f.Sync()
	d.SyncDir("/")
	d.Rename("/a", "/b")
	none, all := d.Cut(d.Ops(), KeepNone, nil), d.Cut(d.Ops(), KeepAll, nil)
	if _, ok := read(t, none, "/a"); !ok {
		t.Error("the old name is gone")
	}
	if _, ok := read(t, all, "/b"); !ok {
		t.Error("the new name is not there")
	}
	d.SyncDir("/")
	d.Remove("/b")
	if _, ok := read(t, d.Cut(d.Ops(), KeepNone, nil), "/b"); !ok {
		t.Error("removed without SyncDir")
	}
	if _, ok := read(t, d.Cut(d.Ops(), KeepAll, nil), "/b"); ok {
		t.Error("not removed")
	}
	again := none.Cut(none.Ops(), KeepNone, nil)
	if _, ok := read(t, again, "/a"); !ok {
		t.Error("a cut disk is not durable")
	}
}

func TestFailedSyncIsNotMadeGoodByALaterOne(t *testing.T) {
	d := NewDisk()
	faults := NewFaults(d)
	f := create(t, faults, "/f")
	f.Sync()
	faults.SyncDir("/")
	faults.Add(Fault{Kind: Datasync, N: 1, Err: syscall.EIO})
	f.WriteAt([]byte("lost"), 0)
	if err := f.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	f.WriteAt([]byte("kept"), 512)
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
	b, _ := read(t, d.Cut(d.Ops(), KeepNone, nil), "/f")
	if len(b) != 516 || b[0] != 0 || string(b[512:]) != "kept" {
		t.Errorf("%q", b)
	}
}

func TestFaultsFailTheCallsTheyName(t *testing.T) {
	d := NewDisk()
	faults := NewFaults(d)
	faults.Add(Fault{Kind: Write, Path: "f", N: 2, Times: 2, Err: syscall.ENOSPC, Short: 3})
	f, g := create(t, faults, "/f"), create(t, faults, "/g")
	for i, fails := range []bool{false, true, true, false} {
		n, err := f.WriteAt([]byte("12345"), 0)
		if fails != errors.Is(err, syscall.ENOSPC) || fails && n != 3 || !fails && n != 5 {
			t.Errorf("write %d: %d, %v", i+1, n, err)
		}
		if _, err := g.WriteAt([]byte("1"), 0); err != nil {
			t.Error(err)
		}
	}
	if faults.Hits() != 2 {
		t.Error(faults.Hits())
	}
}

func TestLimitIsAFullDisk(t *testing.T) {
	d := NewDisk()
	d.Limit(10)
	f := create(t, d, "/f")
	if n, err := f.WriteAt(make([]byte, 15), 0); n != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := f.WriteAt(make([]byte, 10), 0); n != 10 || err != nil { // in place
		t.Errorf("%d, %v", n, err)
	}
	if n, _ := d.DiskFree("/"); n != 0 {
		t.Error(n)
	}
	d.Remove("/f")
	if n, _ := d.DiskFree("/"); n != 10 {
		t.Error(n)
	}
}

func TestCounterCounts(t *testing.T) {
	c := NewCounter(NewDisk())
	f := create(t, c, "/f")
	f.WriteAt(make([]byte, 7), 0)
	f.Datasync()
	f.Sync()
	if n := c.Count("f"); n != (Count{1, 7, 2}) || c.Count("x") != (Count{}) {
		t.Errorf("%+v", n)
	}
}

func TestDiskLock(t *testing.T) {
	d := NewDisk()
	l, err := d.Lock("/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lock("/LOCK"); !errors.Is(err, vfs.ErrLocked) {
		t.Error(err)
	}
	l.Close()
	if _, err := d.Lock("/LOCK"); err != nil {
		t.Error(err)
	}
}
