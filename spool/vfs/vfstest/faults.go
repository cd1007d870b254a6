package vfstest

import (
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Kind is a kind of call.
type Kind uint8

const (
	Any Kind = iota // for Fault: a call of any kind
	Open
	Create
	Read
	Write
	Datasync
	Sync
	Truncate
	Close
	Rename
	Remove
	ReadDir
	Stat
	Mkdir
	SyncDir
	Lock
	DiskFree
)

// String names k as in logs.
func (k Kind) String() string {
	return [...]string{
		"any", "open", "create", "read", "write", "datasync", "sync", "truncate", "close", "rename", "remove",
		"readdir", "stat", "mkdir", "syncdir", "lock", "diskfree",
	}[k]
}

// Fault is what goes wrong, and when.
type Fault struct {
	Kind  Kind
	Path  string // part of the base name; empty: any
	N     int    // the N-th such call fails, counted from 1 from when the fault is added; 0: each
	Times int    // how many calls in a row fail from then on; 0: one, negative: all
	Err   error  // an errno; wrapped as the operating system does
	Short int    // Write: so many bytes are written before the error
}

// Faults wraps a file system and fails calls. A sync that fails below a Disk leaves what was written in doubt for ever.
type Faults struct {
	vfs.FS
	mu     sync.Mutex
	faults []*armed
	calls  int
	hits   int
}

type armed struct {
	Fault
	seen int
}

// NewFaults wraps fsys.
func NewFaults(fsys vfs.FS) *Faults { return &Faults{FS: fsys} }

// Add arms a fault.
func (f *Faults) Add(x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &armed{Fault: x})
}

// Clear disarms all faults.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Calls is the number of calls so far, Hits the number that were failed.
func (f *Faults) Calls() int { f.mu.Lock(); defer f.mu.Unlock(); return f.calls }

// Hits is the number of calls that were failed.
func (f *Faults) Hits() int { f.mu.Lock(); defer f.mu.Unlock(); return f.hits }

// check counts a call and returns the fault that meets it.
func (f *Faults) check(k Kind, path string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	var hit *Fault
	for _, x := range f.faults {
		if x.Kind != Any && x.Kind != k || !strings.Contains(filepath.Base(path), x.Path) {
			continue
		}
		x.seen++
		times := max(x.Times, 1)
		if x.N == 0 || x.seen >= x.N && (x.Times < 0 || x.seen < x.N+times) {
			hit = &x.Fault
		}
	}
	if hit != nil {
		f.hits++
	}
	return hit
}

func (f *Faults) fail(k Kind, path string) error {
	if x := f.check(k, path); x != nil {
		return &fs.PathError{Op: k.String(), Path: path, Err: x.Err}
	}
	return nil
}

// OpenFile implements vfs.FS.
func (f *Faults) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	if err := f.fail(Open, name); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.OpenFile(name, flag, perm))
}

// Create implements vfs.FS.
func (f *Faults) Create(name string) (vfs.File, error) {
	if err := f.fail(Create, name); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Create(name))
}

func (f *Faults) wrap(x vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{x, f}, nil
}

// Rename implements vfs.FS.
func (f *Faults) Rename(oldname, newname string) error {
	if err := f.fail(Rename, oldname); err != nil {
		return err
	}
	return f.FS.Rename(oldname, newname)
}

// Remove implements vfs.FS.
func (f *Faults) Remove(name string) error {
	if err := f.fail(Remove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// ReadDir implements vfs.FS.
func (f *Faults) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.fail(ReadDir, name); err != nil {
		return nil, err
	}
	return f.FS.ReadDir(name)
}

// Stat implements vfs.FS.
func (f *Faults) Stat(name string) (fs.FileInfo, error) {
	if err := f.fail(Stat, name); err != nil {
		return nil, err
	}
	return f.FS.Stat(name)
}

// MkdirAll implements vfs.FS.
func (f *Faults) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.fail(Mkdir, name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, perm)
}

// SyncDir implements vfs.FS.
func (f *Faults) SyncDir(name string) error {
	if err := f.fail(SyncDir, name); err != nil {
		return err
	}
	return f.FS.SyncDir(name)
}

// Lock implements vfs.FS.
func (f *Faults) Lock(name string) (io.Closer, error) {
	if err := f.fail(Lock, name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

// DiskFree implements vfs.FS.
func (f *Faults) DiskFree(path string) (int64, error) {
	if err := f.fail(DiskFree, path); err != nil {
		return 0, err
	}
	return f.FS.DiskFree(path)
}

type faultFile struct {
	vfs.File
	f *Faults
}

func (x *faultFile) ReadAt(b []byte, off int64) (int, error) {
	if err := x.f.fail(Read, x.Name()); err != nil {
		return 0, err
	}
	return x.File.ReadAt(b, off)
}

func (x *faultFile) WriteAt(b []byte, off int64) (int, error) {
	hit := x.f.check(Write, x.Name())
	if hit == nil {
		return x.File.WriteAt(b, off)
	}
	n := min(hit.Short, len(b))
	if n > 0 {
		n, _ = x.File.WriteAt(b[:n], off)
	}
	return n, &fs.PathError{Op: "write", Path: x.Name(), Err: hit.Err}
}

func (x *faultFile) Datasync() error { return x.sync(Datasync, x.File.Datasync) }
func (x *faultFile) Sync() error     { return x.sync(Sync, x.File.Sync) }

func (x *faultFile) sync(k Kind, real func() error) error {
	err := x.f.fail(k, x.Name())
	if err == nil {
		return real()
	}
	if d, ok := x.File.(interface{ failSync(Kind) }); ok {
		d.failSync(k)
	}
	return err
}

func (x *faultFile) Truncate(size int64) error {
	if err := x.f.fail(Truncate, x.Name()); err != nil {
		return err
	}
	return x.File.Truncate(size)
}

// Close closes in any case: a close that reports an error has closed.
func (x *faultFile) Close() error {
	err := x.f.fail(Close, x.Name())
	if cerr := x.File.Close(); err == nil {
		err = cerr
	}
	return err
}
