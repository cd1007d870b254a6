package vfs

import (
	"errors"
	"io"
	"io/fs"
)

// ErrLocked is returned by [FS.Lock] when somebody else holds the lock.
var ErrLocked = errors.New("held by another process")

// FS is a file system. Its methods may be called at the same time by many goroutines. Errors are *fs.PathError or
// *os.LinkError around the errno, so that errors.Is(err, unix.ENOSPC) and errors.Is(err, fs.ErrNotExist) answer truly.
type FS interface {
	// OpenFile opens name with the flags of package os (os.O_RDWR, os.O_CREATE, ...).
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)

	// Create makes the new file name for reading and writing, mode 0640. The file must not exist: nothing that holds
	// records is ever truncated by accident. Its name is durable after SyncDir.
	Create(name string) (File, error)

	// Rename moves oldname to newname and replaces what was there in one step. Durable after SyncDir.
	Rename(oldname, newname string) error

	// Remove removes a file or an empty directory. Durable after SyncDir.
	Remove(name string) error

	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)

	// Stat describes a file.
	Stat(name string) (fs.FileInfo, error)

	// MkdirAll makes a directory and the missing ones above it, and makes their names durable.
	MkdirAll(name string, perm fs.FileMode) error

	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error

	// Lock takes the exclusive lock file name, which is made when it is missing and never removed. It does not wait:
	// when the lock is held, by this process or another, the error wraps ErrLocked. Closing gives the lock back; so
	// does the end of the process, however it ends.
	Lock(name string) (io.Closer, error)

	// DiskFree is the number of bytes that an unprivileged process may still write to the file system that holds path.
	DiskFree(path string) (int64, error)
}

// File is an open file. ReadAt, WriteAt and the syncs may be called at the same time by many goroutines.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer

	// Name is the name that the file was opened by.
	Name() string

	// Datasync makes the written bytes and the file's size durable, but not its times (fdatasync). See the package
	// comment for what an error means.
	Datasync() error

	// Sync makes everything about the file durable (fsync).
	Sync() error

	// Truncate changes the file's size.
	Truncate(size int64) error

	// Size is the file's size now.
	Size() (int64, error)

	// Fd is the file descriptor, for advice to the kernel; ^uintptr(0) when there is none.
	Fd() uintptr
}
