package vfstest

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Sector is the unit in which a disk writes: a power cut keeps each sector as it was or as it should be.
const Sector = 512

// Disk is a file system in memory that forgets what was not synced when it is cut. Directories are always durable, files
// follow the rules of package vfs: content by Datasync or Sync of the file, names by SyncDir.
type Disk struct {
	mu    sync.Mutex
	names map[string]*inode // what a running process sees
	dirs  map[string]bool
	locks map[string]bool
	log   []op
	limit int64
	start int // length of the log when it was last forgotten: Cut cannot go back before it
}

type inode struct{ data []byte }

// op is one logged call that changed something.
type op struct {
	kind Kind
	name string // path when the call was made
	to   string // of a rename
	ino  *inode
	off  int64
	data []byte // of a write
	size int64  // of a truncate
	bad  bool   // a sync that failed
}

// NewDisk returns an empty disk.
func NewDisk() *Disk {
	return &Disk{names: map[string]*inode{}, dirs: map[string]bool{"/": true, ".": true}, locks: map[string]bool{}}
}

var _ vfs.FS = (*Disk)(nil)

// Limit sets the size of the disk: a write that needs more gets ENOSPC after what still fits. 0 is no limit.
func (d *Disk) Limit(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = bytes
}

// Ops is the number of calls so far that changed something. Cut takes such a number.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.log)
}

// Log returns the calls from number on, one line each, paths as base names.
func (d *Disk) Log(from int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for _, o := range d.log[from:] {
		s := o.kind.String() + " " + filepath.Base(o.name)
		switch o.kind {
		case Write:
			s += fmt.Sprintf(" %d+%d", o.off, len(o.data))
		case Truncate:
			s += fmt.Sprintf(" %d", o.size)
		case Rename:
			s += " " + filepath.Base(o.to)
		}
		if o.bad {
			s += " failed"
		}
		lines = append(lines, s)
	}
	return lines
}

func (d *Disk) record(o op) { d.log = append(d.log, o) }

// nameOf is the name that f has now; a renamed file is logged under its new name.
func (d *Disk) nameOf(f *diskFile) string {
	if d.names[f.name] == f.ino {
		return f.name
	}
	for name, ino := range d.names {
		if ino == f.ino {
			return name
		}
	}
	return f.name
}

func (d *Disk) used() (n int64) {
	for _, i := range d.names {
		n += int64(len(i.data))
	}
	return n
}

// OpenFile implements vfs.FS.
func (d *Disk) OpenFile(name string, flag int, _ fs.FileMode) (vfs.File, error) {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	ino := d.names[name]
	switch {
	case ino != nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EEXIST}
	case ino == nil && flag&os.O_CREATE == 0, !d.dirs[filepath.Dir(name)]:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	case ino == nil:
		ino = &inode{}
		d.names[name] = ino
		d.record(op{kind: Create, name: name, ino: ino})
	case flag&os.O_TRUNC != 0:
		ino.data = nil
		d.record(op{kind: Truncate, name: name, ino: ino})
	}
	return &diskFile{d: d, ino: ino, name: name, readOnly: flag&(os.O_RDWR|os.O_WRONLY) == 0}, nil
}

// Create implements vfs.FS.
func (d *Disk) Create(name string) (vfs.File, error) {
	return d.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
}

// Rename implements vfs.FS.
func (d *Disk) Rename(oldname, newname string) error {
	oldname, newname = filepath.Clean(oldname), filepath.Clean(newname)
	d.mu.Lock()
	defer d.mu.Unlock()
	ino := d.names[oldname]
	if ino == nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: syscall.ENOENT}
	}
	delete(d.names, oldname)
	d.names[newname] = ino
	d.record(op{kind: Rename, name: oldname, to: newname, ino: ino})
	return nil
}

// Remove implements vfs.FS.
func (d *Disk) Remove(name string) error {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	ino := d.names[name]
	if ino == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOENT}
	}
	delete(d.names, name)
	d.record(op{kind: Remove, name: name, ino: ino})
	return nil
}

// ReadDir implements vfs.FS.
func (d *Disk) ReadDir(name string) ([]fs.DirEntry, error) {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.dirs[name] {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: syscall.ENOENT}
	}
	var list []fs.DirEntry
	for path, ino := range d.names {
		if filepath.Dir(path) == name {
			list = append(list, fs.FileInfoToDirEntry(info{filepath.Base(path), int64(len(ino.data)), 0o640}))
		}
	}
	for path := range d.dirs {
		if filepath.Dir(path) == name && path != name {
			list = append(list, fs.FileInfoToDirEntry(info{filepath.Base(path), 0, fs.ModeDir | 0o750}))
		}
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// Stat implements vfs.FS.
func (d *Disk) Stat(name string) (fs.FileInfo, error) {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if ino := d.names[name]; ino != nil {
		return info{filepath.Base(name), int64(len(ino.data)), 0o640}, nil
	}
	if d.dirs[name] {
		return info{filepath.Base(name), 0, fs.ModeDir | 0o750}, nil
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: syscall.ENOENT}
}

// MkdirAll implements vfs.FS.
func (d *Disk) MkdirAll(name string, _ fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name = filepath.Clean(name); !d.dirs[name]; name = filepath.Dir(name) {
		d.dirs[name] = true
	}
	return nil
}

// SyncDir implements vfs.FS.
func (d *Disk) SyncDir(name string) error {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.record(op{kind: SyncDir, name: name})
	return nil
}

// Lock implements vfs.FS. The lock file itself is not shown.
func (d *Disk) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locks[name] {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: vfs.ErrLocked}
	}
	d.locks[name] = true
	return closer(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.locks, name)
		return nil
	}), nil
}

type closer func() error

func (c closer) Close() error { return c() }

// DiskFree implements vfs.FS.
func (d *Disk) DiskFree(string) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit == 0 {
		return 1 << 50, nil
	}
	return max(0, d.limit-d.used()), nil
}

type info struct {
	name string
	size int64
	mode fs.FileMode
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }

// Start is the number of calls that a disk made by Cut begins with: they put its content there and are durable.
func (d *Disk) Start() int { return d.start }
