package audit

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
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
	missing tally // events that were not let through and that nobody was told of yet
}

// tally counts missing events by where they came from: who is behind a storm is the first thing to know about it.
type tally struct {
	by    map[string]uint64 // by source; "" are those for whom there was no room, or that have none
	since time.Time
}

const tallied = 8 // sources that are counted by themselves in a summary; a storm from everywhere is told of as one

func (t *tally) add(now time.Time, remote string) {
	if len(t.by) == 0 {
		t.by, t.since = map[string]uint64{}, now
	}
	source := ""
	if remote != "" {
		source = sourceOf(remote)
	}
	if _, known := t.by[source]; !known && len(t.by) >= tallied {
		source = ""
	}
	t.by[source]++
}

// take returns summaries of what was counted, the largest first, and begins anew.
func (t *tally) take(now time.Time, name string) []*Event {
	var list []*Event
	for source, n := range t.by {
		from := source
		if from == "" {
			from = "elsewhere"
		}
		list = append(list, &Event{
			Time: now, Name: Suppressed, What: name, Remote: source, Missing: n,
			Detail: fmt.Sprintf("%d more of %s from %s in %.0f s", n, name, from, math.Ceil(now.Sub(t.since).Seconds())),
		})
	}
	slices.SortFunc(list, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(b.Missing, a.Missing), cmp.Compare(a.Remote, b.Remote))
	})
	*t = tally{}
	return list
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
	if p := transport.Source(ap.Addr()); !p.IsSingleIP() {
		return p.String() // an IPv6 network
	}
	return ap.Addr().Unmap().WithZone("").String()
}
