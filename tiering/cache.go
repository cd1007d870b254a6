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

// Cache holds segments that were fetched, verified, in files below one directory. It belongs to one process.
type Cache struct {
	dir   string
	size  int64
	keys  *crypt.Keyring
	limit *limiter
	open  int // segments at most

	fetchedBytes, hits, misses atomic.Uint64

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
			c.entries[key] = e
		}
		e.users++
		c.mu.Unlock()
		if first {
			c.misses.Add(1)
			c.fetchInto(ctx, s, seg, key, e)
		} else {
			c.hits.Add(1)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			c.done(e)
			return nil, nil, ctx.Err()
		}
		if e.err == nil {
			return e.archive, sync.OnceFunc(func() { c.done(e) }), nil
		}
		c.done(e)
		if first || !errors.Is(e.err, context.Canceled) && !errors.Is(e.err, context.DeadlineExceeded) { // the one who fetched gave up, we have not
			return nil, nil, e.err
		}
	}
}

func (c *Cache) done(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	e.last = time.Now()
	_ = c.evictLocked(c.size)
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
		delete(c.entries, o.key)
		if o.e.archive != nil {
			errs = append(errs, o.e.archive.Close())
			c.used -= o.e.bytes
		}
		if err := os.Remove(o.e.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Used is the size of what is in the cache.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

func (c *Cache) fetchInto(ctx context.Context, s store.Store, seg *manifest.Segment, key string, e *cached) {
	defer close(e.ready)
	c.mu.Lock()
	_ = c.evictLocked(max(c.size-seg.Bytes, 1))
	c.mu.Unlock()
	e.archive, e.err = c.fetchOpen(ctx, s, seg, e.path)
	if errors.Is(e.err, syscall.ENOSPC) || errors.Is(e.err, syscall.EDQUOT) {
		c.mu.Lock()
		_ = c.evictLocked(0) // all that nobody uses
		c.mu.Unlock()
		if e.archive, e.err = c.fetchOpen(ctx, s, seg, e.path); errors.Is(e.err, syscall.ENOSPC) || errors.Is(e.err, syscall.EDQUOT) {
			e.err = fmt.Errorf("%w: %w", ErrNoRoom, e.err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.err != nil {
		delete(c.entries, key) // the next one tries again
		return
	}
	c.used += e.bytes
}

// fetchOpen fetches a segment and opens it. One that comes with another hash is fetched once more: the way may have been at fault.
func (c *Cache) fetchOpen(ctx context.Context, s store.Store, seg *manifest.Segment, path string) (*spool.Archive, error) {
	err := c.fetch(ctx, s, seg, path)
	if errors.Is(err, ErrDamaged) {
		err = c.fetch(ctx, s, seg, path)
	}
	if err == nil {
		var a *spool.Archive
		if a, err = spool.OpenArchive(path, c.keys); err == nil {
			return a, nil
		}
	}
	_ = os.Remove(path)
	return nil, err
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
