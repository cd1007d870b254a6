package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	// ErrUnsupported means that an intact file was written by a newer gateway or needs a codec, cipher or key that this
	// one does not know. The file must be left alone.
	ErrUnsupported = errors.New("unsupported")

	// ErrFull means that the segment has reached its MaxSize. Nothing of the Write is in the file: seal it, write to the next.
	ErrFull = errors.New("segment full")

	// ErrSealed is returned by Write on a sealed segment and on one opened read-only.
	ErrSealed = errors.New("segment is sealed")

	// ErrNotSealed is returned by what needs a sealed segment: Lookup and Rewrite.
	ErrNotSealed = errors.New("segment is not sealed")

	// ErrNoIndex means that the sealed segment has no index of this kind; read all of it instead.
	ErrNoIndex = errors.New("no index")

	// ErrLocked means that another handle, mostly another process, holds the file open read-write.
	ErrLocked = errors.New("in use")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("segment closed")

	// ErrFailed is returned by every Write after a write whose durability is unknown, such as a failed sync of a
	// meta page. Close the segment, open it again and look at Applied.
	ErrFailed = errors.New("segment failed")

	// ErrTooLarge is returned by Write for a body over MaxBody.
	ErrTooLarge = errors.New("body too large")
)

// CorruptionError says that stored bytes are not what was written.
type CorruptionError struct {
	Path      string
	Partition int    // -1 when the damage is not inside one batch
	Base      uint64 // base offset of the damaged batch when Partition is not -1
	Index     bool   // set by Verify: only the index of topics and clients is damaged, the records are there
	Reason    string
}

func (e *CorruptionError) Error() string {
	if e.Partition < 0 {
		return fmt.Sprintf("%s: corrupt: %s", e.Path, e.Reason)
	}
	return fmt.Sprintf("%s: partition %d batch %d: corrupt: %s", e.Path, e.Partition, e.Base, e.Reason)
}

// OffsetError refuses a batch that would store offsets again: Base is below the partition's next offset.
type OffsetError struct {
	Partition  uint16
	Base, Next uint64 // of the refused batch; of the partition
}

func (e *OffsetError) Error() string {
	return fmt.Sprintf("partition %d: batch at %d, next offset is %d", e.Partition, e.Base, e.Next)
}

// AppliedError refuses a Write that would move the applied position back.
type AppliedError struct{ Got, Have uint64 }

func (e *AppliedError) Error() string {
	return fmt.Sprintf("applied position %d, already at %d", e.Got, e.Have)
}

// openError gives what bbolt says about a file the meaning of this package.
func openError(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%s: %w", path, ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, bolterrors.ErrInvalidMapping):
		return &CorruptionError{Path: path, Partition: -1, Reason: err.Error()}
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return err // names the path already
	}
	return fmt.Errorf("%s: %w", path, err)
}

// noSpace tells whether err means a full disk. bbolt loses the error's identity in two places, hence the text.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error())
}
