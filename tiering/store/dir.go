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
	"time"
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

const leftoverAge = time.Hour // a file that is being written is younger

// sweep removes what crashes have left in a directory and in those beside it, into which perhaps nobody will put anything any more, once.
// Those that are empty and nobody has touched for long go. now is by the clock of the file system.
func (d *Dir) sweep(dir string, now time.Time) {
	d.mu.Lock()
	again := d.swept[dir]
	if d.swept == nil {
		d.swept = map[string]bool{}
	}
	d.swept[dir] = true
	d.mu.Unlock()
	if again {
		return
	}
	sweepOne(dir, now)
	if dir == d.root || filepath.Dir(dir) == d.root { // what is beside those may be somebody else's
		return
	}
	beside, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return
	}
	for _, e := range beside {
		other := filepath.Join(filepath.Dir(dir), e.Name())
		if !e.IsDir() || other == dir {
			continue
		}
		fi, err := e.Info()
		if sweepOne(other, now); err == nil && now.Sub(fi.ModTime()) > leftoverAge {
			_ = os.Remove(other) // which does nothing to one that has something in it
		}
	}
}

func sweepOne(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), tempSuffix) {
			continue
		}
		if fi, err := e.Info(); err == nil && now.Sub(fi.ModTime()) > leftoverAge {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// makeDirs makes a directory and syncs those above it that got a new entry.
func makeDirs(dir string) error {
	if fi, err := os.Stat(dir); err == nil {
		if !fi.IsDir() {
			return fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if err := makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

var syncNames = syncDir // tests look at it

// syncNames makes the names in a directory durable, and remembers whether they are.
func (d *Dir) syncNames(dir string) error {
	err := syncNames(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.firm == nil {
		d.firm = map[string]bool{}
	}
	d.firm[dir] = err == nil || unsyncable(err)
	return err
}

// unsyncable tells of a directory that cannot be written, so that nothing in it waits, and of a file system that knows no sync of one.
func unsyncable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP)
}

// settle makes durable what another process, or a sync that failed, may have left in a directory and on the way to it.
func (d *Dir) settle(dir string) error {
	for top := filepath.Dir(d.root); ; dir = filepath.Dir(dir) {
		d.mu.Lock()
		firm := d.firm[dir]
		d.mu.Unlock()
		if !firm {
			if err := d.syncNames(dir); err != nil && !unsyncable(err) && !errors.Is(notExist(err), ErrNotExist) {
				return err
			}
		}
		if len(dir) <= len(top) {
			return nil
		}
	}
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
