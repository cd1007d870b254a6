package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// makeDirs makes a directory and syncs those above it that got a new entry.
func makeDirs(dir string) error {
	if fi, err := os.Stat(dir); err == nil {
		if !fi.IsDir() {
			return fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if err := makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

var syncNames = syncDir // tests look at it

// syncNames makes the names in a directory durable, and remembers whether they are.
func (d *Dir) syncNames(dir string) error {
	err := syncNames(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.firm == nil {
		d.firm = map[string]bool{}
	}
	d.firm[dir] = err == nil || unsyncable(err)
	return err
}

// unsyncable tells of a directory that cannot be written, so that nothing in it waits, and of a file system that knows no sync of one.
func unsyncable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP)
}

// settle makes durable what another process, or a sync that failed, may have left in a directory and on the way to it.
func (d *Dir) settle(dir string) error {
	for top := filepath.Dir(d.root); ; dir = filepath.Dir(dir) {
		d.mu.Lock()
		firm := d.firm[dir]
		d.mu.Unlock()
		if !firm {
			if err := d.syncNames(dir); err != nil && !unsyncable(err) && !errors.Is(notExist(err), ErrNotExist) {
				return err
			}
		}
		if len(dir) <= len(top) {
			return nil
		}
	}
}
