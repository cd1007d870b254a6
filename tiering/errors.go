package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

var (
	// ErrConflict means that the store has another segment of the same number: a log with another history was stored there.
	ErrConflict = errors.New("the store has another segment of this number")

	// ErrDamaged means that what the store gives is not what was stored.
	ErrDamaged = errors.New("damaged in the store")

	// ErrEmptied means that nothing of what was stored is in the store: its disk is not mounted, or somebody has removed all.
	ErrEmptied = errors.New("the store is empty, although segments were stored in it")

	// ErrClosed means that the tier is closed.
	ErrClosed = errors.New("closed")

	// ErrNotTiered means that a stream is not stored.
	ErrNotTiered = errors.New("stream is not stored: it is not below tiering.streams")

	// ErrNoRoom means that the cache's disk is full.
	ErrNoRoom = errors.New("no room for the cache")
)

// reason is what kind of error it is, as a label; hint what to do.
func reason(err error) (label, hint string) {
	switch {
	case err == nil:
		return "", ""
	case errors.Is(err, store.ErrDenied):
		return "denied", "look at the credentials of the store: they are missing, expired or have too few rights"
	case errors.Is(err, store.ErrNoBucket):
		return "no_bucket", "make the bucket or container, or correct tiering.url"
	case errors.Is(err, manifest.ErrOwned):
		return "owned", "set another prefix in tiering.url; if the other gateway is gone for good: forebay tier adopt --yes"
	case errors.Is(err, ErrEmptied), errors.Is(err, store.ErrVanished):
		return "vanished", "mount the store's disk, or correct tiering.url; if it was emptied on purpose: forebay tier adopt --yes"
	case errors.Is(err, ErrConflict):
		return "conflict", "the log was restored or begun anew: set another prefix in tiering.url"
	case errors.Is(err, manifest.ErrUnsupported), errors.Is(err, spool.ErrUnsupported):
		return "unsupported", "a newer version has written it: run that version"
	case errors.Is(err, ErrDamaged), errors.Is(err, manifest.ErrDamaged):
		return "damaged", "what the store gave back is not what it was given: look at the store"
	case errors.Is(err, spool.ErrChanged), errors.Is(err, spool.ErrUnknownSegment):
		return "changed", "" // it was removed or rewritten meanwhile; the next round looks again
	case errors.Is(err, ErrNoRoom):
		return "no_room", "free space on the disk of tiering.cache_dir, or lower cache_size"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "full", "free space in the store, or lower tiering.streams[].retention and max_size"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "denied", "the gateway's user may not write into the store's directory"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", "the store is slow or cannot be reached; uploads go on by themselves"
	}
	return "unreachable", "the store cannot be reached; uploads go on by themselves"
}

// problem is an error with its hint, for health.
func problem(what string, err error) error {
	if _, hint := reason(err); hint != "" {
		return fmt.Errorf("%s: %w: %s", what, err, hint)
	}
	return fmt.Errorf("%s: %w", what, err)
}
