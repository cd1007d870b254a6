//go:build linux || darwin

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err // not f: a nil *os.File in an interface is not nil
	}
	return osFile{f}, nil
}

func (o osFS) Create(name string) (File, error) {
	return o.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
}

func (osFS) Rename(oldname, newname string) error       { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error                   { return os.Remove(name) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
func (osFS) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }

func (o osFS) MkdirAll(name string, perm fs.FileMode) error {
	name = filepath.Clean(name)
	if fi, err := os.Stat(name); err == nil {
		if !fi.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: name, Err: unix.ENOTDIR}
		}
		return nil
	}
	parent := filepath.Dir(name)
	if parent != name {
		if err := o.MkdirAll(parent, perm); err != nil {
			return err
		}
	}
	if err := os.Mkdir(name, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return o.SyncDir(parent)
}

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Lock uses flock and not fcntl locks: those are lost when any descriptor of the file is closed in this process, and do
// not keep the same process from locking twice.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &fs.PathError{Op: "lock", Path: name, Err: heldBy(f)}
		}
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	// The process ID is a hint for the operator and no more: a full disk must not keep the gateway from starting.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// heldBy names the holder of the lock file f when it has left its process ID.
func heldBy(f *os.File) error {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || errors.Is(unix.Kill(pid, 0), unix.ESRCH) { // who only reads leaves no process ID, and an old one may stand there
		return ErrLocked
	}
	return fmt.Errorf("%w (%d)", ErrLocked, pid)
}

func (osFS) DiskFree(path string) (int64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			return int64(st.Bavail) * int64(st.Bsize), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
		}
	}
}

// osFile is an open file of the operating system; Name, ReadAt, WriteAt, Truncate, Sync, Close, Fd come from os.File.
type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (f osFile) Datasync() error {
	for {
		err := fdatasync(f.File)
		if err == nil {
			return nil
		}
		// The one retry that is allowed: an interrupted call has not consumed a write-back error.
		if !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}
