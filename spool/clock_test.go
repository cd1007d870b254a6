package spool

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// wallClock is a machine: a wall clock that can be set, a monotonic clock, and a boot clock. The goroutines of a spool read it while
// a test moves it.
type wallClock struct {
	mu    sync.Mutex
	began time.Time
	ran   time.Duration // since it was started
	set   time.Duration // how far the wall clock was set
	boots int
}

func newWallClock() *wallClock {
	return &wallClock{began: time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC), ran: time.Hour}
}

func (c *wallClock) options() Options { return Options{Now: c.now, Monotonic: c.mono, Boot: c.boot} }

func (c *wallClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began.Add(c.ran + c.set)
}

func (c *wallClock) mono() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ran
}

func (c *wallClock) boot() bootTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bootTime{ID: fmt.Sprint(c.boots), Since: c.ran}
}

// pass lets time go on, and sets the wall clock by set.
func (c *wallClock) pass(d, set time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran, c.set = c.ran+d, c.set+set
}

// reboot starts the machine anew.
func (c *wallClock) reboot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.ran, c.boots = c.began.Add(c.ran), 0, c.boots+1
}

const year = 365 * 24 * time.Hour

// Whatever happens to the wall clock, a record lives as long as its publisher has said, and no longer.
func TestWallClockThatIsSetChangesNoTimeToLive(t *testing.T) {
	for name, c := range map[string]struct {
		before, running, down, again time.Duration // the clock is set: before the first start, while it runs, while it is down, after the restart
		reboot                       bool
	}{
		"forward while it runs":                  {running: year},
		"back while it runs":                     {running: -year},
		"forward, and back while it runs again":  {running: year, again: -year},
		"back, and forward while it runs again":  {running: -year, again: year},
		"forward while it is down":               {down: year},
		"back while it is down":                  {down: -year},
		"ahead from the first start, then right": {before: year, down: -year},
		"ahead, right after a reboot":            {before: year, down: -year, reboot: true},
		"behind, right while it runs":            {before: -50 * year, running: 50 * year},
		"forward while it runs, then a reboot":   {running: year, reboot: true},
		"a reboot with a clock that went back":   {down: -year, reboot: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newWallClock()
			m.pass(0, c.before)
			cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(20 * 365 * 24 * time.Hour) }))
			log, logger := logTo(t)
			opts := m.options()
			opts.Logger = logger
			s := mustOpen(t, cfg, opts)
			n := 0
			appendOne := func(ttl time.Duration) {
				r := testRecord(n)
				r.ReceivedAt = s.Now().UnixNano() // as whoever has the wall clock does
				r.ExpiresAt = s.Now().Add(ttl).UnixNano()
				put(t, s, Entry{Record: r})
				n++
			}
			// Each has a number, and an hour to live; want are those that are there now.
			check := func(when string, want ...int) {
				t.Helper()
				for _, from := range []string{"memory", "segments"} {
					r, err := s.NewReader(DefaultStream, 0, 0)
					if err != nil {
						t.Fatal(err)
					}
					var got []int
					for {
						b, ok, err := r.TryNext()
						if err != nil || b.Gap != nil && b.Gap.Reason == GapDamaged {
							t.Fatal(b.Gap, err)
						}
						if !ok {
							break
						}
						for i := range b.Records {
							var k int
							_, _ = fmt.Sscanf(string(b.Records[i].Payload), "value %d", &k)
							got = append(got, k)
							if left := time.Duration(b.Records[i].ExpiresAt - s.Now().UnixNano()); left <= 0 || left > time.Hour {
								t.Errorf("%s, from %s: record %d has %v left by the wall clock", when, from, k, left)
							}
						}
					}
					r.Close()
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("%s, from %s: got %v, want %v", when, from, got, want)
					}
					if err := s.materialise(true); err != nil {
						t.Fatal(err)
					}
					forgetTail(s)
				}
			}

			appendOne(time.Hour) // 0
			m.pass(20*time.Minute, c.running)
			appendOne(time.Hour) // 1: before the janitor has noticed
			s.clean(t.Context())
			check("after the step", 0, 1)
			rollAll(t, s)
			check("sealed", 0, 1)

			mustClose(t, s)
			m.pass(0, c.down)
			if c.reboot {
				m.reboot()
			}
			m.pass(time.Minute, 0)
			s = mustOpen(t, cfg, opts)
			if got, want := s.Now(), m.now(); !got.Equal(want) {
				t.Errorf("the wall clock says %v, the spool %v", want, got)
			}
			check("after the restart", 0, 1)
			m.pass(0, c.again)
			appendOne(time.Hour) // 2
			check("after the second step", 0, 1, 2)
			m.pass(45*time.Minute, 0)
			check("when the first is over", 1, 2)
			m.pass(30*time.Minute, 0)
			rollAll(t, s)
			s.clean(t.Context())
			check("when all are over")
			if segs := s.Stats().Streams[0].Segments; segs != 0 {
				t.Errorf("%d segments keep their space", segs)
			}
			if !log.contains("wall clock was set") && c.running+c.down+c.again != 0 {
				t.Error("nobody was told")
			}
			if c.running+c.again != 0 && s.clock.steps.Load() == 0 && c.again != 0 {
				t.Error("the step was not counted")
			}
		})
	}
}

// Retention counts in the spool's own time too.
func TestWallClockThatIsSetChangesNoRetention(t *testing.T) {
	m := newWallClock()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(10 * time.Hour) }))
	s := mustOpen(t, cfg, m.options())
	round := func(ran, set time.Duration, want int) {
		t.Helper()
		m.pass(ran, set)
		s.clean(t.Context())
		if n := s.Stats().Streams[0].Segments; n != want {
			t.Errorf("%v later, clock set by %v: %d segments, want %d", ran, set, n, want)
		}
	}
	put(t, s, Entry{Record: testRecord(0)})
	rollAll(t, s)
	round(time.Hour, year, 1)
	put(t, s, Entry{Record: testRecord(1)})
	rollAll(t, s)
	round(time.Hour, -2*year, 2)
	mustClose(t, s)
	m.pass(0, year)
	s = mustOpen(t, cfg, m.options())
	round(7*time.Hour, 0, 2)
	round(90*time.Minute, year, 1)
	round(time.Hour, -year, 0)
}

// A directory of an earlier version whose clock once was a year ahead goes on with the right one.
func TestClockThatWasAheadOnceIsLeftBehind(t *testing.T) {
	m := newWallClock()
	was := clockState{Own: m.began.Add(year).UnixNano()}
	c := newClock(m.options().withDefaults(), was)
	if got, want := c.wall(), m.now().UnixNano(); got != want {
		t.Errorf("the wall clock is %v off", time.Duration(got-want))
	}
	if c.now() < was.Own {
		t.Error("own time went back")
	}
}

func TestSystemClockGoesOnAndIsNotBeforeWhatWasSeen(t *testing.T) {
	seen := time.Now().Add(time.Hour).UnixNano()
	c := newClock(Options{}.withDefaults(), clockState{Own: seen})
	a := c.now()
	b := c.now()
	if a < seen || b < a {
		t.Errorf("seen %d, then %d, then %d", seen, a, b)
	}
	if d := time.Duration(c.wall() - time.Now().UnixNano()); d > clockStepMin || d < -clockStepMin || c.steps.Load() != 0 {
		t.Errorf("nobody set the clock, and it is %v off", d)
	}
}
