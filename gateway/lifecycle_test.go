package gateway

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary is what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) check(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("got  %q\nwant %q", d.lines, want)
	}
	d.lines = nil
}

// fake is a part that writes down what is asked of it, and runs until it is stopped or told to fail.
func fake(d *diary, name string) (p part, fail chan error) {
	fail = make(chan error, 1)
	stop := make(chan struct{})
	p = part{name: name, hint: "ask for help"}
	p.start = func(context.Context) error { d.write("start " + name); return nil }
	p.run = func() error {
		select {
		case err := <-fail:
			return err
		case <-stop:
			return nil
		}
	}
	p.stop = func(context.Context) error { d.write("stop " + name); close(stop); return nil }
	return p, fail
}

func TestPartsStopInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		a, _ := fake(&d, "admin")
		b, _ := fake(&d, "spool")
		c, _ := fake(&d, "mqtt")
		l := newLifecycle(slog.New(slog.DiscardHandler), time.Minute, []part{a, b, c})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.stopAll(); err != nil {
			t.Fatal(err)
		}
		d.check(t, "start admin", "start spool", "start mqtt", "stop mqtt", "stop spool", "stop admin")
	})
}

func TestFailedStartStopsWhatHadStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		a, _ := fake(&d, "admin")
		b, _ := fake(&d, "spool")
		c, _ := fake(&d, "mqtt")
		b.start = func(context.Context) error { return errors.New("directory is in use") }
		l := newLifecycle(slog.New(slog.DiscardHandler), time.Minute, []part{a, b, c})
		if err := l.start(t.Context()); err == nil || err.Error() != "start spool: directory is in use" {
			t.Errorf("got %v", err)
		}
		d.check(t, "start admin", "stop admin")
		if s, _ := l.look(c); s != waiting {
			t.Errorf("mqtt is %s", s)
		}
	})
}

func TestStartEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancel(t.Context())
		a, _ := fake(&d, "admin")
		b, _ := fake(&d, "spool")
		c, _ := fake(&d, "mqtt")
		b.start = func(context.Context) error { d.write("start spool"); cancel(); return nil }
		l := newLifecycle(slog.New(slog.DiscardHandler), time.Minute, []part{a, b, c})
		if err := l.start(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		d.check(t, "start admin", "start spool", "stop spool", "stop admin")
	})
}

// What does not look at its context is the recovery of a spool, which reads all that it has.
func TestStartThatDoesNotLookAtItsContextIsLeftWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancel(t.Context())
		a, _ := fake(&d, "admin")
		b, _ := fake(&d, "spool")
		c, _ := fake(&d, "bridge")
		goOn := make(chan struct{})
		c.start = func(context.Context) error { d.write("start bridge"); <-goOn; return nil }
		l := newLifecycle(slog.New(slog.DiscardHandler), 100*time.Second, []part{a, b, c})
		time.AfterFunc(10*time.Second, cancel)
		began := time.Now()
		if err := l.start(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrStopIncomplete) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 80*time.Second {
			t.Errorf("took %s, want 10 s to the signal and 0.7 of the time of the stop", took)
		}
		d.check(t, "start admin", "start spool", "start bridge", "stop spool", "stop admin")
		close(goOn) // started after all: somebody has to stop it
		synctest.Wait()
		d.check(t, "stop bridge")
	})
}

// The time of the stop runs from the signal, whatever of it a start has used that ends well after all.
func TestStartThatEndsAfterTheSignalLeavesWhatIsLeftToTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancel(t.Context())
		a, _ := fake(&d, "admin")
		b, _ := fake(&d, "spool")
		c, _ := fake(&d, "bridge")
		b.start = func(context.Context) error {
			d.write("start spool")
			cancel()
			time.Sleep(90 * time.Second)
			return nil
		}
		b.stop = func(ctx context.Context) error { d.write("stop spool"); <-ctx.Done(); return ctx.Err() }
		b.run = nil
		l := newLifecycle(slog.New(slog.DiscardHandler), 100*time.Second, []part{a, b, c})
		began := time.Now()
		if err := l.start(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrStopIncomplete) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 95*time.Second {
			t.Errorf("took %s, want 0.95 of the time of the stop", took)
		}
		d.check(t, "start admin", "start spool", "stop spool", "stop admin")
	})
}

