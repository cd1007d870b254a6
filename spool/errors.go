package spool

import (
	"errors"
	"fmt"
)

var (
	// ErrFull means that there is no room and the stream's policy is reject. Trying again later may succeed.
	ErrFull = errors.New("spool is full")

	// ErrClosed means that the spool, reader or cursor is closed.
	ErrClosed = errors.New("closed")

	// ErrFailed means that the journal can be trusted no more: nothing is accepted until the spool is opened again.
	ErrFailed = errors.New("spool has failed")

	// ErrTooLarge means that a record or a change does not fit the journal's or the queue's limits; it never will.
	ErrTooLarge = errors.New("too large for the spool")

	// ErrUnknownStream means that no stream, or no partition of it, has that name or number.
	ErrUnknownStream = errors.New("unknown stream or partition")

	// ErrUnsupported means that the directory was written by a newer version. It is not damage: nothing was touched.
	ErrUnsupported = errors.New("written in a newer format than this version reads")

	// ErrInUse means that another process holds the directory.
	ErrInUse = errors.New("in use by another process")

	// ErrRepairing means that a damaged segment cannot be replaced now, for want of room on the disk. Nothing of it is given up:
	// reading goes on by itself when there is room.
	ErrRepairing = errors.New("damaged segment waits for room to be replaced")

	// ErrInvalid means that a record breaks the contract of Append, such as an empty topic.
	ErrInvalid = errors.New("invalid")
)

// CorruptionError is damage in a record body. The file that holds it is set aside, and readers see a Gap.
type CorruptionError struct {
	Where  string // what was decoded
	At     int    // byte position in it
	Detail string
}

func (e *CorruptionError) Error() string {
	return fmt.Sprintf("damaged %s at byte %d: %s", e.Where, e.At, e.Detail)
}
