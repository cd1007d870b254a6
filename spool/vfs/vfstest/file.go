package vfstest

import (
	"io"
	"io/fs"
	"slices"
	"syscall"
)

// diskFile is an open file of a Disk.
type diskFile struct {
	d        *Disk
	ino      *inode
	name     string
	readOnly bool
	closed   bool
}

func (f *diskFile) fault(op string, write bool) error {
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	if write && f.readOnly {
		return &fs.PathError{Op: op, Path: f.name, Err: syscall.EBADF}
	}
	return nil
}

func (f *diskFile) Name() string { return f.name }
func (f *diskFile) Fd() uintptr  { return ^uintptr(0) }

func (f *diskFile) ReadAt(b []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.fault("read", false); err != nil {
		return 0, err
	}
	if off >= int64(len(f.ino.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.ino.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *diskFile) WriteAt(b []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.fault("write", true); err != nil {
		return 0, err
	}
	var err error
	if grow := off + int64(len(b)) - int64(len(f.ino.data)); f.d.limit > 0 && grow > 0 {
		if room := max(0, f.d.limit-f.d.used()); grow > room {
			b = b[:max(0, int64(len(b))-(grow-room))]
			err = &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
		}
	}
	if len(b) > 0 {
		f.ino.write(b, off)
		f.d.record(op{kind: Write, name: f.d.nameOf(f), ino: f.ino, off: off, data: slices.Clone(b)})
	}
	return len(b), err
}

func (i *inode) write(b []byte, off int64) {
	i.truncate(max(int64(len(i.data)), off+int64(len(b))))
	copy(i.data[off:], b)
}

func (i *inode) truncate(size int64) {
	if n := int64(len(i.data)); size > n {
		i.data = append(i.data, make([]byte, size-n)...)
	}
	i.data = i.data[:size:size]
}

func (f *diskFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.fault("truncate", true); err != nil {
		return err
	}
	f.ino.truncate(size)
	f.d.record(op{kind: Truncate, name: f.d.nameOf(f), ino: f.ino, size: size})
	return nil
}

func (f *diskFile) Datasync() error { return f.sync(Datasync, false) }
func (f *diskFile) Sync() error     { return f.sync(Sync, false) }

// failSync notes a sync that failed: nobody knows what reached the disk, and no later sync will bring it there.
func (f *diskFile) failSync(k Kind) { _ = f.sync(k, true) }

func (f *diskFile) sync(k Kind, bad bool) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.fault("sync", false); err != nil {
		return err
	}
	f.d.record(op{kind: k, name: f.d.nameOf(f), ino: f.ino, bad: bad})
	return nil
}

func (f *diskFile) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.ino.data)), nil
}

func (f *diskFile) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.fault("close", false); err != nil {
		return err
	}
	f.closed = true
	return nil
}
