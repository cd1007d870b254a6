package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Dir is a directory as a store: each object a file. A file has its name only once its bytes are synced, and its name is synced
// before Put returns. What was written by a process that was killed, or whose sync failed, may have a name that is not: a directory
// is synced before anything in it is told of, once, so that what is there once stays there. What a crash leaves of an unfinished
// one ends in tempSuffix and is not listed; the first Put into its directory, or one beside it, an hour later removes it. A root
// that was there and is gone, or is another one and empty, is a disk that is not mounted: ErrVanished.
type Dir struct {
	root string

	mu    sync.Mutex
	seen  fs.FileInfo     // of the root
	swept map[string]bool // directories in which leftovers were looked for
	firm  map[string]bool // directories whose names were all synced since we have them
}

var (
	_ Store = (*Dir)(nil)
	_ Files = (*Dir)(nil)
)

const tempSuffix = ".part~"

// OpenDir makes the directory when it is missing.
func OpenDir(root string) (*Dir, error) {
	if !filepath.IsAbs(root) {
		return nil, fmt.Errorf("directory %q is not absolute", root)
	}
	root = filepath.Clean(root)
	if err := makeDirs(root); err != nil {
		return nil, err
	}
	return &Dir{root: root}, nil
}

// there remembers the root, and tells when it is not what it was.
func (d *Dir) there() error {
	fi, err := os.Stat(d.root)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil && d.seen != nil && !os.SameFile(d.seen, fi):
		if entries, err := os.ReadDir(d.root); err == nil && len(entries) == 0 {
			return ErrVanished
		}
		d.seen, d.firm = fi, nil
	case err == nil:
		d.seen = fi
	case errors.Is(err, fs.ErrNotExist) && d.seen != nil:
		return fmt.Errorf("%w: %w", ErrVanished, err)
	}
	return nil
}

func (d *Dir) path(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	return filepath.Join(d.root, filepath.FromSlash(key)), nil
}

// File implements Files.
func (d *Dir) File(key string) string {
	path, _ := d.path(key)
	return path
}

// Get implements Store.
func (d *Dir) Get(ctx context.Context, key string, offset, n int64) (io.ReadCloser, error) {
	path, err := d.path(key)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if err := d.there(); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	if err := d.settle(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, notExist(err))
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("get %s: %w", key, err), f.Close())
	}
	var r io.Reader = f
	if n >= 0 {
		r = io.LimitReader(f, n)
	}
	return &fileReader{contextReader{ctx, r}, f}, nil
}

type fileReader struct {
	contextReader
	f *os.File
}

func (r *fileReader) Close() error { return r.f.Close() }

// Stat implements Store.
func (d *Dir) Stat(_ context.Context, key string) (Object, error) {
	path, err := d.path(key)
	if err != nil {
		return Object{}, fmt.Errorf("stat: %w", err)
	}
	if err := d.there(); err != nil {
		return Object{}, fmt.Errorf("stat %s: %w", key, err)
	}
	if err := d.settle(filepath.Dir(path)); err != nil {
		return Object{}, fmt.Errorf("stat %s: %w", key, err)
	}
	fi, err := os.Stat(path)
	if err == nil && !fi.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Object{}, fmt.Errorf("stat %s: %w", key, notExist(err))
	}
	return Object{Key: key, Size: fi.Size(), Time: fi.ModTime()}, nil
}

func notExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%w: %w", ErrNotExist, err)
	}
	return err
}

// List implements Store. Only the directories that can have the prefix are read.
func (d *Dir) List(ctx context.Context, prefix string, fn func(Object) error) error {
	if err := d.there(); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	under, _ := filepath.Split(filepath.FromSlash(prefix))
	if err := d.list(ctx, filepath.ToSlash(filepath.Clean("/" + under))[1:], prefix, fn); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

func (d *Dir) list(ctx context.Context, dir, prefix string, fn func(Object) error) error {
	path := filepath.Join(d.root, filepath.FromSlash(dir))
	if err := d.settle(path); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sortAsKeys(entries)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		key := strings.TrimPrefix(dir+"/"+e.Name(), "/")
		switch {
		case e.IsDir():
			if strings.HasPrefix(key+"/", prefix) || strings.HasPrefix(prefix, key+"/") {
				if err := d.list(ctx, key, prefix, fn); err != nil {
					return err
				}
			}
		case e.Type().IsRegular() && strings.HasPrefix(key, prefix) && !strings.HasSuffix(key, tempSuffix):
			fi, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := fn(Object{Key: key, Size: fi.Size(), Time: fi.ModTime()}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Delete implements Store. Directories stay.
func (d *Dir) Delete(_ context.Context, key string) error {
	path, err := d.path(key)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := d.there(); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	err = os.Remove(path)
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err = notExist(err); err != nil && !errors.Is(err, ErrNotExist) {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

func (d *Dir) String() string { return "file://" + d.root }

// Close implements Store.
func (d *Dir) Close() error { return nil }

// sortAsKeys sorts a directory so that whole keys come in order: a directory counts with the slash behind it.
func sortAsKeys(entries []fs.DirEntry) {
	key := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(key(a), key(b)) })
}
