package bridge

import "errors"

// ErrClosed means that the bridge is closed.
var ErrClosed = errors.New("bridge is closed")
