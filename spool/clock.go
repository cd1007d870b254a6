package spool

import "time"

// clock is the wall clock at start and the monotonic clock from there. A step of the wall clock does not reach it, so
// that it can neither expire everything nor keep it for ever; it is only noticed.
type clock struct {
	source func() time.Time
	system bool          // source is the system's clock, of which the monotonic half is read alone where that is enough
	start  time.Time     // as source gave it, with its monotonic reading
	ahead  time.Duration // added when the wall clock was behind what the spool had seen before
}

// newClock starts a clock that is not before seen, the latest time of an earlier run. source nil is the system's clock.
func newClock(source func() time.Time, seen int64) *clock {
	c := &clock{source: source, system: source == nil}
	if c.system {
		c.source = time.Now
	}
	c.start = c.source()
	if behind := seen - c.start.UnixNano(); behind > 0 {
		c.ahead = time.Duration(behind)
	}
	return c
}

// now is the spool's time as Unix time in nanoseconds.
func (c *clock) now() int64 {
	var elapsed time.Duration
	if c.system {
		elapsed = time.Since(c.start)
	} else {
		elapsed = c.source().Sub(c.start) // by the monotonic readings when both have one
	}
	return c.start.UnixNano() + int64(c.ahead) + int64(elapsed)
}

// step is how far the wall clock is from where it would be had nobody set it.
func (c *clock) step() time.Duration {
	t := c.source()
	return t.Round(0).Sub(c.start.Round(0)) - t.Sub(c.start)
}