func TestPartsThatDoNotStopWhileTheGatewayStartsMakeTheStopIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancel(t.Context())
		a, _ := fake(&d, "admin")
		b, _ := fake(&d, "spool")
		stop := b.stop
		b.stop = func(ctx context.Context) error { return errors.Join(stop(ctx), errors.New("disk is full")) }
		c, _ := fake(&d, "bridge")
		c.start = func(ctx context.Context) error { cancel(); return ctx.Err() }
		l := newLifecycle(slog.New(slog.DiscardHandler), 100*time.Second, []part{a, b, c})
		if err := l.start(ctx); !errors.Is(err, ErrStopIncomplete) || !strings.Contains(err.Error(), "stop spool: disk is full") {
			t.Errorf("got %v", err)
		}
		d.check(t, "start admin", "start spool", "stop spool", "stop admin")
	})
}

func TestFailureOfOnePartIsToldAndTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var out strings.Builder
		a, _ := fake(&d, "spool")
		b, fail := fake(&d, "mqtt")
		l := newLifecycle(slog.New(slog.NewTextHandler(&out, nil)), time.Minute, []part{a, b})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		fail <- errors.New("listener closed")
		synctest.Wait()
		if s, err := l.look(b); s != failed || err == nil {
			t.Errorf("mqtt is %s, %v", s, err)
		}
		if s, err := l.look(a); s != running || err != nil {
			t.Errorf("spool is %s, %v", s, err)
		}
		if got := out.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, `err="listener closed" hint="ask for help"`) {
			t.Errorf("log is %s", got)
		}
		if err := l.stopAll(); err != nil {
			t.Error(err)
		}
	})
}

func TestRunThatReturnsByItselfIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		a, fail := fake(&d, "mqtt")
		l := newLifecycle(slog.New(slog.DiscardHandler), time.Minute, []part{a})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		fail <- nil
		synctest.Wait()
		if s, err := l.look(a); s != failed || err == nil {
			t.Errorf("mqtt is %s, %v", s, err)
		}
		_ = l.stopAll()
	})
}

// A part that does not stop may use its own share of the time and no more; the others still stop in order.
func TestStopHasADeadlineForEachPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		a, _ := fake(&d, "spool")
		b, _ := fake(&d, "bridge")
		c, _ := fake(&d, "mqtt")
		b.run, b.stop = nil, func(context.Context) error { <-release; return nil } // looks at no context
		l := newLifecycle(slog.New(slog.DiscardHandler), 100*time.Second, []part{a, b, c})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := l.stopAll()
		if err == nil || !strings.HasPrefix(err.Error(), "stop bridge: still busy after its deadline") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 70*time.Second+graceAfterDeadline {
			t.Errorf("stop took %v", took)
		}
		d.check(t, "start spool", "start bridge", "start mqtt", "stop mqtt", "stop spool")
		close(release)
	})
}

// What one part does not use of its time is there for the next.
func TestStopPassesTimeOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var left time.Duration
		a, _ := fake(&d, "mqtt")
		b, _ := fake(&d, "bridge")
		b.run, b.stop = nil, func(ctx context.Context) error {
			until, _ := ctx.Deadline()
			left = time.Until(until)
			return nil
		}
		l := newLifecycle(slog.New(slog.DiscardHandler), 100*time.Second, []part{b, a})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.stopAll(); err != nil {
			t.Fatal(err)
		}
		if left != 70*time.Second {
			t.Errorf("the bridge had %v", left)
		}
	})
}

// A stop that gives up in time knows best what it left.
func TestStopKeepsTheErrorOfAPartThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		a, _ := fake(&d, "bridge")
		a.run, a.stop = nil, func(ctx context.Context) error { <-ctx.Done(); return errors.New("17 records in flight") }
		l := newLifecycle(slog.New(slog.DiscardHandler), time.Second, []part{a})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.stopAll(); err == nil || err.Error() != "stop bridge: 17 records in flight" {
			t.Errorf("got %v", err)
		}
	})
}

func TestEveryPartHasItsShareOfTheStop(t *testing.T) {
	last := 0.0
	for _, name := range []string{"mqtt", "bridge", "spool", "admin"} {
		if stopShare[name] <= last {
			t.Errorf("%s has no time between %v and %v", name, last, stopShare[name])
		}
		last = stopShare[name]
	}
	if last != 1 {
		t.Errorf("the last part stops at %v of the timeout", last)
	}
}
