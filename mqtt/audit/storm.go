package audit

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

const (
	burstSeconds = 10  // of the rate that may come at once
	sources      = 256 // buckets for the addresses of one name; those that share one share its rate
	sourceShare  = 4   // an address may have this part of a name's rate
)

// bucket holds tokens: what may come now.
type bucket struct {
	tokens float64
	at     time.Time
}

// fill adds what has come due, and reports whether there is a token.
func (b *bucket) fill(now time.Time, rate, burst float64) bool {
	if b.at.IsZero() {
		b.tokens = burst
	} else if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens = min(burst, b.tokens+d*rate)
	}
	b.at = now
	return b.tokens >= 1
}

// storm bounds the events of one name.
type storm struct {
	all     bucket
	from    [sources]bucket
	missing uint64 // events that were not let through and that nobody was told of yet
}

var sourceSeed = maphash.MakeSeed() // so that nobody can choose with whom he shares a bucket

// pass reports whether an event from there may be recorded.
func (s *storm) pass(now time.Time, remote string, rate float64) bool {
	if !s.all.fill(now, rate, rate*burstSeconds) {
		return false
	}
	if remote != "" {
		part := rate / sourceShare
		b := &s.from[maphash.String(sourceSeed, sourceOf(remote))%sources]
		if !b.fill(now, part, max(1, part*burstSeconds)) {
			return false
		}
		b.tokens--
	}
	s.all.tokens--
	return true
}

// sourceOf is what counts as one address.
func sourceOf(remote string) string {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	return transport.Source(ap.Addr()).String()
}
