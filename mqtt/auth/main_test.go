package auth

import (
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is set by hand.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(t.TempDir(), name)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// cheap are costs for tests.
var cheap = HashParams{Memory: 64, Time: 1, Threads: 1}

func userLine(user, password, groups string) string {
	c := credential{user: user, hash: newHash([]byte(password), cheap)}
	if groups != "" {
		c.groups, _ = ParseGroups(groups)
	}
	return c.String() + "\n"
}

func request(client, user, password string) *Request {
	r := &Request{ClientID: client, User: user, HasUser: user != "", Listener: "tcp", Remote: netip.MustParseAddr("192.0.2.1")}
	if password != "" {
		r.Password, r.HasPassword = []byte(password), true
	}
	return r
}

// quick is a configuration for tests, with the methods given.
func quick(methods ...string) Config {
	c := DefaultConfig()
	c.Methods = methods
	c.Throttle.Failures = 0
	return c
}

func open(t testing.TB, c Config, now func() time.Time) *Auth {
	t.Helper()
	a, err := New(c, Options{Listeners: map[string]ListenerConfig{"tcp": {}}, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}
