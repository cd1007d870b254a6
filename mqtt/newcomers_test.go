package mqtt

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// porch is where newcomers of a test come to.
type porch struct {
	t   *testing.T
	all *newcomers
	mu  sync.Mutex
	out []*newcomer // who was sent away
}

func newPorch(t *testing.T, places int) *porch {
	p := &porch{t: t}
	p.all = newNewcomers(places, 10*time.Second, func(n *newcomer) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.out = append(p.out, n)
	})
	t.Cleanup(p.all.close)
	return p
}

// come lets n come from an address; who gets a place begins to wait for the peer at once.
func (p *porch) come(addr string, n int) (list []*newcomer) {
	p.t.Helper()
	for range n {
		a := netip.MustParseAddr(addr)
		c, err := p.all.enter(&net.TCPAddr{IP: net.IP(a.AsSlice())}, true, a)
		if c == nil || err != nil {
			p.t.Fatalf("%s: no room: %v", addr, err)
		}
		c.serve(true, func() {})
		list = append(list, c)
	}
	return list
}

func (p *porch) placed(list []*newcomer) (n int) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	for _, c := range list {
		if c.placed && !c.gone {
			n++
		}
	}
	return n
}

func (p *porch) want(what string, list []*newcomer, n int) {
	p.t.Helper()
	if got := p.placed(list); got != n {
		p.t.Errorf("%s: %d have a place, want %d", what, got, n)
	}
}

func (p *porch) empty(lists ...[]*newcomer) {
	p.t.Helper()
	for _, list := range lists {
		for _, c := range list {
			c.leave()
			c.leave() // again
		}
	}
	if p.all.held != 0 || p.all.waiting != 0 || len(p.all.from) != 0 {
		p.t.Errorf("%d places, %d in the room, %d addresses stay", p.all.held, p.all.waiting, len(p.all.from))
	}
}

const (
	slowAddress = "192.0.2.1"
	goodAddress = "198.51.100.7"
)

func TestSlowNewcomersLoseTheirPlacesToOtherAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 8)
		slow := p.come(slowAddress, 12)
		p.want("slow", slow, 8)
		good := p.come(goodAddress, 2)
		time.Sleep(900 * time.Millisecond)
		p.want("before patience is over", good, 0)
		time.Sleep(300 * time.Millisecond)
		p.want("good", good, 2)
		p.want("slow", slow, 6)
		p.mu.Lock()
		if len(p.out) != 2 || p.out[0].key.Addr().String() != slowAddress {
			t.Errorf("sent away: %v", p.out)
		}
		p.mu.Unlock()
		p.empty(slow, good)
	})
}

// Who waits for us is not slow, however long.
func TestNewcomersWhoWaitForTheGatewayStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 4)
		busy := p.come(slowAddress, 4)
		for _, n := range busy {
			n.waitsFor(false)
		}
		good := p.come(goodAddress, 1)
		time.Sleep(9 * time.Second)
		p.want("good", good, 0)
		busy[2].waitsFor(true)
		time.Sleep(1200 * time.Millisecond)
		p.want("good", good, 1)
		if p.placed(busy[2:3]) != 0 {
			t.Error("another one than the slow one is gone")
		}
		p.empty(busy, good)
	})
}

// Bytes that come one by one do not buy time.
func TestNewcomersWhoTrickleAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 4)
		slow := p.come(slowAddress, 4)
		good := p.come(goodAddress, 1)
		for range 4 {
			time.Sleep(300 * time.Millisecond)
			for _, n := range slow {
				n.waitsFor(false)
				n.waitsFor(true)
			}
		}
		time.Sleep(5 * lookEvery / 2)
		p.want("good", good, 1)
		p.empty(slow, good)
	})
}

// Nobody loses a place to his own address: behind it may be a fleet on a slow line.
func TestNewcomersOfOneAddressWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 4)
		fleet := p.come(goodAddress, 6)
		time.Sleep(9500 * time.Millisecond)
		p.want("fleet", fleet[:4], 4)
		fleet[0].leave()
		p.want("fleet", fleet[4:], 1)
		p.empty(fleet)
	})
}

// Places that become free go to the address that has the fewest.
func TestFreePlacesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 6)
		many := p.come("192.0.2.1", 8)
		few := p.come("192.0.2.2", 2)
		six := p.come("2001:db8::1", 1)
		same := p.come("2001:db8::2", 1) // of the same /64
		for _, n := range many[:5] {
			n.leave()
		}
		p.want("many", many, 2)
		p.want("few", few, 2)
		if a, b := p.placed(six), p.placed(same); a != 1 || b != 1 {
			t.Errorf("a /64 has %d and %d places, want 1 and 1", a, b)
		}
		p.empty(many, few, six, same)
	})
}

// A room that is full of an address whose newcomers are slow takes no more of it: others would wait in the kernel behind them.
func TestRoomIsNotForWhoCrowds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 16)
		slow := p.come(slowAddress, 48)
		a := netip.MustParseAddr(goodAddress)
		remote := &net.TCPAddr{IP: net.IP(a.AsSlice())}
		if n, err := p.all.enter(remote, true, a); n != nil || err != nil {
			t.Fatalf("a full room: %v, %v", n, err)
		}
		time.Sleep(5200 * time.Millisecond)
		<-p.all.more
		s := netip.MustParseAddr(slowAddress)
		if n, err := p.all.enter(&net.TCPAddr{IP: net.IP(s.AsSlice())}, true, s); n != nil || err == nil {
			t.Errorf("who crowds: %v, %v", n, err)
		}
		good := p.come(goodAddress, 1)
		time.Sleep(5 * lookEvery / 2)
		p.want("good", good, 1)
		p.empty(slow, good)
	})
}

// Addresses without end give up places one after the other.
func TestSlowNewcomersOfManyAddressesMakePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 16)
		var slow []*newcomer
		for i := range 30 {
			slow = append(slow, p.come(fmt.Sprintf("192.0.2.%d", i+1), 1)...)
		}
		good := p.come(goodAddress, 2)
		time.Sleep(1200 * time.Millisecond)
		p.want("good", good, 1)
		good[0].leave()
		time.Sleep(1200 * time.Millisecond)
		p.want("good", good, 1)
		p.empty(slow, good)
	})
}

// The address behind a proxy counts, once the proxy has told it.
func TestNewcomersBehindAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPorch(t, 4)
		proxy := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}
		through := func(addr string, n int) (list []*newcomer) {
			for range n {
				c, err := p.all.enter(proxy, false, netip.Addr{})
				if c == nil || err != nil {
					t.Fatal(err)
				}
				a := netip.MustParseAddr(addr)
				if err := c.name(&net.TCPAddr{IP: net.IP(a.AsSlice())}, a); err != nil {
					t.Fatal(err)
				}
				c.serve(true, func() {})
				list = append(list, c)
			}
			return list
		}
		silent, err := p.all.enter(proxy, false, netip.Addr{}) // of a proxy that says nothing
		if err != nil {
			t.Fatal(err)
		}
		slow := through(slowAddress, 6)
		good := through(goodAddress, 1)
		time.Sleep(1200 * time.Millisecond)
		p.want("good", good, 1)
		p.want("slow", slow, 3)
		p.empty(slow, good, []*newcomer{silent})
	})
}
