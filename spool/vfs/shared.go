//go:build linux || darwin

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// LockShared takes the lock file name for somebody who only reads: many may have it at the same time, nobody who called
// [FS.Lock]. The file is not made and not written: a missing one is fs.ErrNotExist. It does not wait; when the lock is
// held the error wraps ErrLocked and names the holder.
func LockShared(name string) (io.Closer, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = heldBy(f)
	}
	f.Close()
	return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
}
