package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

func throttled(t *testing.T) *Auth {
	c := quick("password")
	c.Throttle = DefaultConfig().Throttle
	c.Throttle.Failures = 3
	c.Throttle.Delay, c.Throttle.MaxDelay = unit.Duration(time.Second), unit.Duration(4*time.Second)
	c.Throttle.Forget = unit.Duration(time.Minute)
	c.Password.File = writeFile(t, "users", userLine("ann", "pw", "")+userLine("bob", "pw", ""))
	return open(t, c, nil)
}

func TestThrottleSlowsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := throttled(t)
		f := func(address, user, password string, waits time.Duration, want error) {
			t.Helper()
			r := request("c", user, password)
			r.Remote = netip.MustParseAddr(address)
			start := time.Now()
			_, err := a.Authenticate(t.Context(), r)
			if took := time.Since(start); took != waits || !errors.Is(err, want) {
				t.Errorf("%s %s: took %v, want %v; %v", address, user, took, waits, err)
			}
		}
		f("192.0.2.9", "bob", "pw", 0, nil) // seen here before
		for range 3 {
			f("192.0.2.9", "ann", "x", 0, ErrBadCredentials)
		}
		f("192.0.2.9", "ann", "x", time.Second, ErrBadCredentials)
		f("192.0.2.9", "ann", "x", 2*time.Second, ErrBadCredentials)
		f("192.0.2.9", "eve", "x", 4*time.Second, ErrBadCredentials) // by address, whatever the user
		f("192.0.2.8", "ann", "pw", 0, nil)                          // by user: its turn is over by now
		f("198.51.100.1", "kim", "x", 0, ErrBadCredentials)          // others are not touched
		f("192.0.2.9", "bob", "pw", 0, nil)                          // and who is known there is not either
		f("::ffff:192.0.2.9", "kim", "x", 4*time.Second, ErrBadCredentials)
		f("2001:db8::1", "", "x", 0, ErrBadCredentials)
		f("2001:db8::2", "", "x", 0, ErrBadCredentials)
		f("2001:db8::3", "", "x", 0, ErrBadCredentials)
		f("2001:db8::4", "", "x", time.Second, ErrBadCredentials) // a /64 is one
		f("2001:db8:0:1::4", "", "x", 0, ErrBadCredentials)
		time.Sleep(time.Hour)
		f("192.0.2.9", "ann", "x", 0, ErrBadCredentials) // forgotten
	})
}

// Who comes with many connections at once gets turns, and the rest is sent away unseen.
func TestThrottleGivesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := throttled(t)
		for range 4 {
			_, _ = a.Authenticate(t.Context(), request("c", "ann", "x"))
		}
		before := a.gate.hashes.Load()
		var wg sync.WaitGroup
		var mu sync.Mutex
		count := map[string]int{}
		for i := range 100 {
			wg.Go(func() {
				_, err := a.Authenticate(t.Context(), request("c", fmt.Sprint("user", i), "x"))
				mu.Lock()
				defer mu.Unlock()
				count[fmt.Sprint(err)]++
			})
		}
		wg.Wait()
		if n := a.gate.hashes.Load() - before; n > 5 || count[ErrBusy.Error()] < 95 {
			t.Errorf("%d were looked at: %v", n, count)
		}
	})
}

func TestThrottleTablesAreBounded(t *testing.T) {
	th := newThrottle(DefaultConfig().Throttle, time.Now)
	th.sources.limit, th.users.limit, th.good.limit = 10, 10, 10
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		th.failed(addr, fmt.Sprint(i))
		th.succeeded(addr, fmt.Sprint(i))
	}
	if th.sources.len() != 10 || th.users.len() != 10 || th.good.len() != 10 {
		t.Errorf("%d, %d, %d", th.sources.len(), th.users.len(), th.good.len())
	}
}

// Who comes in with credentials of his own, under the name of another, does not open that one to guessing.
func TestThrottleRemembersNoClaimedName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := throttled(t)
		r := request("c", "ann", "")
		for range 3 {
			a.throttle.failed(r.Remote, "ann")
		}
		if _, err := a.decided(r, &Identity{Method: MethodCertificate, User: "mallory"}, nil); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := a.throttle.admit(t.Context(), r.Remote, "ann"); err != nil || time.Since(start) == 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if _, err := a.decided(r, &Identity{Method: MethodCertificate, User: "ann"}, nil); err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		if err := a.throttle.admit(t.Context(), r.Remote, "ann"); err != nil || time.Since(start) != 0 {
			t.Errorf("known here: %v after %v", err, time.Since(start))
		}
	})
}
