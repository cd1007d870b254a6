package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// The table finds what a walk over all bans finds.
func TestBanTableFindsWhatMatches(t *testing.T) {
	prefix := netip.MustParsePrefix
	list := []Ban{
		{Client: "c1"},
		{Client: "c*"},
		{Client: `c\*`},
		{User: "ann"},
		{User: "b?b"},
		{Address: prefix("192.0.2.1/32")},
		{Address: prefix("198.51.100.0/24")},
		{Address: prefix("2001:db8::/64")},
		{Client: "d", Address: prefix("192.0.2.1/32")},
		{Client: "e", User: "eve"},
		{Client: "f*", User: "kim"},
		{Address: prefix("192.0.2.9/32"), User: "x"},
		{Address: prefix("192.0.2.9/30")},
		{Address: prefix("::/0"), User: "kim"},
		{Address: prefix("0.0.0.0/0"), User: "eve"},
	}
	clients := []string{"", "c1", "c", "c*", "d", "e", "f1"}
	users := []string{"", "ann", "bob", "eve", "kim", "x"}
	addresses := []string{"192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2", "192.0.2.9", "198.51.100.9", "2001:db8::9", "2001:db9::1"}
	always := func(Ban) bool { return true }
	for i := range 1 << len(list) {
		if i%37 != 0 { // a part of all sets
			continue
		}
		var some []Ban
		for j, b := range list {
			if i>>j&1 == 1 {
				some = append(some, b)
			}
		}
		table := newBanTable(some)
		for _, c := range clients {
			for _, u := range users {
				for _, a := range addresses {
					addr, want := netip.MustParseAddr(a), false
					for _, b := range some {
						want = want || b.matches(c, u, addr)
					}
					if got := table.any(time.Time{}, c, u, addr, always); got != want {
						t.Fatalf("client %q, user %q, %s, of %v: %v", c, u, a, some, got)
					}
				}
			}
		}
	}
}

