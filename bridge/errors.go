package bridge

import "errors"

// ErrClosed means that the bridge is closed.
var ErrClosed = errors.New("bridge is closed")

// ErrUnknownUpstream means that the configuration has no upstream of that name.
var ErrUnknownUpstream = errors.New("no such upstream")
