package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// startWriting has the kernel begin to write a piece of a file; awaitWriting waits until it is written. Neither makes it durable. An error
// that they tell is told once: the sync at the end would not tell it again.
func startWriting(f *os.File, off, n int64) error {
	return writing(f, off, n, unix.SYNC_FILE_RANGE_WRITE)
}

func awaitWriting(f *os.File, off, n int64) error {
	return writing(f, off, n, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
}

func writing(f *os.File, off, n int64, flags int) error {
	for {
		err := unix.SyncFileRange(int(f.Fd()), off, n, flags)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ESPIPE), errors.Is(err, unix.EPERM):
			return nil // not on this file system: the sync at the end does it all
		default:
			return err
		}
	}
}
