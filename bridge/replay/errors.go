package replay

import (
	"errors"
	"fmt"

	"github.com/forebay-gateway/forebay/spool"
)

var (
	// ErrUnknown means that there is no replay of that ID, or not any more.
	ErrUnknown = errors.New("no such replay")

	// ErrBusy means that as many replays run as may.
	ErrBusy = errors.New("as many replays run as replay.max_jobs allows")

	// ErrState means that a replay is not in a state for what is asked.
	ErrState = errors.New("not in this state")

	// ErrClosed means that the gateway is stopping.
	ErrClosed = errors.New("replay is closed")
)

// stateError is an ErrState that says which one.
type stateError struct{ id, what string }

func (e *stateError) Error() string        { return fmt.Sprintf("replay %s is %s", e.id, e.what) }
func (e *stateError) Is(target error) bool { return target == ErrState }

// invalid is the error of a request that cannot be meant.
func invalid(format string, args ...any) error {
	return fmt.Errorf("replay: %w: %w", fmt.Errorf(format, args...), spool.ErrInvalid)
}
