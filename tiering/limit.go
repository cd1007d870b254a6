package tiering

import (
	"context"
	"io"
	"sync"
	"time"
)

// limiter holds a byte rate over all that use it. The nil limiter has no limit.
type limiter struct {
	rate float64 // bytes a second

	mu   sync.Mutex
	free time.Time // when the line is free again
}

func newLimiter(rate int64) *limiter {
	if rate <= 0 {
		return nil
	}
	return &limiter{rate: float64(rate)}
}

// wait takes the time of n bytes.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l == nil || n == 0 {
		return nil
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	at := l.free
	l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	l.mu.Unlock()
	d := at.Sub(now)
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const limitStep = 64 << 10 // bytes that wait at a time

// reader is r at the limiter's rate.
func (l *limiter) reader(ctx context.Context, r io.Reader) io.Reader {
	if l == nil {
		return r
	}
	return &limited{l, ctx, r}
}

type limited struct {
	l   *limiter
	ctx context.Context // lives for one object
	r   io.Reader
}

func (r *limited) Read(p []byte) (int, error) {
	n, err := r.r.Read(p[:min(len(p), limitStep)])
	if werr := r.l.wait(r.ctx, n); werr != nil && err == nil {
		err = werr
	}
	return n, err
}
