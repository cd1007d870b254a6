package spool

import (
	"testing"
	"time"
)

func TestSystemClockGoesOnAndIsNotBeforeWhatWasSeen(t *testing.T) {
	seen := time.Now().Add(time.Hour).UnixNano()
	c := newClock(nil, seen)
	a := c.now()
	b := c.now()
	if a < seen || b < a {
		t.Errorf("seen %d, then %d, then %d", seen, a, b)
	}
	if d := c.step(); d > clockStepMin || d < -clockStepMin {
		t.Errorf("nobody set the clock, and it is %v off", d)
	}
}
