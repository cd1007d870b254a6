package auth

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func TestNothingConfiguredIsOpen(t *testing.T) {
	a := open(t, DefaultConfig(), nil)
	id, err := a.Authenticate(t.Context(), request("c", "ann", "x"))
	if !a.Open() || err != nil || id.User != "ann" {
		t.Errorf("%v, %+v, %v", a.Open(), id, err)
	}
	if p := a.Permissions(Subject{Identity: id}); !p.Publish("a", 2, true) || !p.Subscribe("#", 2) {
		t.Error("not everything is allowed")
	}
}

func TestAnonymousIsForThoseWhoOfferNothing(t *testing.T) {
	a := open(t, quick("anonymous"), nil)
	f := func(user, password string, want error) {
		t.Helper()
		id, err := a.Authenticate(t.Context(), request("c", user, password))
		if !errors.Is(err, want) || err == nil && id.User != "" {
			t.Errorf("%s/%s: %+v, %v", user, password, id, err)
		}
	}
	f("", "", nil)
	f("root", "", ErrBadCredentials)
	f("", "x", ErrBadCredentials)
}

func TestListenersHaveTheirOwnMethods(t *testing.T) {
	c := quick("password")
	c.Password.File = writeFile(t, "users", userLine("ann", "pw", ""))
	a, err := New(c, Options{Listeners: map[string]ListenerConfig{"tcp": {}, "inner": {Methods: []string{"anonymous"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	f := func(listener string, want error) {
		t.Helper()
		r := request("c", "", "")
		r.Listener = listener
		if _, err := a.Authenticate(t.Context(), r); !errors.Is(err, want) {
			t.Errorf("%s: %v", listener, err)
		}
	}
	f("tcp", ErrNotAuthorized)
	f("inner", nil)
	f("unknown", ErrNotAuthorized) // default deny
}

func TestACLMayDenyToConnect(t *testing.T) {
	c := quick("password")
	c.Password.File = writeFile(t, "users", userLine("ann", "pw", "")+userLine("eve", "pw", ""))
	c.ACL.File = writeFile(t, "acl", "deny connect user=eve\nallow all topic=#")
	a := open(t, c, nil)
	if _, err := a.Authenticate(t.Context(), request("c", "ann", "pw")); err != nil {
		t.Error(err)
	}
	if _, err := a.Authenticate(t.Context(), request("c", "eve", "pw")); !errors.Is(err, ErrNotAuthorized) {
		t.Error(err)
	}
}

func TestBans(t *testing.T) {
	clk := newClock()
	c := DefaultConfig()
	c.Ban.File = writeFile(t, "bans", "# out\nclient=bad-* reason=\"sends \\\"junk\\\"\"\naddress=198.51.100.0/24 until=2026-11-30T13:00:00Z\nuser=eve address=192.0.2.1\n")
	a := open(t, c, clk.now)
	f := func(client, user, address string, want error) {
		t.Helper()
		r := request(client, user, "")
		r.Remote = netip.MustParseAddr(address)
		if _, err := a.Authenticate(t.Context(), r); !errors.Is(err, want) {
			t.Errorf("%s %s %s: %v", client, user, address, err)
		}
	}
	f("good", "", "192.0.2.1", nil)
	f("bad-1", "", "192.0.2.1", ErrBanned)
	f("good", "", "198.51.100.7", ErrBanned)
	f("good", "", "::ffff:198.51.100.7", ErrBanned)
	f("good", "eve", "192.0.2.1", ErrBanned)
	f("good", "eve", "192.0.2.2", nil)
	clk.add(time.Hour)
	f("good", "", "198.51.100.7", nil)
	if n := len(a.Bans()); n != 2 {
		t.Errorf("%d bans", n)
	}

	ban := Ban{Client: `we"ird*`, Until: clk.now().Add(time.Minute), Reason: `a\b`}
	before := a.Generation()
	if err := a.Ban(ban); err != nil || a.Generation() == before {
		t.Fatal(err)
	}
	f(`we"ird1`, "", "192.0.2.1", ErrBanned)
	data, _ := os.ReadFile(c.Ban.File) // the one that is over has gone
	if again, err := ParseBans("f", data); err != nil || len(again) != 3 || again[2] != ban || !strings.HasPrefix(string(data), "# out\n") {
		t.Errorf("%+v, %v\n%s", again, err, data)
	}
	clk.add(time.Minute)
	f(`we"ird1`, "", "192.0.2.1", nil)
	if n, err := a.Unban(Ban{Client: "bad-*"}); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	f("bad-1", "", "192.0.2.1", nil)
	if err := a.Ban(Ban{Reason: "everybody"}); err == nil {
		t.Error("a ban of everybody")
	}

	fault := func(text, want string) {
		t.Helper()
		if _, err := ParseBans("bans", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	fault("\nreason=x", "bans:2: want client=")
	fault("address=300.1.1.1", "is neither an address nor a CIDR")
	fault("user=x until=tomorrow", "is not a time")
	fault("user=x user=y", "stands twice")
	fault("name=x", "key is not known")
	fault("eve", "want key=value")
}

func TestBansWithoutAFileAreKeptInMemory(t *testing.T) {
	a := open(t, DefaultConfig(), nil)
	if err := a.Ban(Ban{User: "eve"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Authenticate(t.Context(), request("c", "eve", "x")); !errors.Is(err, ErrBanned) {
		t.Error(err)
	}
	if n, err := a.Unban(Ban{User: "eve"}); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// A new file with a fault leaves the old content in force, and the error names the line.
func TestReloadKeepsTheOldContentOfABadFile(t *testing.T) {
	k, clk := newTestKeys(), newClock()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	c := quick("password", "jwt")
	c.Password.File = writeFile(t, path("users"), userLine("ann", "pw", ""))
	c.ACL.File = writeFile(t, path("acl"), "allow publish topic=a")
	c.Ban.File = writeFile(t, path("bans"), "user=eve")
	c.JWT.Issuer, c.JWT.Audience, c.JWT.JWKSFile = "issuer", []string{"forebay"}, writeFile(t, path("jwks"), jwksJSON(jwk("r", k.rsa.Public())))
	a := open(t, c, clk.now)
	token := sign(t, jose.RS256, "r", k.rsa, clk.claims(nil))
	good := func() {
		t.Helper()
		for _, password := range []string{"pw", token} {
			id, err := a.Authenticate(t.Context(), request("c", "ann", password))
			if err != nil {
				t.Fatal(err)
			}
			if p := a.Permissions(Subject{Identity: id}); !p.Publish("a", 0, false) || p.Publish("b", 0, false) {
				t.Error("other permissions")
			}
		}
		if _, err := a.Authenticate(t.Context(), request("c", "eve", "pw")); !errors.Is(err, ErrBanned) {
			t.Error(err)
		}
	}
	good()
	generation := a.Generation()
	for name, reload := range map[string]func() error{
		"users": a.ReloadPasswords, "acl": a.ReloadACL, "bans": a.ReloadBans, "jwks": a.ReloadJWKS,
	} {
		old, _ := os.ReadFile(path(name))
		writeFile(t, path(name), "# fine\n\nbroken")
		err := reload()
		line := "3"
		if name == "jwks" {
			line = "1"
		}
		if err == nil || !strings.Contains(err.Error(), path(name)+":"+line+": ") {
			t.Errorf("%s: %v", name, err)
		}
		good()
		if err := os.Remove(path(name)); err != nil {
			t.Fatal(err)
		}
		if err := reload(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is gone: %v", name, err)
		}
		good()
		writeFile(t, path(name), string(old))
	}
	if a.Generation() != generation {
		t.Error("clients are told of a change that was none")
	}
	if err := a.Reload(); err != nil || a.Generation() == generation {
		t.Errorf("%v", err)
	}
	good()
}

func TestStillFindsWhoWouldNotComeInAgain(t *testing.T) {
	clk := newClock()
	c := quick("password", "anonymous")
	c.Password.File = writeFile(t, "users", userLine("ann", "pw", "")+userLine("bob", "pw", ""))
	c.ACL.File = writeFile(t, "acl", "allow all topic=#")
	a := open(t, c, clk.now)
	enter := func(user, password string) Subject {
		t.Helper()
		id, err := a.Authenticate(t.Context(), request("c-"+user, user, password))
		if err != nil {
			t.Fatal(err)
		}
		return Subject{ClientID: "c-" + user, Listener: "tcp", Identity: id}
	}
	ann, bob, nobody := enter("ann", "pw"), enter("bob", "pw"), enter("", "")
	expiring := Subject{Identity: &Identity{ExpiresAt: clk.now().Add(time.Hour)}}
	f := func(s Subject, want error) {
		t.Helper()
		if err := a.Still(s, netip.MustParseAddr("192.0.2.1")); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", s.Identity, err, want)
		}
	}
	for _, s := range []Subject{ann, bob, nobody, expiring} {
		f(s, nil)
	}
	writeFile(t, c.Password.File, userLine("ann", "pw2", ""))
	writeFile(t, c.ACL.File, "deny connect user=\"\"\nallow all topic=#")
	if err := a.Reload(); err != nil {
		t.Fatal(err)
	}
	f(ann, ErrNotAuthorized)    // another password
	f(bob, ErrNotAuthorized)    // gone
	f(nobody, ErrNotAuthorized) // the ACL
	ann = enter("ann", "pw2")
	f(ann, nil)
	if err := a.Ban(Ban{Client: "c-a*"}); err != nil {
		t.Fatal(err)
	}
	f(ann, ErrBanned)
	clk.add(time.Hour)
	f(expiring, ErrNotAuthorized)
}

func TestWatchReadsChangedFiles(t *testing.T) {
	file := writeFile(t, "acl", "allow publish topic=a")
	synctest.Test(t, func(t *testing.T) {
		c := quick("anonymous")
		c.ACL.File = file
		a := open(t, c, nil)
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Watch(ctx, func() { calls++ })
		}()
		f := func(text string, want int, topic string) {
			t.Helper()
			if text != "" {
				writeFile(t, file, text)
			}
			time.Sleep(2 * c.ReloadInterval.Std())
			synctest.Wait()
			if calls != want || !a.Permissions(Subject{}).Publish(topic, 0, false) {
				t.Errorf("%q: told %d times, want %d", text, calls, want)
			}
		}
		f("", 0, "a")
		f("allow publish topic=bb", 1, "bb")
		f("nonsense", 1, "bb")
		f("allow publish topic=c", 2, "c")
		f("", 2, "c")
		cancel()
		<-done
	})
}

// What somebody is writing is not read: half of a list of users would end the connections of the others.
func TestWatchWaitsForTheWriter(t *testing.T) {
	file := writeFile(t, "acl", "allow publish topic=a")
	synctest.Test(t, func(t *testing.T) {
		c := quick("anonymous")
		c.ACL.File = file
		a := open(t, c, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Watch(ctx, func() {})
		}()
		text := "allow publish topic=b\n"
		for range 200 { // two intervals
			text += "# more to come\n"
			writeFile(t, file, text)
			time.Sleep(c.ReloadInterval.Std() / 100)
			synctest.Wait()
			if !a.Permissions(Subject{}).Publish("a", 0, false) {
				t.Fatal("read while it is written")
			}
		}
		time.Sleep(2 * c.ReloadInterval.Std())
		synctest.Wait()
		if !a.Permissions(Subject{}).Publish("b", 0, false) {
			t.Error("not read afterwards")
		}
		cancel()
		<-done
	})
}

// What could not be read, for lack of a descriptor or of permission, is looked at again; what has a fault is not until it changes.
func TestUnreadFileIsLookedAtAgain(t *testing.T) {
	name := writeFile(t, "acl", "allow publish topic=a")
	s, err := newSource(name, ParseACL)
	if err != nil || s.changed() {
		t.Fatal(err)
	}
	writeFile(t, name, "nonsense")
	if err := s.reload(); err == nil || s.changed() {
		t.Errorf("a fault: %v, changed %v", err, s.changed())
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := s.reload(); err == nil || s.changed() {
		t.Errorf("gone: %v, changed %v", err, s.changed())
	}
	if err := os.Mkdir(name, 0o700); err != nil { // opens and cannot be read
		t.Fatal(err)
	}
	if err := s.reload(); err == nil || !s.changed() {
		t.Errorf("unread: %v, changed %v", err, s.changed())
	}
}

func TestConfigFaultsNameTheKey(t *testing.T) {
	f := func(want string, change func(*Config), listeners ...ListenerConfig) {
		t.Helper()
		c := DefaultConfig()
		change(&c)
		err := c.Validate(listeners...)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	with := func(m ...string) ListenerConfig { return ListenerConfig{Methods: m} }
	f("", func(*Config) {})
	f(`auth.methods[1]: "pasword" is not one of`, func(c *Config) { c.Methods = []string{"anonymous", "pasword"} })
	f("auth.methods[1]: anonymous stands twice", func(c *Config) { c.Methods = []string{"anonymous", "anonymous"} })
	f("auth.password.file: is missing", func(c *Config) { c.Methods = []string{"scram"} })
	f("auth.jwt.jwks_file: is missing", func(c *Config) { c.Methods = []string{"jwt"} })
	f("auth.jwt.issuer: is missing", func(*Config) {}, with("jwt"))
	f("auth.jwt.audience: is missing", func(*Config) {}, with("jwt"))
	f("auth.http.url: is missing", func(c *Config) { c.Methods = []string{"http"} })
	f("listeners[0].auth.methods: others have methods", func(*Config) {}, with(), with("anonymous"))
	f("", func(*Config) {}, with("certificate"), with("anonymous"))
	f("auth.methods: is empty and auth.acl.file is not", func(c *Config) { c.ACL.File = "x" })
	f(`auth.http.url: "http://auth.example": http is for loopback`, func(c *Config) { c.HTTP.URL = "http://auth.example" })
	f("auth.http.url: holds a user", func(c *Config) { c.HTTP.URL = "https://a:b@auth.example" })
	f("", func(c *Config) { c.HTTP.URL = "http://127.0.0.1:1" })
	f(`auth.jwt.algorithms: "HS256" is not allowed`, func(c *Config) { c.JWT.Algorithms = []string{"HS256"} })
	f(`auth.jwt.algorithms: "none" is not allowed`, func(c *Config) { c.JWT.Algorithms = []string{"none"} })
	f("auth.jwt.jwks_url: there is a jwks_file too", func(c *Config) { c.JWT.JWKSFile, c.JWT.JWKSURL = "a", "https://b" })
	f(`auth.acl.denied_311: "ignore" is neither`, func(c *Config) { c.ACL.Denied311 = "ignore" })
	f(`auth.http.when_down: "allow" is not`, func(c *Config) { c.HTTP.WhenDown = "allow" })
	f("auth.certificate.users[0].match: is missing", func(c *Config) { c.Certificate.Users = []CertificateUser{{User: "x"}} })
	f("auth.certificate.only_listed: nobody", func(c *Config) { c.Certificate.OnlyListed = true })
	f("auth.password.memory: 1KiB is not between", func(c *Config) { c.Password.Memory = 1 << 10 })
	f("auth.throttle.delay: 0 is not between", func(c *Config) { c.Throttle.Delay = 0 })
}
