package auth

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestPasswordAccepts(t *testing.T) {
	c := quick("password")
	c.Password.File = writeFile(t, "users", "# people\n\n"+userLine("ann", "secret", "ops,lab")+userLine("bob", "other", ""))
	a := open(t, c, nil)
	f := func(user, password string, want error) {
		t.Helper()
		id, err := a.Authenticate(t.Context(), request("c", user, password))
		if !errors.Is(err, want) {
			t.Fatalf("%s/%s: %v, want %v", user, password, err, want)
		}
		if err == nil && (id.User != user || id.Method != MethodPassword) {
			t.Errorf("%+v", id)
		}
	}
	f("ann", "secret", nil)
	f("ann", "secret", nil) // from the cache
	f("bob", "other", nil)
	f("ann", "other", ErrBadCredentials)
	f("eve", "secret", ErrBadCredentials)
	f("ann", "", ErrBadCredentials)
	f("", "", ErrNotAuthorized)
	if id, _ := a.Authenticate(t.Context(), request("c", "ann", "secret")); strings.Join(id.Groups, " ") != "ops lab" {
		t.Errorf("groups %v", id.Groups)
	}
}

// Whoever measures must not learn which names exist: every attempt without a known right password hashes once, at equal costs.
func TestPasswordUnknownUserCostsTheSame(t *testing.T) {
	c := quick("password")
	scramOnly := credential{user: "kim"}
	scramOnly.scram, _ = newScramKeys("x", minScramIterations)
	c.Password.File = writeFile(t, "users", userLine("ann", "secret", "")+scramOnly.String()+"\n")
	a := open(t, c, nil)
	var costs []HashParams
	inner := a.gate.key
	a.gate.key = func(password, salt []byte, time, memory uint32, threads uint8, n uint32) []byte {
		costs = append(costs, HashParams{memory, time, threads})
		return inner(password, salt, time, memory, threads, n)
	}
	for _, user := range []string{"ann", "eve", "kim", "", "ann"} {
		costs = nil
		r := request("c", user, "wrong")
		r.HasUser = true
		_, err := a.Authenticate(t.Context(), r)
		if !errors.Is(err, ErrBadCredentials) || len(costs) != 1 || costs[0] != cheap {
			t.Errorf("user %q: %v, hashed %v", user, err, costs)
		}
	}
}

func TestPasswordIsNotHashedTwiceWithinTheCache(t *testing.T) {
	clk := newClock()
	c := quick("password")
	c.Password.CacheTTL = 1e9 * 60
	file := writeFile(t, "users", userLine("ann", "secret", ""))
	c.Password.File = file
	a := open(t, c, clk.now)
	f := func(password string, hashes uint64, want error) {
		t.Helper()
		before := a.gate.hashes.Load()
		_, err := a.Authenticate(t.Context(), request("c", "ann", password))
		if got := a.gate.hashes.Load() - before; got != hashes || !errors.Is(err, want) {
			t.Errorf("%d hashes, want %d; %v", got, hashes, err)
		}
	}
	f("secret", 1, nil)
	f("secret", 0, nil)
	f("wrong", 1, ErrBadCredentials)
	f("wrong", 1, ErrBadCredentials)
	clk.add(61 * time.Second)
	f("secret", 1, nil)
	writeFile(t, file, userLine("ann", "new", ""))
	if err := a.ReloadPasswords(); err != nil {
		t.Fatal(err)
	}
	f("secret", 1, ErrBadCredentials) // the old one is forgotten with its line
	f("new", 1, nil)
}

// A storm takes no more memory than the gate has, waits in a queue, and is told when that is full or too slow.
func TestGateBoundsMemoryAndQueue(t *testing.T) {
	g := newGate(256, 8, 100, time.Minute)
	var running, peak atomic.Int64
	release := make(chan struct{})
	g.key = func(_, _ []byte, _, memory uint32, _ uint8, n uint32) []byte {
		now := running.Add(int64(memory))
		defer running.Add(-int64(memory))
		for old := peak.Load(); now > old && !peak.CompareAndSwap(old, now); old = peak.Load() {
		}
		<-release
		return make([]byte, n)
	}
	h := &hash{HashParams: HashParams{Memory: 100, Time: 1, Threads: 1}, sum: make([]byte, 32)}
	var wg sync.WaitGroup
	var busy atomic.Int64
	for range 200 {
		wg.Go(func() {
			if _, err := g.verify(context.Background(), h, nil); errors.Is(err, ErrBusy) {
				busy.Add(1)
			}
		})
	}
	for busy.Load() < 200-108 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if peak.Load() > 256 || busy.Load() != 200-108 {
		t.Errorf("peak %d KiB, %d were told busy", peak.Load(), busy.Load())
	}

	g = newGate(256, 1, 10, time.Millisecond)
	block := make(chan struct{})
	g.key = func(_, _ []byte, _, _ uint32, _ uint8, n uint32) []byte { <-block; return make([]byte, n) }
	wg.Go(func() { _, _ = g.verify(context.Background(), h, nil) })
	for g.hashes.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := g.verify(context.Background(), h, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("after the deadline of the queue: %v", err)
	}
	close(block)
	wg.Wait()
}