func TestBansOutliveARestart(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bans")
	start := func() *Auth {
		a, err := New(DefaultConfig(), Options{Listeners: map[string]ListenerConfig{"tcp": {}}, BanFile: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		return a
	}
	a := start()
	if err := a.Ban(Ban{Client: "press-7", Until: time.Now().Add(time.Hour).Truncate(time.Second).UTC(), Reason: "stolen"}); err != nil {
		t.Fatal(err)
	}
	b := start()
	if list := b.Bans(); len(list) != 1 || list[0].Client != "press-7" || list[0].Reason != "stolen" || list[0].Until.IsZero() {
		t.Errorf("%+v", list)
	}
	if n, err := b.Unban(Ban{Client: "press-7"}); n != 1 || err != nil {
		t.Error(n, err)
	}
	if list := start().Bans(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// Failures from one address keep it out for some time; the addresses that are excepted are never.
func TestAutomaticBans(t *testing.T) {
	clk := newClock()
	c := quick("password")
	c.Password.File = writeFile(t, "users", userLine("ann", "ann", ""))
	c.Ban.Auto.Failures, c.Ban.Auto.Except = 3, []string{"198.51.100.0/24"}
	c.Ban.Auto.Within, c.Ban.Auto.For = unit.Duration(time.Minute), unit.Duration(10*time.Minute)
	a := open(t, c, clk.now)
	try := func(password, address string, want error) {
		t.Helper()
		r := request("c", "ann", password)
		r.Remote = netip.MustParseAddr(address)
		if _, err := a.Authenticate(t.Context(), r); !errors.Is(err, want) {
			t.Errorf("%s from %s: %v, want %v", password, address, err, want)
		}
	}
	try("ann", "192.0.2.1", nil)
	subject := Subject{ClientID: "c", Listener: "tcp", Identity: &Identity{User: "ann"}}
	for range 2 {
		try("bob", "192.0.2.1", ErrBadCredentials)
	}
	clk.add(time.Minute) // forgotten
	for range 3 {
		try("bob", "192.0.2.1", ErrBadCredentials)
	}
	try("ann", "192.0.2.1", ErrBanned)
	try("ann", "192.0.2.2", nil)
	if err := a.Screen(netip.MustParseAddr("::ffff:192.0.2.1")); !errors.Is(err, ErrBanned) {
		t.Errorf("screen: %v", err)
	}
	if err := a.Still(subject, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("who is in has to go: %v", err)
	}
	if list := a.Bans(); len(list) != 1 || !list[0].Automatic || !strings.Contains(list[0].Reason, "3 failures") {
		t.Errorf("%+v", list)
	}
	clk.add(10 * time.Minute)
	try("ann", "192.0.2.1", nil)

	// Once the ban is over, it is all counted anew, though the window that the first failures were in is not over.
	a.autoBan.cfg.Within, a.autoBan.cfg.For = unit.Duration(time.Hour), unit.Duration(time.Minute)
	for range 3 {
		for range 3 {
			try("bob", "203.0.113.1", ErrBadCredentials)
		}
		try("ann", "203.0.113.1", ErrBanned)
		clk.add(time.Minute)
	}

	for i := range 3 { // an IPv6 /64 is one address
		try("bob", fmt.Sprintf("2001:db8::%d", i+1), ErrBadCredentials)
	}
	try("ann", "2001:db8::ffff", ErrBanned)
	for range 10 {
		try("bob", "198.51.100.7", ErrBadCredentials)
	}
	try("ann", "198.51.100.7", nil)
}

// Bans in memory have a bound: the one that ends first makes room.
func TestBansInMemoryAreBounded(t *testing.T) {
	clk := newClock()
	b := newBans(clk.now)
	var list []Ban
	for i := range maxBansInMemory {
		list = append(list, Ban{Client: fmt.Sprint("c", i), Until: clk.now().Add(time.Duration(i+1) * time.Second), Automatic: true})
	}
	b.added = newBanTable(list)
	if err := b.add(Ban{Client: "new", Until: clk.now().Add(time.Hour), Automatic: true}); err != nil {
		t.Fatal(err)
	}
	if n := len(b.list()); n != maxBansInMemory || b.banned("c0", "", netip.Addr{}) || !b.banned("new", "", netip.Addr{}) {
		t.Errorf("%d bans", n)
	}
}

// No ban is written that cannot be read: the file would be of no use for those that follow, and for the next start.
func TestBanFileStaysReadable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bans")
	start := func() *Auth {
		t.Helper()
		a, err := New(DefaultConfig(), Options{Listeners: map[string]ListenerConfig{"tcp": {}}, BanFile: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		return a
	}
	a := start()
	far, err := time.Parse(time.RFC3339, "9999-12-31T23:59:59-23:59")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("\"", maxLine)
	for _, b := range []Ban{
		{Client: "\xff"},
		{User: "\xff"},
		{Client: "c", Reason: "\xff"},
		{Client: "c", Reason: "a\nuser=\"*\""},
		{Client: "c\r"},
		{User: "u\x00"},
		{Client: "c", Until: far},
		{Client: long},
		{Client: "c", Reason: long},
	} {
		if err := a.Ban(b); err == nil {
			t.Errorf("%.40q is taken", b)
		}
	}
	odd := []Ban{
		{Client: `a "b" \`, User: `#`, Reason: "tab\tand \x1b[31m"},
		{Client: strings.Repeat(`"`, maxLine/4)},
		{User: "x=y until=1", Until: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)},
		{Client: "gone", Until: time.Unix(0, 0)},
	}
	for _, b := range odd {
		if err := a.Ban(b); err != nil {
			t.Errorf("%.40q: %v", b, err)
		}
	}
	list := start().Bans()
	if len(list) != 3 {
		t.Fatalf("%.200q", list)
	}
	for i, b := range list {
		if !b.same(odd[i]) || b.Reason != odd[i].Reason || !b.Until.Equal(odd[i].Until) {
			t.Errorf("%.80q, want %.80q", b, odd[i])
		}
	}
}

// Clients have the short spelling of an IPv4 address, so a ban has to as well.
func TestParseAddressKnowsBothSpellings(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		got := ""
		if p, err := ParseAddress(text); err == nil {
			got = p.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	f("192.0.2.1", "192.0.2.1/32")
	f("::ffff:192.0.2.1", "192.0.2.1/32")
	f("192.0.2.1/24", "192.0.2.0/24")
	f("::ffff:192.0.2.1/120", "192.0.2.0/24")
	f("::ffff:0:0/96", "0.0.0.0/0")
	f("::ffff:192.0.2.1/64", "") // a part of the IPv6 addresses, and no IPv4 one
	f("2001:db8::1/64", "2001:db8::/64")
	f("fe80::1%eth0", "")
	f("fe80::1%eth0/64", "")
	f("192.0.2.1/33", "")
	f("192.0.2.1/-1", "")
	f("", "")
}
