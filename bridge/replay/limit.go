package replay

import (
	"context"
	"sync"
	"time"
)

// limiter spreads what a job sends over time, all of its partitions together.
type limiter struct {
	rate rate
	now  func() time.Time

	mu   sync.Mutex
	paid time.Time // until when what was sent is paid for
}

const (
	tick          = 50 * time.Millisecond // worth of records that go at once: more is a burst that live traffic feels
	maxPageBytes  = 4 << 20
	minPageBytes  = 64 << 10
	maxLookOffset = 200_000 // offsets that are looked through before the position moves, when nothing is selected
)

// MaxPage is the most records of a page, and with that what a crash doubles of a partition.
const MaxPage = 4096

// page is how many records and bytes a page may have.
func (l *limiter) page() (records, bytes int) {
	records, bytes = MaxPage, maxPageBytes
	perTick := int(time.Second / tick)
	if l.rate.records > 0 {
		records = min(records, max(l.rate.records/perTick, 1))
	}
	if l.rate.bytes > 0 {
		bytes = min(bytes, max(int(l.rate.bytes)/perTick, minPageBytes))
	}
	return records, bytes
}

// wait takes room for so much, and returns when it may go.
func (l *limiter) wait(ctx context.Context, records, bytes int) error {
	cost := 0.0
	if l.rate.records > 0 {
		cost = float64(records) / float64(l.rate.records)
	}
	if l.rate.bytes > 0 {
		cost = max(cost, float64(bytes)/float64(l.rate.bytes))
	}
	if cost == 0 {
		return ctx.Err()
	}
	l.mu.Lock()
	now := l.now()
	if l.paid.Before(now) {
		l.paid = now
	}
	wait := l.paid.Sub(now)
	l.paid = l.paid.Add(time.Duration(cost * float64(time.Second)))
	l.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