func TestPasswordFileFaultsNameTheLine(t *testing.T) {
	good := strings.TrimSpace(userLine("ann", "x", ""))
	f := func(text, want string) {
		t.Helper()
		_, err := ParsePasswords("users", []byte(text), 1<<20)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	f("ann", "users:1: want USER:HASH")
	f("# x\n\nann:plain", "users:3: hash is not $argon2id")
	f(good+"\n"+good, `users:2: user "ann" is already in line 1`)
	f(":"+good[4:], "user name is empty")
	f(" "+good, "space around it")
	f("a:b:c:d:e", "want USER:HASH")
	f(strings.Replace(good, "v=19", "v=16", 1), "v=19 is")
	f(strings.Replace(good, "m=64", "m=2097152", 1), "is not between")
	f(strings.Replace(good, "t=1", "t=0", 1), "t=0 is not between")
	f(strings.Replace(good, "p=1", "p=257", 1), "is not m=M,t=T,p=P")
	f(strings.Replace(good, "m=64,t=1", "t=1,m=64", 1), "is not m=M,t=T,p=P")
	f("ann:$argon2id$v=19$m=64,t=1,p=1$!!$AAAA", "the salt is not")
	f("ann:$argon2id$v=19$m=64,t=1,p=1$AAAAAAAAAAAAAAAA$AAAA", "the hash is not")
	f("ann::$scram-sha-256$i=1$AAAA$A$A", "iterations are not between")
	f("ann::scram", "scram is not")
	f(good+"::a,,b", `group ""`)
	if _, err := ParsePasswords("users", []byte(good), 32); err == nil || !strings.Contains(err.Error(), "more than the memory for hashing") {
		t.Errorf("a hash beyond the memory: %v", err)
	}
}

// A hash of the reference implementation's own tests.
func TestPasswordReadsForeignHashes(t *testing.T) {
	h, err := parseHash("$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := newGate(1<<20, 1, 1, time.Minute).verify(t.Context(), h, []byte("password")); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestPasswordFileIsEdited(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "users")
	set := func(ch PasswordChange, created bool) {
		t.Helper()
		ch.Params, ch.Iterations = cheap, minScramIterations
		if got, err := SetPassword(file, ch); err != nil || got != created {
			t.Fatalf("created %v, %v", got, err)
		}
	}
	verify := func(user, password string, want bool) {
		t.Helper()
		if got, err := VerifyPassword(file, user, []byte(password)); err != nil || got != want {
			t.Errorf("%s/%s: %v, %v", user, password, got, err)
		}
	}
	set(PasswordChange{User: "ann", Password: []byte("one"), Hash: true, Groups: []string{"ops"}}, true)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	data, _ := os.ReadFile(file)
	writeFile(t, file, "# kept\n"+string(data)+"\n# kept too\n")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	set(PasswordChange{User: "bob", Password: []byte("two"), Scram: true}, true)
	set(PasswordChange{User: "ann", Password: []byte("three"), Hash: true, Scram: true}, false)
	verify("ann", "three", true)
	verify("ann", "one", false)
	verify("bob", "two", true)
	verify("bob", "three", false)
	data, _ = os.ReadFile(file)
	if text := string(data); !strings.HasPrefix(text, "# kept\nann:") || !strings.Contains(text, "\n# kept too\nbob:") || strings.Count(text, "\n") != 5 {
		t.Errorf("%s", text)
	}
	p, err := ParsePasswords(file, data, 0)
	if err != nil {
		t.Fatal(err)
	}
	if u := p.Users(); len(u) != 2 || u[0].Name != "ann" || !u[0].Password || !u[0].Scram || strings.Join(u[0].Groups, "") != "ops" || u[1].Password {
		t.Errorf("%+v", u)
	}
	if err := DeleteUser(file, "ann"); err != nil {
		t.Fatal(err)
	}
	if err := DeleteUser(file, "ann"); !errors.Is(err, ErrNoUser) {
		t.Errorf("deleted twice: %v", err)
	}
	if info, _ := os.Stat(file); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	writeFile(t, file, "ann:broken\n")
	if _, err := SetPassword(file, PasswordChange{User: "x", Password: []byte("y"), Hash: true, Params: cheap}); err == nil || !strings.Contains(err.Error(), "users:1: ") {
		t.Errorf("a file with a fault: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPasswordFileEditsDoNotLoseEachOther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := SetPassword(file, PasswordChange{User: string(rune('a' + i)), Password: []byte("x"), Hash: true, Params: cheap})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	data, _ := os.ReadFile(file)
	if p, err := ParsePasswords(file, data, 0); err != nil || p.Len() != 20 {
		t.Errorf("%d users, %v", p.Len(), err)
	}
}

func FuzzParsePasswords(f *testing.F) {
	f.Add(userLine("ann", "x", "a,b"))
	k, _ := newScramKeys("x", minScramIterations)
	f.Add("bob::" + k.String() + "\n# c\n\ncarl::")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePasswords("f", []byte(text), 1<<20)
		if err != nil {
			return
		}
		for _, c := range p.users {
			again, err := parseCredential(c.String())
			if err != nil || again.String() != c.String() {
				t.Fatalf("%q is written as %q: %v", text, c.String(), err)
			}
		}
	})
}
