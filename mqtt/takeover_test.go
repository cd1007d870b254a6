package mqtt

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

func TestTakeOversAreSlowedDownAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.TakeOverBurst, cfg.TakeOverInterval = 3, unit.Duration(time.Second)
		f := newFights(&cfg)
		enter := func(want time.Duration) {
			t.Helper()
			if got := f.enter("id", time.Now()); got != want {
				t.Errorf("waits %v, want %v", got, want)
			}
		}
		for range 3 {
			enter(0)
		}
		for _, ms := range []int{50, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000, 1000, 1000} {
			enter(time.Duration(ms) * time.Millisecond)
		}
		if got := f.enter("another", time.Now()); got != 0 {
			t.Errorf("another client ID waits %v", got)
		}
		time.Sleep(10 * time.Second) // each second one passes; the level does not rise for ever
		enter(50 * time.Millisecond)
		time.Sleep(2 * fightLog)
		f.sweep(time.Now())
		if len(f.byID) != 0 {
			t.Errorf("%d client IDs are remembered", len(f.byID))
		}

		cfg.TakeOverInterval = 0
		f = newFights(&cfg)
		for range 100 {
			enter(0)
		}
	})
}

// One connection waits for a client ID, the last that came.
func TestOnlyTheLastTakeOverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		f := newFights(&cfg)
		f.enter("id", time.Now())
		errs := make(chan error, 3)
		for i := range 3 {
			go func() { errs <- f.wait(context.Background(), "id", time.Second) }()
			synctest.Wait()
			if i == 0 {
				continue
			}
			if err := <-errs; err != errSuperseded {
				t.Errorf("who was sent away: %v", err)
			}
		}
		if err := <-errs; err != nil {
			t.Errorf("the last one: %v", err)
		}
	})
}

// syncBuffer takes log lines of many goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Two clients of one client ID throw each other out ever more slowly, and the log names them, once.
func TestClientsThatFightAreSlowedDownAndNamed(t *testing.T) {
	var lines syncBuffer
	srv, _ := faulty(t, func(cfg *Config, o *Options) {
		cfg.TakeOverBurst, cfg.TakeOverInterval = 2, unit.Duration(time.Minute)
		o.Logger = slog.New(slog.NewTextHandler(&lines, nil))
	})
	begin := time.Now()
	var last *mqtttest.Client
	for range 6 { // five take-overs: at once, at once, after 50, 100 and 200 ms
		c := join(t, srv, mqtttest.Connect{ID: "twin"})
		if last != nil {
			last.ExpectDisconnect(0x8E)
		}
		last = c
	}
	if took := time.Since(begin); took < 350*time.Millisecond {
		t.Errorf("six connections in %v", took)
	}
	if n := strings.Count(lines.String(), "fight over a client ID"); n != 1 || !strings.Contains(lines.String(), "client=twin") {
		t.Errorf("%d lines in the log:\n%s", n, lines.String())
	}
	if n := value(srv.metrics.takeOversHeld); n < 2 {
		t.Errorf("%d waited", n)
	}
}
