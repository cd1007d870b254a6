package mqtt

import (
	"context"
	"sync/atomic"
	"time"
)

// clock tells the time since its start, as of the last tick: what each packet asks for must cost nothing.
type clock struct{ at atomic.Int64 }

const clockTick = 100 * time.Millisecond

func (c *clock) now() time.Duration { return time.Duration(c.at.Load()) }

func (c *clock) run(ctx context.Context) {
	began := time.Now()
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.at.Store(int64(time.Since(began)))
		}
	}
}
