package tiering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Cache holds segments that were fetched, verified, in files below one directory. Those of a store that has files itself are read where they
// lie, and held only while somebody reads them: its disk can be taken away then, and what retention removes makes room. It belongs to one
// process.
type Cache struct {
	dir   string
	size  int64
	keys  *crypt.Keyring
	limit *limiter
	open  int // segments at most

	fetchedBytes, hits, misses, inPlace atomic.Uint64

	mu      sync.Mutex
	entries map[string]*cached
	used    int64
}

// cached is one segment. ready is closed once archive or err is set.
type cached struct {
	ready   chan struct{}
	archive *spool.Archive
	err     error
	path    string
	bytes   int64
	inPlace bool // path is the store's
	brief   bool // gone as soon as nobody uses it: in place, or damaged and perhaps mended in the store
	users   int
	last    time.Time
}

// NewCache makes the directory, and removes what another process left there.
func NewCache(dir string, size int64, keys *crypt.Keyring, bandwidth int64) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.fetched*"))
	if err != nil {
		return nil, err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return &Cache{dir: dir, size: size, keys: keys, limit: newLimiter(bandwidth), open: cacheOpen, entries: map[string]*cached{}}, nil
}

// Close closes and removes what nobody uses.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evictLocked(0)
}

// get is the archive of a segment, fetched when it is not there. release gives it back.
func (c *Cache) get(ctx context.Context, s store.Store, seg *manifest.Segment) (a *spool.Archive, release func(), err error) {
	key := seg.Stream + "/" + seg.SHA256
	for {
		c.mu.Lock()
		e := c.entries[key]
		first := e == nil
		if first {
			e = &cached{ready: make(chan struct{}), path: filepath.Join(c.dir, seg.SHA256+".fetched"), bytes: seg.Bytes}
			if path := inPlace(s, seg); path != "" {
				e.path, e.bytes, e.inPlace, e.brief = path, 0, true, true
			}
			c.entries[key] = e
		}
		e.users++
		c.mu.Unlock()
		switch {
		case !first:
			c.hits.Add(1)
		case e.inPlace:
			c.inPlace.Add(1)
		default:
			c.misses.Add(1)
		}
		if first {
			c.fill(ctx, s, seg, key, e)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			c.done(key, e)
			return nil, nil, ctx.Err()
		}
		if e.err == nil {
			return e.archive, sync.OnceFunc(func() { c.done(key, e) }), nil
		}
		c.done(key, e)
		if first || !errors.Is(e.err, context.Canceled) && !errors.Is(e.err, context.DeadlineExceeded) { // the one who fetched gave up, we have not
			return nil, nil, e.err
		}
	}
}

func (c *Cache) done(key string, e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	e.last = time.Now()
	if e.brief && e.users == 0 && c.entries[key] == e {
		_ = c.dropLocked(key, e)
	}
	_ = c.evictLocked(c.size)
}

// dropLocked closes a segment that nobody uses, and removes it when it is ours.
func (c *Cache) dropLocked(key string, e *cached) (err error) {
	delete(c.entries, key)
	if e.archive != nil {
		err = e.archive.Close()
		c.used -= e.bytes
	}
	if e.inPlace {
		return err
	}
	if rerr := os.Remove(e.path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

const cacheOpen = 128 // segments in the cache: each is an open file, with two descriptors, however small it is

// evictLocked removes what nobody uses, the longest unused first, until the rest fits.
func (c *Cache) evictLocked(fits int64) error {
	if c.used <= fits && fits > 0 && len(c.entries) <= c.open {
		return nil
	}
	type old struct {
		key string
		e   *cached
	}
	var idle []old
	for key, e := range c.entries {
		if e.users == 0 {
			idle = append(idle, old{key, e})
		}
	}
	slices.SortFunc(idle, func(a, b old) int { return a.e.last.Compare(b.e.last) })
	var errs []error
	for _, o := range idle {
		if c.used <= fits && fits > 0 && len(c.entries) <= c.open {
			break
		}
		errs = append(errs, c.dropLocked(o.key, o.e))
	}
	return errors.Join(errs...)
}

// Used is the size of what is in the cache.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// fill is for the first who wants a segment.
func (c *Cache) fill(ctx context.Context, s store.Store, seg *manifest.Segment, key string, e *cached) {
	defer close(e.ready)
	c.mu.Lock()
	_ = c.evictLocked(max(c.size-e.bytes, 1))
	c.mu.Unlock()
	if e.inPlace {
		e.archive, e.err = c.openInPlace(ctx, s, seg, e.path)
	} else {
		var whole bool
		e.archive, whole, e.err = c.fetchRoom(ctx, s, seg, e.path)
		e.brief = !whole
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.err != nil {
		delete(c.entries, key) // the next one tries again
		return
	}
	c.used += e.bytes
}

// fetchRoom is fetchOpen, once more with all removed that nobody uses when the disk is full.
func (c *Cache) fetchRoom(ctx context.Context, s store.Store, seg *manifest.Segment, path string) (a *spool.Archive, whole bool, err error) {
	full := func(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
	if a, whole, err = c.fetchOpen(ctx, s, seg, path); !full(err) {
		return a, whole, err
	}
	c.mu.Lock()
	_ = c.evictLocked(0)
	c.mu.Unlock()
	if a, whole, err = c.fetchOpen(ctx, s, seg, path); full(err) {
		err = fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	return a, whole, err
}

// fetchOpen fetches a segment and opens it. One that comes with another hash is fetched once more: the way may have been at fault. When it is
// another one then too, what is whole of it can be read: each batch has a checksum.
func (c *Cache) fetchOpen(ctx context.Context, s store.Store, seg *manifest.Segment, path string) (a *spool.Archive, whole bool, err error) {
	err = c.fetch(ctx, s, seg, path)
	if errors.Is(err, ErrDamaged) {
		err = c.fetch(ctx, s, seg, path)
	}
	if err == nil || errors.Is(err, errOtherHash) {
		a, oerr := openSame(path, c.keys, seg)
		if oerr == nil {
			return a, err == nil, nil
		}
		err = errors.Join(err, oerr)
	}
	_ = os.Remove(path)
	return nil, false, err
}

// openSame opens the file of a segment, and wants it to be that one.
func openSame(path string, keys *crypt.Keyring, seg *manifest.Segment) (*spool.Archive, error) {
	a, err := spool.OpenArchive(path, keys)
	if err != nil {
		return nil, err
	}
	if is := manifest.EntryOf(a.Sealed); is.Stream != seg.Stream || is.Sequence != seg.Sequence || !is.Same(seg) {
		return nil, errors.Join(fmt.Errorf("segment %d of %s: %w: its file is that of another one", seg.Sequence, seg.Stream, ErrDamaged), a.Close())
	}
	return a, nil
}

func (c *Cache) fetch(ctx context.Context, s store.Store, seg *manifest.Segment, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	got, err := Fetch(ctx, s, seg, f, c.limit)
	c.fetchedBytes.Add(uint64(got))
	return errors.Join(err, f.Close())
}
