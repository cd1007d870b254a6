package tiering

import (
	"context"

	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// ahead is a segment that is fetched into the cache before its reader comes to it, while the one before is read. A nil ahead is none.
type ahead struct {
	cancel  context.CancelFunc
	done    chan struct{}
	release func() // nil when it could not be fetched; the reader's matter
}

// ahead begins to fetch a segment that is read after cur. It ends with ctx, when closed is closed, and by close; nil when it is read where it
// lies, or the cache has no room for both.
func (c *Cache) ahead(ctx context.Context, closed <-chan struct{}, s store.Store, cur, next *manifest.Segment) *ahead {
	if inPlace(s, next) != "" || cur.Bytes+next.Bytes > c.size {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{cancel: cancel, done: make(chan struct{})}
	got := make(chan struct{})
	go func() {
		select {
		case <-closed:
			cancel()
		case <-got:
		}
		<-got
		close(a.done)
	}()
	go func() {
		defer close(got)
		if _, release, err := c.get(ctx, s, next); err == nil {
			a.release = release
		}
	}()
	return a
}

// await waits until the segment is there, or cannot be had.
func (a *ahead) await(ctx context.Context) {
	if a == nil {
		return
	}
	select {
	case <-a.done:
	case <-ctx.Done():
	}
}

// close ends it, and lets go of what it has fetched.
func (a *ahead) close() {
	if a == nil {
		return
	}
	a.cancel()
	<-a.done
	if a.release != nil {
		a.release()
	}
}
