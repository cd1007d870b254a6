package journal

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

func TestFailedSyncIsNeverRepeatedOnThatFile(t *testing.T) {
	d := vfstest.NewDisk()
	faults := vfstest.NewFaults(d)
	j := openOn(t, faults, small())
	mustAppend(t, j, "a")
	j.quiesce()
	bad := j.active.name
	faults.Add(vfstest.Fault{Kind: vfstest.Datasync, N: 1, Err: syscall.EIO})
	before := d.Ops()
	if first, _ := mustAppend(t, j, "b"); first != 2 {
		t.Fatalf("lsn %d", first)
	}
	mustAppend(t, j, "c")
	touched := 0
	for _, line := range d.Log(before) {
		if strings.Contains(line, bad) {
			touched++
		}
	}
	if touched != 2 { // the write and the sync that failed
		t.Errorf("%s touched again: %v", bad, d.Log(before))
	}
	for _, keep := range []vfstest.Keep{vfstest.KeepNone, vfstest.KeepAll} {
		k := openOn(t, d.Cut(d.Ops(), keep, nil), small())
		got, lost := contents(t, k, 0)
		want(t, got, 1, "a", "b", "c")
		if lost != nil {
			t.Errorf("lost %v", lost)
		}
	}
	j.Release(3)
	mustAppend(t, j, "d")
	j.quiesce()
	j.Close()
	if _, err := d.Stat(testDir + "/" + bad); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", bad, err)
	}
}

func TestSecondFailureIsForEverAndNamesTheFiles(t *testing.T) {
	for _, k := range []vfstest.Kind{vfstest.Datasync, vfstest.Write} {
		d := vfstest.NewDisk()
		faults := vfstest.NewFaults(d)
		j := openOn(t, faults, small())
		mustAppend(t, j, "a")
		j.quiesce()
		faults.Add(vfstest.Fault{Kind: k, N: 1, Times: 2, Err: syscall.EIO})
		_, _, err := j.Append([]byte("b"))
		if !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) || strings.Count(err.Error(), suffix) < 2 {
			t.Errorf("%v: %v", k, err)
		}
		if _, _, err := j.Append([]byte("b")); !errors.Is(err, ErrFailed) { // though the disk works again
			t.Errorf("%v: %v", k, err)
		}
		j.Close()
		j = openOn(t, d.Cut(d.Ops(), vfstest.KeepNone, nil), small())
		got, _ := contents(t, j, 0)
		want(t, got, 1, "a")
	}
}

func TestNoSpaceForAFileIsFullAndThenGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		d.Limit(100 << 10) // one file and a half
		j := openOn(t, d, small())
		j.quiesce()
		mustAppend(t, j, string(body("a", 40000)))
		_, _, err := j.Append(body("b", 40000))
		if !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if files, _ := d.ReadDir(testDir); len(files) != 1 {
			t.Errorf("%d files: an unfinished one was left", len(files))
		}
		mustAppend(t, j, "small") // what fits goes on
		d.Limit(0)
		time.Sleep(time.Second)
		if first, _ := mustAppend(t, j, string(body("b", 40000))); first != 3 {
			t.Errorf("lsn %d", first)
		}
		j.Close()
	})
}

func TestNoSpaceInTheMiddleOfTheZeroFillLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		d.Limit(100 << 10)
		j := openOn(t, blind{d}, small()) // the free space is not told beforehand
		j.quiesce()
		mustAppend(t, j, string(body("a", 40000)))
		if _, _, err := j.Append(body("b", 40000)); !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if files, _ := d.ReadDir(testDir); len(files) != 1 {
			t.Errorf("%d files: an unfinished one was left", len(files))
		}
		j.Close()
	})
}

// blind is a file system that says that there is always room.
type blind struct{ vfs.FS }

func (blind) DiskFree(string) (int64, error) { return 1 << 40, nil }

func TestOpenOnAFullDiskReplaysAndWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		j := openOn(t, d, small())
		for range 21 {
			mustAppend(t, j, string(body("x", 5000)))
		}
		j.Close()
		d.Limit(1)
		j = openOn(t, d, small())
		got, lost := contents(t, j, 0)
		if len(got) != 21 || lost != nil || !j.Recovery().Unproven {
			t.Fatalf("%d replayed, lost %v, %+v", len(got), lost, j.Recovery())
		}
		if _, _, err := j.Append([]byte("y")); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		j.Release(7)
		if first, _ := mustAppend(t, j, "y"); first != 22 {
			t.Errorf("lsn %d", first)
		}
		j.Close()
		j = openOn(t, d.Cut(d.Ops(), vfstest.KeepNone, nil), small())
		if got, lost := contents(t, j, 7); len(got) != 15 || lost != nil {
			t.Errorf("%d replayed, lost %v", len(got), lost)
		}
		j.Close()
	})
}

func TestNoSpaceOnWriteIsNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		faults := vfstest.NewFaults(d)
		j := openOn(t, faults, small())
		mustAppend(t, j, "a")
		j.quiesce()
		faults.Add(vfstest.Fault{Kind: vfstest.Write, Times: -1, N: 1, Err: syscall.ENOSPC, Short: 512})
		for range 5 {
			if _, _, err := j.Append([]byte("b")); !errors.Is(err, ErrFull) || errors.Is(err, ErrFailed) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		faults.Clear()
		time.Sleep(time.Second)
		if first, _ := mustAppend(t, j, "c"); first != 2 {
			t.Errorf("lsn %d", first)
		}
		j.Close()
		j = openOn(t, d.Cut(d.Ops(), vfstest.KeepNone, nil), small())
		got, _ := contents(t, j, 0)
		want(t, got, 1, "a", "c")
		j.Close()
	})
}

func TestRefusedGroupCannotComeBackBehindALaterOne(t *testing.T) {
	d := vfstest.NewDisk()
	faults := vfstest.NewFaults(d)
	cfg := small()
	cfg.Files = 2
	j := openOn(t, faults, cfg)
	mustAppend(t, j, string(body("a", 40000)))
	mustAppend(t, j, string(body("b", 40000)))
	// The sync fails, and neither the keeper nor the emergency can make a file.
	faults.Add(vfstest.Fault{Kind: vfstest.Datasync, N: 1, Err: syscall.EIO})
	faults.Add(vfstest.Fault{Kind: vfstest.Create, Err: syscall.EIO})
	if _, _, err := j.Append([]byte("c"), []byte("ghost")); !errors.Is(err, ErrFull) || errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	faults.Clear()
	// Before a later group the refused one may be found ...
	k := openOn(t, d.Cut(d.Ops(), vfstest.KeepAll, nil), cfg)
	got, _ := contents(t, k, 2)
	want(t, got, 3, "c", "ghost")
	// ... after it, never.
	j.Release(1)
	mustAppend(t, j, "d")
	k = openOn(t, d.Cut(d.Ops(), vfstest.KeepAll, nil), cfg)
	got, lost := contents(t, k, 1)
	want(t, got, 2, string(body("b", 40000)), "d")
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
}

func TestUnreadableBlockIsDamageAndItsLSNIsNotReused(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a", "b", "c")
	j.Close()
	j = openOn(t, badBlock{d, headerSize + 4096}, small())
	got, lost := contents(t, j, 0)
	if len(lost) != 1 || lost[0].From != 2 || got[1] != "a" || got[2] != "" {
		t.Fatalf("%v, lost %v", got, lost)
	}
	first, _ := mustAppend(t, j, "d")
	if first <= lost[0].To {
		t.Errorf("lsn %d, lost %v", first, lost)
	}
	j.Close()
	j = openOn(t, d, small()) // the block can be read again: nothing is lost after all
	got, _ = contents(t, j, 0)
	if got[1] != "a" || got[2] != "b" || got[3] != "c" || got[first] != "d" {
		t.Errorf("%v", got)
	}
}

// badBlock is a disk on which a block of the first file cannot be read.
type badBlock struct {
	vfs.FS
	off int64
}

func (b badBlock) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := b.FS.OpenFile(name, flag, perm)
	if err != nil || !strings.Contains(name, slotName(1)) {
		return f, err
	}
	return badBlockFile{f, b.off}, nil
}

type badBlockFile struct {
	vfs.File
	off int64
}

func (f badBlockFile) ReadAt(b []byte, off int64) (int, error) {
	if off <= f.off && f.off < off+int64(len(b)) {
		return 0, &fs.PathError{Op: "read", Path: f.Name(), Err: syscall.EIO}
	}
	return f.File.ReadAt(b, off)
}
