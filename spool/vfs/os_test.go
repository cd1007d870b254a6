//go:build linux || darwin

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLockIsExclusiveAndNamesItsHolder(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	c, err := OS.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = OS.Lock(name)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second lock: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c, err = OS.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestCreateRefusesAFileThatExists(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := OS.Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
	if f, err := OS.OpenFile(name+"2", os.O_RDWR, 0); !errors.Is(err, fs.ErrNotExist) || f != nil {
		t.Errorf("%v, %v", f, err)
	}
}

func TestFileKnowsItsSizeAndSyncs(t *testing.T) {
	f, err := OS.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("abc"), 10); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Size(); n != 13 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := errors.Join(f.Datasync(), f.Sync(), f.Truncate(5)); err != nil {
		t.Error(err)
	}
	if n, _ := f.Size(); n != 5 {
		t.Error(n)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	var pe *fs.PathError
	if err := f.Datasync(); !errors.As(err, &pe) {
		t.Errorf("sync of a closed file: %v", err)
	}
}

func TestMkdirAllAndSyncDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "c")
	for range 2 {
		if err := OS.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := OS.SyncDir(dir); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := OS.MkdirAll(file, 0o750); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("%v", err)
	}
	if err := OS.MkdirAll(filepath.Join(file, "x"), 0o750); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("%v", err)
	}
}

func TestDiskFree(t *testing.T) {
	if n, err := OS.DiskFree(t.TempDir()); n <= 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := OS.DiskFree("/does/not/exist"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
