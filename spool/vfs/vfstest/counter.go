package vfstest

import (
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Count is what was done to files.
type Count struct {
	Writes int
	Bytes  int64 // written
	Syncs  int   // Datasync and Sync
}

// Counter wraps a file system and counts writes and syncs by file.
type Counter struct {
	vfs.FS
	mu    sync.Mutex
	files map[string]*Count
}

// NewCounter wraps fsys.
func NewCounter(fsys vfs.FS) *Counter { return &Counter{FS: fsys, files: map[string]*Count{}} }

// Count sums up the files whose base name, at the time they were opened, contains part.
func (c *Counter) Count(part string) Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sum Count
	for name, n := range c.files {
		if strings.Contains(name, part) {
			sum.Writes += n.Writes
			sum.Bytes += n.Bytes
			sum.Syncs += n.Syncs
		}
	}
	return sum
}

func (c *Counter) add(name string, n Count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name = filepath.Base(name)
	if c.files[name] == nil {
		c.files[name] = &Count{}
	}
	c.files[name].Writes += n.Writes
	c.files[name].Bytes += n.Bytes
	c.files[name].Syncs += n.Syncs
}

// OpenFile implements vfs.FS.
func (c *Counter) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	return c.wrap(c.FS.OpenFile(name, flag, perm))
}

// Create implements vfs.FS.
func (c *Counter) Create(name string) (vfs.File, error) { return c.wrap(c.FS.Create(name)) }

func (c *Counter) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &countedFile{f, c}, nil
}

type countedFile struct {
	vfs.File
	c *Counter
}

func (f *countedFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	f.c.add(f.Name(), Count{Writes: 1, Bytes: int64(n)})
	return n, err
}

func (f *countedFile) Datasync() error {
	f.c.add(f.Name(), Count{Syncs: 1})
	return f.File.Datasync()
}

func (f *countedFile) Sync() error {
	f.c.add(f.Name(), Count{Syncs: 1})
	return f.File.Sync()
}
