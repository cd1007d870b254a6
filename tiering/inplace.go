package tiering

import (
	"context"
	"errors"
	"io"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// inPlace is the file of a segment that can be read where the store has it; "" when it has to be fetched.
func inPlace(s store.Store, seg *manifest.Segment) string {
	f, ok := s.(store.Files)
	if !ok || seg.Parts() != 1 {
		return ""
	}
	return f.File(manifest.PartKey(seg.Stream, seg.Sequence, 0))
}

// openInPlace opens a segment where it lies. It is read as those of the spool are: each batch is held against its checksum, and its neighbours.
func (c *Cache) openInPlace(ctx context.Context, s store.Store, seg *manifest.Segment, path string) (*spool.Archive, error) {
	// The store is asked first: that its disk is not mounted is for it to say.
	if err := present(ctx, s, seg); err != nil {
		return nil, err
	}
	a, err := openSame(path, c.keys, seg)
	if spool.IsDamage(err) || errors.Is(err, ErrDamaged) {
		if uerr := unreadable(ctx, s, seg); uerr != nil {
			return nil, uerr
		}
	}
	return a, err
}

// unreadable is for damage that was met in a segment that is read in place: its error says that the store cannot be read, so that nobody knows
// whether anything is damaged. A memory map does not tell the two apart; reading all of it does.
func unreadable(ctx context.Context, s store.Store, seg *manifest.Segment) error {
	if inPlace(s, seg) == "" {
		return nil // what was fetched is a copy on our own disk
	}
	_, err := fetchPart(ctx, s, manifest.PartKey(seg.Stream, seg.Sequence, 0), 0, seg.Bytes, io.Discard, nil)
	if err = missing(ctx, s, err); errors.Is(err, errShort) || errors.Is(err, store.ErrNotExist) {
		return nil
	}
	return err
}

// damage is what is known of one segment since it was opened.
type damage struct{ met bool }

// meets is for each damaged batch. first is the first one; the error is that of unreadable, which is asked until it has none: all of the segment
// is read for it.
func (d *damage) meets(ctx context.Context, s store.Store, seg *manifest.Segment) (first bool, err error) {
	if d.met {
		return false, nil
	}
	if err := unreadable(ctx, s, seg); err != nil {
		return false, err
	}
	d.met = true
	return true, nil
}
