package spool

import (
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// clock keeps two times. The spool's own time never steps and never goes back, not over restarts either: expiries are stored in it, and
// ages are counted in it, so that a wall clock that is set can neither expire everything nor keep it for ever. The wall clock is what
// the world outside is told, and what records are stamped with. The difference is the skew: 0 on a machine whose clock is right.
//
//	own time at start = latest own time of the run before + how long the gateway was down
//
// How long that was says the boot clock, unless the machine was started meanwhile; then the wall clock says it, and one that
// went back counts as no time.
type clock struct {
	source func() time.Time
	system bool                 // source is the system's clock, of which the monotonic half is read alone where that is enough
	mono   func() time.Duration // nil: the monotonic reading of source
	began  time.Time            // by source
	beganM time.Duration        // by mono
	base   int64                // own time at the start
	down   time.Duration        // how far the wall clock was set while the gateway was down, as far as that is known

	skew  atomic.Int64  // wall clock less own time, nanoseconds
	steps atomic.Uint64 // how often the wall clock was set while the spool was open
}

// clockState is what meta.db keeps of the clock. A directory of an earlier version has Own only.
type clockState struct {
	Own  int64    `json:"-"`
	Skew int64    `json:"skew"`
	Boot bootTime `json:"boot"`
}

// bootTime is the time since the machine was started, sleep included.
type bootTime struct {
	ID    string        `json:"id"` // of this start of the machine; "" is not known
	Since time.Duration `json:"since"`
}

const clockStepMin = time.Second // less is slewing and rounding

func newClock(opts Options, was clockState) *clock {
	c := &clock{source: opts.Now, system: opts.system && opts.Monotonic == nil, mono: opts.Monotonic, began: opts.Now()}
	if c.mono != nil {
		c.beganM = c.mono()
	}
	wall := c.began.UnixNano()
	c.base = max(was.Own, wall-was.Skew)
	if boot := opts.Boot(); boot.ID != "" && boot.ID == was.Boot.ID && boot.Since >= was.Boot.Since {
		exact := was.Own + int64(boot.Since-was.Boot.Since)
		if d := time.Duration(wall - was.Skew - exact); d > clockStepMin || d < -clockStepMin {
			c.base, c.down = exact, d
		}
	} else if back := time.Duration(wall - was.Skew - was.Own); back < -clockStepMin {
		c.down = back
	}
	c.skewFrom(wall)
	return c
}

// skewFrom takes less than a second for none: then no record has to be copied for its expiry.
func (c *clock) skewFrom(wall int64) {
	c.skew.Store(0)
	if d := time.Duration(wall - c.base); d > clockStepMin || d < -clockStepMin {
		c.skew.Store(int64(d))
	}
}

// notBefore moves the own time at the start forward to t. Only before the clock is shared.
func (c *clock) notBefore(t int64) {
	if t <= c.base {
		return
	}
	wall := c.began.UnixNano()
	c.base, c.down = t, time.Duration(wall-t)
	c.skewFrom(wall)
}

// read is own time and skew, together. A step of the wall clock is noticed by whoever reads first.
func (c *clock) read() (own, skew int64) {
	t := c.source()
	elapsed := t.Sub(c.began) // by the monotonic readings when both have one
	if c.mono != nil {
		elapsed = c.mono() - c.beganM
	}
	own = c.base + int64(elapsed)
	skew = c.skew.Load()
	actual := t.UnixNano() - own
	if d := time.Duration(actual - skew); d > clockStepMin || d < -clockStepMin {
		if c.skew.CompareAndSwap(skew, actual) {
			c.steps.Add(1)
		}
		skew = actual
	}
	return own, skew
}

// now is the spool's own time, Unix time in nanoseconds.
func (c *clock) now() int64 {
	if c.system {
		return c.base + int64(time.Since(c.began))
	}
	own, _ := c.read()
	return own
}

// wall is the wall clock, by the monotonic clock since its last step, which is noticed within a round of the janitor.
func (c *clock) wall() int64 {
	if c.system {
		return c.now() + c.skew.Load()
	}
	own, skew := c.read()
	return own + skew
}

// ownTime is the expiry of a record in own time; 0 stays 0.
func (c *clock) ownTime(expires int64) int64 {
	if expires == 0 {
		return 0
	}
	_, skew := c.read()
	return shiftTime(expires, -skew)
}

// shiftTime stops at the ends of time, and never becomes 0, which is no time.
func shiftTime(t, d int64) int64 {
	switch {
	case t == 0 || d == 0:
		return t
	case d > 0 && t > math.MaxInt64-d:
		return math.MaxInt64
	case d < 0 && t <= -d:
		return 1
	}
	return t + d
}

// wallTimes are the records with their expiries by the wall clock. Records are shared: they are copied when something changes.
func wallTimes(recs []Record, skew int64) []Record {
	if skew == 0 {
		return recs
	}
	out := append([]Record(nil), recs...)
	for i := range out {
		out[i].ExpiresAt = shiftTime(out[i].ExpiresAt, skew)
	}
	return out
}

// Clock tells a spool's own time, in which its files have expiries and ages, and how far the wall clock is ahead of it.
type Clock func() (own time.Time, ahead time.Duration)

// WallClock is for files of a spool that is not there: its own time is not known and taken for the wall clock.
func WallClock() (own time.Time, ahead time.Duration) { return time.Now(), 0 }

// Clock is that of the spool.
func (s *Spool) Clock() (own time.Time, ahead time.Duration) {
	t, skew := s.clock.read()
	return time.Unix(0, t), time.Duration(skew)
}

// Clock is that of the spool, as the next start would have it.
func (v *View) Clock() (own time.Time, ahead time.Duration) { return v.s.Clock() }

func (c *clock) state(boot bootTime) (int64, clockState) {
	own, skew := c.read()
	return own, clockState{Own: own, Skew: skew, Boot: boot}
}

// UnixNano is t in Unix time, and the nearest that can be told where t is outside of the years 1678 to 2262: time.Time's is anything there.
func UnixNano(t time.Time) int64 {
	switch {
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	}
	return t.UnixNano()
}

// systemBoot asks the system.
func systemBoot() bootTime {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var ts unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return bootTime{}
	}
	return bootTime{ID: strings.TrimSpace(string(id)), Since: time.Duration(ts.Nano())}
}
