package tiering

import (
	"context"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// yield has uploads give way to those who wait for an acknowledgement: the disk that a piece is read from, or written to, is the one
// that the journal syncs. While records come, a piece is small, for a sync that meets one waits for it, and is followed by a rest of so
// many times what it has taken, so that a sync seldom meets one; on a slow disk the rest is longer by itself. Without records nothing waits.
type yield struct {
	groups func() uint64 // of records that were made durable
	rest   atomic.Int64  // times what a piece has taken; 0 is no rest

	mu     sync.Mutex
	seen   uint64    // groups
	looked time.Time // when
	came   time.Time // when there were more of them than shortly before
}

// backlog sets the rest by what waits: uploads that fall behind, or a disk that fills, are worse than a slow acknowledgement.
func (y *yield) backlog(segments int, full float64) {
	rest := yieldRest
	switch {
	case segments > 8 || full > 50:
		rest = 0
	case segments > 4:
		rest /= 5
	}
	y.rest.Store(int64(rest))
}

const (
	yieldRest  = 60                     // times what a piece takes
	yieldPiece = 16 << 10               // bytes at once while records come
	yieldFor   = 100 * time.Millisecond // records have come within this time: they go on coming
	yieldMax   = 50 * time.Millisecond
)

// busy tells whether records come.
func (y *yield) busy(now time.Time) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	g := y.groups()
	if g != y.seen && now.Sub(y.looked) < yieldFor {
		y.came = now
	}
	y.seen, y.looked = g, now
	return now.Sub(y.came) < yieldFor
}

// pause rests after a piece that took d, and tells whether it had to.
func (y *yield) pause(ctx context.Context, d time.Duration) (rested bool, err error) {
	runtime.Gosched() // who waits for an acknowledgement goes first
	if y == nil {
		return false, nil
	}
	rest := min(time.Duration(y.rest.Load())*d, yieldMax)
	if rest <= 0 || !y.busy(time.Now()) {
		return false, nil
	}
	t := time.NewTimer(rest)
	defer t.Stop()
	select {
	case <-t.C:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// reader is r at the limiter's rate, with a rest between two reads of what the disk was busy for them, and small reads while there is
// one: for what reading took, and, when toDisk, for what was done with the bytes too. To wait for a network or for the limiter costs
// nobody anything.
func (y *yield) reader(ctx context.Context, r io.Reader, l *limiter, toDisk bool) io.Reader {
	src := &timed{r: r}
	return &yielding{y: y, ctx: ctx, src: src, r: l.reader(ctx, src), toDisk: toDisk}
}

type yielding struct {
	y      *yield
	ctx    context.Context // lives for one object
	src    *timed
	r      io.Reader
	toDisk bool
	given  time.Time // when the bytes were
}

func (r *yielding) Read(p []byte) (int, error) {
	took := r.src.took
	r.src.took = 0
	if r.toDisk && !r.given.IsZero() {
		took += time.Since(r.given)
	}
	rested, err := r.y.pause(r.ctx, max(took, 1)) // before the first there is none, but it is as small
	if err != nil {
		return 0, err
	}
	if rested {
		p = p[:min(len(p), yieldPiece)]
	}
	n, err := r.r.Read(p)
	r.given = time.Now()
	return n, err
}

// timed adds up what reading takes.
type timed struct {
	r    io.Reader
	took time.Duration
}

func (r *timed) Read(p []byte) (int, error) {
	began := time.Now()
	n, err := r.r.Read(p)
	r.took += time.Since(began)
	return n, err
}
