package auth

import (
	"errors"
	"fmt"
)

// What a refusal may be. None says which part was wrong.
var (
	// ErrBadCredentials refuses credentials that no method accepted.
	ErrBadCredentials = errors.New("bad user name or password")

	// ErrNotAuthorized refuses a client that offered no credentials, or that the ACL does not let in.
	ErrNotAuthorized = errors.New("not authorized")

	// ErrBanned refuses a client of the ban list.
	ErrBanned = errors.New("banned")

	// ErrBusy refuses for now: too many others are being checked, or too many failures came from there.
	ErrBusy = errors.New("too many authentications")

	// ErrUnavailable refuses for now: what would have to be asked does not answer.
	ErrUnavailable = errors.New("authentication is not available")

	// ErrBadMethod refuses an enhanced authentication by a method that is not configured.
	ErrBadMethod = errors.New("authentication method is not supported")

	// ErrProtocol refuses an exchange whose messages are not those of its method.
	ErrProtocol = errors.New("bad authentication data")
)

// errNext is a method's answer when it does not accept.
var errNext = errors.New("not accepted here")

// FileError is a fault of a file, at a line; line 0 is the whole file.
type FileError struct {
	File    string
	Line    int
	Problem string
}

// Error implements error.
func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Problem)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem)
}
