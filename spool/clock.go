package spool

import (
	"sync/atomic"
	"time"
)

// clock is the wall clock at start and the monotonic clock from there. A step of the wall clock does not reach it, so
// that it can neither expire everything nor keep it for ever; it is only noticed.
type clock struct {
	source func() time.Time
	start  time.Time     // as source gave it, with its monotonic reading
	ahead  time.Duration // added when the wall clock was behind what the spool had seen before
	step   atomic.Int64  // how far the wall clock is from where it would be without steps, in nanoseconds
}

// newClock starts a clock that is not before seen, the latest time of an earlier run.
func newClock(source func() time.Time, seen int64) *clock {
	c := &clock{source: source, start: source()}
	if behind := seen - c.start.UnixNano(); behind > 0 {
		c.ahead = time.Duration(behind)
	}
	return c
}

// now is the spool's time as Unix time in nanoseconds.
func (c *clock) now() int64 {
	t := c.source()
	elapsed := t.Sub(c.start) // by the monotonic readings when both have one
	c.step.Store(int64(t.Round(0).Sub(c.start.Round(0)) - elapsed))
	return c.start.UnixNano() + int64(c.ahead) + int64(elapsed)
}
