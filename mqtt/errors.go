package mqtt

import (
	"errors"

	"github.com/forebay-gateway/forebay/mqtt/auth"
)

// What an Access may answer, and what the engine itself means by refusing.
var (
	// ErrNotAuthorized refuses an action: reason code 0x87.
	ErrNotAuthorized = auth.ErrNotAuthorized

	// ErrBadUserNameOrPassword refuses a CONNECT: reason code 0x86.
	ErrBadUserNameOrPassword = auth.ErrBadCredentials

	// ErrBanned refuses a CONNECT: reason code 0x8A.
	ErrBanned = auth.ErrBanned

	// ErrServerBusy refuses a CONNECT that may be tried again: reason code 0x89.
	ErrServerBusy = auth.ErrBusy

	// ErrQuotaExceeded refuses an action for a limit: reason code 0x97.
	ErrQuotaExceeded = errors.New("quota exceeded")
)

// ErrClosed means that the server was closed before it ran.
var ErrClosed = errors.New("mqtt: server is closed")

var (
	errBehind = errors.New("session is too far behind")

	errTooManyConnections = errors.New("too many connections")
	errTooManyFromAddress = errors.New("too many connections from this address")
	errTooManyPending     = errors.New("too many connections from this address that are not let in yet")
	errTooFastFromAddress = errors.New("too many new connections from this address")
	errMessageRate        = errors.New("message rate too high")
	errByteRate           = errors.New("byte rate too high")
	errRetainedCount      = errors.New("too many retained messages")
	errRetainedSize       = errors.New("too much retained")
	errUserProperties     = errors.New("too many user properties")

	errTakenOver    = errors.New("session taken over")
	errShuttingDown = errors.New("server shutting down")
	errWriteTimeout = errors.New("write timeout")

	errBannedNow          = errors.New("banned while connected")
	errCredentialsExpired = errors.New("credentials have expired")
	errOverflow           = errors.New("too many answers that the client does not read")
)
