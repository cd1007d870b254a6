package journal

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrFull is returned by Append when the next file is not released yet or cannot be made. Nothing was written and
	// nothing is lost: the caller appends again after Release, or after a while when the error also wraps ENOSPC.
	ErrFull = errors.New("no free journal file")

	// ErrFailed is returned by Append for ever after a group could not be made durable in two files. The error that
	// wraps it names the files and the reasons.
	ErrFailed = errors.New("journal has failed, no more is accepted")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("journal is closed")

	// ErrUnsupported is returned by Open and Scan for files of a newer format version. They are not touched.
	ErrUnsupported = errors.New("unsupported journal format version")

	// ErrTooLarge is returned by Append for a payload that fits into no file; see MaxPayload.
	ErrTooLarge = errors.New("payload is larger than a journal file")
)

// LossError is returned by Replay, after all that could be proved was replayed, when frames are missing that were
// durable once. The journal is usable; the caller decides and tells.
type LossError struct {
	Lost []Range // ascending, above the LSN that Replay started after
}

func (e *LossError) Error() string {
	var b strings.Builder
	b.WriteString("journal: lost")
	for i, r := range e.Lost {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(" " + r.String())
	}
	return b.String()
}

// Range is the LSNs From..To, both included.
type Range struct{ From, To LSN }

// String returns "17..42".
func (r Range) String() string { return fmt.Sprintf("%d..%d", r.From, r.To) }
