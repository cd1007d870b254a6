package mqtt

import (
	"net/netip"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

const (
	addressBurst = 10 * time.Second // of connection_rate_per_address that may come at once
	addressTable = 100_000          // addresses whose rate is remembered, 80 bytes each; beyond it, one that is forgotten begins anew
)

// addresses counts the connections of a listener by where they come from.
type addresses struct {
	most  int     // connections at the same time; 0 is no limit
	wait  int     // of them, those that are not let in yet; 0 is no limit
	each  float64 // nanoseconds between two of them; 0 is no limit
	burst int64

	mu   sync.Mutex
	open map[netip.Prefix]int   // connections; with most
	come map[netip.Prefix]int   // those that are not let in yet; with wait
	due  map[netip.Prefix]int64 // of the next connection, monotonic; see meter
}

// newAddresses returns nil without a limit.
func newAddresses(cfg ListenerConfig, pending int) *addresses {
	if cfg.MaxConnectionsPerAddress == 0 && cfg.ConnectionRatePerAddress == 0 && pending == 0 {
		return nil
	}
	a := &addresses{
		most: cfg.MaxConnectionsPerAddress, wait: pending, burst: int64(addressBurst),
		open: map[netip.Prefix]int{}, come: map[netip.Prefix]int{}, due: map[netip.Prefix]int64{},
	}
	if n := cfg.ConnectionRatePerAddress; n > 0 {
		a.each = float64(time.Second) / float64(n)
	}
	return a
}

// enter counts a connection, or says which limit is in its way. Who has entered arrives or not, and leaves; a nil table has no limit.
func (a *addresses) enter(from netip.Addr) error {
	key := transport.Source(from)
	if a == nil || !key.IsValid() {
		return nil
	}
	now := monotonic()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wait > 0 && a.come[key] >= a.wait {
		return errTooManyPending
	}
	if a.each > 0 {
		due := max(a.due[key], now-a.burst) + int64(a.each)
		if due > now {
			return errTooFastFromAddress
		}
		a.roomLocked(now)
		a.due[key] = due
	}
	if a.most > 0 {
		if a.open[key] >= a.most {
			return errTooManyFromAddress
		}
		a.open[key]++
	}
	if a.wait > 0 {
		a.come[key]++
	}
	return nil
}

// arrived counts a connection that has been let in.
func (a *addresses) arrived(from netip.Addr) {
	key := transport.Source(from)
	if a == nil || a.wait == 0 || !key.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	take(a.come, key)
}

// take counts one less, and keeps no zero: only addresses that are there cost memory.
func take(counts map[netip.Prefix]int, key netip.Prefix) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// roomLocked forgets addresses when there are many: first those that have all of their burst again, then any.
func (a *addresses) roomLocked(now int64) {
	if len(a.due) < addressTable {
		return
	}
	for key, due := range a.due {
		if due <= now-a.burst {
			delete(a.due, key)
		}
	}
	for key := range a.due {
		if len(a.due) <= addressTable*3/4 {
			break
		}
		delete(a.due, key)
	}
}

// leave takes a connection away that has entered, and perhaps arrived.
func (a *addresses) leave(from netip.Addr, arrived bool) {
	key := transport.Source(from)
	if a == nil || !key.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.most > 0 {
		take(a.open, key)
	}
	if a.wait > 0 && !arrived {
		take(a.come, key)
	}
}
