package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Put implements Store.
func (d *Dir) Put(ctx context.Context, key string, r io.Reader, size int64, o PutOptions) error {
	path, err := d.path(key)
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if err := d.there(); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	if o.IfAbsent {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("put %s: %w", key, ErrExist)
		}
	}
	if err := makeDirs(filepath.Dir(path)); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	if fi, err := tmp.Stat(); err == nil {
		d.sweep(filepath.Dir(path), fi.ModTime())
	}
	err = fill(ctx, tmp, r, size)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = d.name(tmp.Name(), path, o)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

// Pieces of a file go to the disk as they come, and no more than a window of them is on its way: a sync of all at the end, or of
// somebody else's file on the same disk meanwhile, has that much to wait for and not the whole file. A reader that wants less
// of that gives less at once.
const (
	fillPiece  = 256 << 10
	fillLeast  = 16 << 10
	fillWindow = 1 << 20
)

// fill writes the bytes and syncs them.
func fill(ctx context.Context, f *os.File, r io.Reader, size int64) error {
	src := newExactReader(ctx, r, size)
	buf := make([]byte, min(size+1, fillPiece))
	for off, done := int64(0), int64(0); ; {
		n, err := io.ReadAtLeast(src, buf, min(len(buf), fillLeast))
		if n > 0 {
			if _, err := f.Write(buf[:n]); err != nil {
				return err
			}
			if err := startWriting(f, off, int64(n)); err != nil {
				return err
			}
			off += int64(n)
			if end := off - fillWindow; end > done {
				if err := awaitWriting(f, done, end-done); err != nil {
					return err
				}
				done = end
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && src.err == nil:
			return errors.Join(f.Chmod(0o640), f.Sync())
		case err != nil:
			return err
		}
	}
}

// name gives a finished file its name, and syncs that. A link, unlike a rename, does not replace what another writer was faster with.
func (d *Dir) name(tmp, path string, o PutOptions) error {
	if !o.IfAbsent {
		if err := os.Rename(tmp, path); err != nil || o.NameLater {
			return err
		}
		return d.syncNames(filepath.Dir(path))
	}
	if err := os.Link(tmp, path); errors.Is(err, fs.ErrExist) {
		return ErrExist
	} else if err != nil {
		return err
	}
	return errors.Join(os.Remove(tmp), d.syncNames(filepath.Dir(path)))
}
