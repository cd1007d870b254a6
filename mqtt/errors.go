package mqtt

import "errors"

// What an Access may answer, and what the engine itself means by refusing.
var (
	// ErrNotAuthorized refuses an action: reason code 0x87.
	ErrNotAuthorized = errors.New("not authorized")

	// ErrBadUserNameOrPassword refuses a CONNECT: reason code 0x86.
	ErrBadUserNameOrPassword = errors.New("bad user name or password")

	// ErrBanned refuses a CONNECT: reason code 0x8A.
	ErrBanned = errors.New("banned")

	// ErrServerBusy refuses a CONNECT that may be tried again: reason code 0x89.
	ErrServerBusy = errors.New("server busy")

	// ErrQuotaExceeded refuses an action for a limit: reason code 0x97.
	ErrQuotaExceeded = errors.New("quota exceeded")
)

var (
	errTakenOver    = errors.New("session taken over")
	errShuttingDown = errors.New("server shutting down")
	errWriteTimeout = errors.New("write timeout")
	errOverflow     = errors.New("too many answers that the client does not read")
)
