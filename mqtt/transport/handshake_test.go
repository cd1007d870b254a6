package transport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotRestsAfterAComputation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(1, func(held time.Duration) time.Duration { return 3 * held })
		ctx := t.Context()
		if err := s.take(ctx); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.give(2 * time.Millisecond)
		if d := time.Since(began); d != 0 {
			t.Errorf("who gives a slot back waits %v", d)
		}
		if err := s.take(ctx); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 6*time.Millisecond {
			t.Errorf("the slot came after %v, want three times the 2 ms that it was held", d)
		}
		s.give(0) // nothing was computed: no rest
		if err := s.take(ctx); err != nil || time.Since(began) != 6*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}

		soon, cancel := context.WithTimeoutCause(ctx, time.Second, errTest)
		defer cancel()
		if err := s.take(soon); !errors.Is(err, errTest) {
			t.Errorf("taken slot: %v", err)
		}
		s.give(0)
	})
}

var errTest = errors.New("no slot")
