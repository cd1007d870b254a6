package auth

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manyBans are n of each kind that is looked up by what it names.
func manyBans(n int) (list []Ban) {
	for i := range n {
		list = append(list,
			Ban{Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)},
			Ban{Address: netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 0, byte(i >> 16), byte(i >> 8), byte(i)}), 64)},
			Ban{Client: fmt.Sprint("client-", i), Reason: "stolen"},
			Ban{User: fmt.Sprint("user-", i), Until: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)},
		)
	}
	return list
}

// Thousands of bans cost the start a moment and a look-up no more than one does: none is walked over.
func TestThousandsOfBans(t *testing.T) {
	const n = 2500
	list := manyBans(n)
	var text strings.Builder
	for _, b := range list {
		fmt.Fprintln(&text, b)
	}
	name := filepath.Join(t.TempDir(), "bans")
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	a, err := New(DefaultConfig(), Options{Listeners: map[string]ListenerConfig{"tcp": {}}, BanFile: name})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	t.Logf("%d bans: %d bytes, read in %v", len(list), text.Len(), time.Since(began))
	if got := len(a.bans.list()); got != 4*n {
		t.Fatalf("%d bans are in force, want %d", got, 4*n)
	}
	file, _ := a.bans.tables()
	if len(file.rest) != 0 || len(file.lengths) != 2 {
		t.Errorf("a look-up walks over %d bans and %d lengths", len(file.rest), len(file.lengths))
	}
	f := func(client, user, addr string, want bool) {
		t.Helper()
		if got := a.bans.banned(client, user, netip.MustParseAddr(addr)); got != want {
			t.Errorf("client %q, user %q, %s: %v", client, user, addr, got)
		}
	}
	f("c", "u", "10.0.9.195", true) // 2499
	f("c", "u", "::ffff:10.0.9.195", true)
	f("c", "u", "10.0.9.196", false)
	f("c", "u", "2001:db8:0:9c3::7", true)
	f("c", "u", "2001:db8:0:9c4::7", false)
	f("client-2499", "u", "192.0.2.1", true)
	f("client-2500", "u", "192.0.2.1", false)
	f("c", "user-2499", "192.0.2.1", true)
	f("c", "user-2500", "192.0.2.1", false)
	began = time.Now()
	if err := a.bans.add(Ban{Client: "one more"}); err != nil {
		t.Fatal(err)
	}
	t.Logf("one more in %v", time.Since(began))
	f("one more", "u", "192.0.2.1", true)
	if got, err := a.bans.remove(Ban{Client: "client-2499"}); got != 1 || err != nil {
		t.Errorf("%d removed: %v", got, err)
	}
	f("client-2499", "u", "192.0.2.1", false)
}

func BenchmarkBanLookup(b *testing.B) {
	for _, n := range []int{1, 2500} {
		table := newBanTable(manyBans(n))
		addr := netip.MustParseAddr("192.0.2.1")
		now := time.Now()
		b.Run(fmt.Sprint(4*n), func(b *testing.B) {
			for b.Loop() {
				table.any(now, "client", "user", addr, func(Ban) bool { return true })
			}
		})
	}
}
