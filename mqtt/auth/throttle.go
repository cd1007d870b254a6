package auth

import (
	"context"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

const (
	throttleTable = 100_000 // sources, users and good pairs that are remembered
	throttleHeld  = 1000    // connections that are kept waiting at once
)

// throttle slows those who fail. Every failure is a strike against the source, an IPv4 address or an IPv6 /64, and against the
// user; strikes are forgotten one by one. Beyond the free ones, attempts get turns with growing pauses in between; whoever would
// wait for too long for his turn is sent away without being looked at.
//
// A user who came in from a source not long ago is not slowed there: otherwise whoever knows a name could shut its owner
// out, and one broken device all others behind the same NAT.
type throttle struct {
	cfg     ThrottleConfig
	now     func() time.Time
	sources *cache[netip.Prefix, strikes]
	users   *cache[digest, strikes]
	good    *cache[digest, struct{}]
	held    atomic.Int64
}

type strikes struct {
	count float64
	at    time.Time // of count
	next  time.Time // turn of the next attempt
}

func newThrottle(cfg ThrottleConfig, now func() time.Time) *throttle {
	return &throttle{
		cfg: cfg, now: now,
		sources: newCache[netip.Prefix, strikes](throttleTable),
		users:   newCache[digest, strikes](throttleTable),
		good:    newCache[digest, struct{}](throttleTable),
	}
}

// admit waits for the turn of an attempt.
func (t *throttle) admit(ctx context.Context, source netip.Addr, user string) error {
	if t.cfg.Failures == 0 {
		return nil
	}
	from := transport.Source(source)
	if _, at, ok := t.good.get(digestOf(from.String(), user)); ok && t.now().Sub(at) < t.cfg.Remember.Std() {
		return nil
	}
	wait, ok := time.Duration(0), true
	turn := func(s strikes) strikes {
		now := t.now()
		s = t.forget(s, now)
		pause := t.pause(s.count)
		if pause == 0 {
			return s
		}
		at := s.next
		if at.Before(now) {
			at = now
		}
		if w := at.Sub(now); w > t.cfg.MaxDelay.Std() {
			ok = false
			return s
		} else if w > wait {
			wait = w
		}
		s.next = at.Add(pause)
		return s
	}
	if from.IsValid() {
		t.sources.update(from, t.now(), turn)
	}
	if ok && user != "" {
		t.users.update(digestOf(user), t.now(), turn)
	}
	switch {
	case !ok:
		return ErrBusy
	case wait == 0:
		return nil
	}
	defer t.held.Add(-1)
	if t.held.Add(1) > throttleHeld {
		return ErrBusy
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *throttle) forget(s strikes, now time.Time) strikes {
	if !s.at.IsZero() {
		s.count = max(0, s.count-float64(now.Sub(s.at))/float64(t.cfg.Forget.Std()))
	}
	s.at = now
	return s
}

// pause is how long after one attempt the next is due.
func (t *throttle) pause(count float64) time.Duration {
	over := int(math.Round(count)) - t.cfg.Failures
	if over < 0 {
		return 0
	}
	return min(t.cfg.Delay.Std()<<min(over, 16), t.cfg.MaxDelay.Std())
}

func (t *throttle) failed(source netip.Addr, user string) {
	if t.cfg.Failures == 0 {
		return
	}
	strike := func(s strikes) strikes {
		now := t.now()
		s = t.forget(s, now)
		// Not without end: what was a flood is forgiven some time after it is over.
		s.count = min(s.count+1, float64(t.cfg.Failures+8))
		if next := now.Add(t.pause(s.count)); next.After(s.next) {
			s.next = next
		}
		return s
	}
	if from := transport.Source(source); from.IsValid() {
		t.sources.update(from, t.now(), strike)
	}
	if user != "" {
		t.users.update(digestOf(user), t.now(), strike)
	}
}

// succeeded remembers where a user comes from.
func (t *throttle) succeeded(source netip.Addr, user string) {
	if t.cfg.Failures > 0 && user != "" {
		t.good.put(digestOf(transport.Source(source).String(), user), struct{}{}, t.now())
	}
}
