package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// Request is what somebody wants to have again.
type Request struct {
	Stream   string   `json:"stream"`
	From     string   `json:"from,omitempty"` // a bound, see parseBound; empty is all that there is
	To       string   `json:"to,omitempty"`   // likewise; empty is the log end
	Filters  []string `json:"filters,omitempty"`
	ClientID string   `json:"client_id,omitempty"`

	// Where to. One of Route, Upstream and ToMQTT.
	Route    string `json:"route,omitempty"`
	Upstream string `json:"upstream,omitempty"`
	Topic    string `json:"topic,omitempty"` // of Upstream, a template; empty is ${topic}
	ToMQTT   bool   `json:"to_mqtt,omitempty"`
	Prefix   string `json:"prefix,omitempty"` // of the topics, with ToMQTT

	Rate   string `json:"rate,omitempty"` // 5000/s, 5MiB/s, or 0 for no limit; empty is that of the configuration
	DryRun bool   `json:"dry_run,omitempty"`
}

// Target is where to, in words.
func (r *Request) Target() string {
	switch {
	case r.ToMQTT && r.Prefix != "":
		return "mqtt, below " + r.Prefix
	case r.ToMQTT:
		return "mqtt"
	case r.Route != "":
		return "route " + r.Route
	case r.Topic != "":
		return "upstream " + r.Upstream + ", topic " + r.Topic
	}
	return "upstream " + r.Upstream
}

func (r *Request) validate() error {
	targets := 0
	for _, has := range []bool{r.Route != "", r.Upstream != "", r.ToMQTT} {
		if has {
			targets++
		}
	}
	switch {
	case targets == 0:
		return invalid("nowhere to send to: give a route, an upstream or to-mqtt")
	case targets > 1:
		return invalid("a route, an upstream and to-mqtt do not go together: give one of them")
	case r.Topic != "" && r.Upstream == "":
		return invalid("a topic goes with an upstream; a route has its own")
	case r.Prefix != "" && !r.ToMQTT:
		return invalid("a prefix goes with to-mqtt")
	case r.Stream == "":
		return invalid("no stream is given")
	}
	if err := checkPrefix(r.Prefix); err != nil {
		return err
	}
	for _, f := range r.Filters {
		if err := spool.CheckFilter(f); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	return nil
}

// Check reports what is wrong with a request whatever the gateway has: what whoever asks can know before asking. The error is one of
// spool.ErrInvalid.
func (r Request) Check() error {
	r.Stream = cmp.Or(r.Stream, spool.DefaultStream)
	if err := r.validate(); err != nil {
		return err
	}
	now := time.Now()
	from, err := parseBound("from", r.From, now)
	if err != nil {
		return err
	}
	to, err := parseBound("to", r.To, now)
	if err != nil {
		return err
	}
	if from.byTime() && to.byTime() && !from.at.Before(to.at) {
		return invalid("from %s is not before to %s", stamp(from.at), stamp(to.at))
	}
	_, err = parseRate(r.Rate, 0)
	return err
}

func checkPrefix(p string) error {
	switch {
	case strings.ContainsAny(p, "+#\x00"):
		return invalid("prefix %q: a topic has no +, # and U+0000", p)
	case strings.HasPrefix(p, "$"):
		return invalid("prefix %q: topics that begin with $ are the gateway's own", p)
	case len(p) > 1024:
		return invalid("prefix of %d bytes: at most 1024", len(p))
	}
	return nil
}

// bound is one end of a range: a time, an offset of every partition, or offsets of some.
type bound struct {
	at      time.Time
	offset  *spool.Offset
	offsets map[int]spool.Offset
}

func (b *bound) byTime() bool { return b != nil && !b.at.IsZero() }

// names reports whether the bound leaves a partition in.
func (b *bound) names(p int) bool {
	if b == nil || b.offsets == nil {
		return true
	}
	_, ok := b.offsets[p]
	return ok
}

func (b *bound) offsetOf(p int) (spool.Offset, bool) {
	if b == nil {
		return 0, false
	}
	if b.offset != nil {
		return *b.offset, true
	}
	o, ok := b.offsets[p]
	return o, ok
}

// parseBound reads 2026-11-30T16:00:00Z, now, -2h (before now), 17 (an offset of each partition), or 0:17,3:20 (of those partitions, and
// no others). Empty is no bound: nil.
func parseBound(name, s string, now time.Time) (*bound, error) {
	wrong := func() error {
		return invalid("%s %q: want a time like 2026-11-30T16:00:00Z, how long ago like -2h, now, an offset, or offsets of partitions like 0:17,3:20", name, s)
	}
	switch {
	case s == "":
		return nil, nil
	case s == "now":
		return &bound{at: now}, nil
	case strings.HasPrefix(s, "-"):
		d, err := parseSpan(s[1:])
		if err != nil || d <= 0 {
			return nil, wrong()
		}
		return &bound{at: now.Add(-d)}, nil
	}
	if o, err := strconv.ParseUint(s, 10, 63); err == nil {
		at := spool.Offset(o)
		return &bound{offset: &at}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return &bound{at: t}, nil
	}
	b := &bound{offsets: make(map[int]spool.Offset)}
	for part := range strings.SplitSeq(s, ",") {
		p, o, ok := strings.Cut(part, ":")
		n, err1 := strconv.ParseUint(p, 10, 16)
		off, err2 := strconv.ParseUint(o, 10, 63)
		if !ok || err1 != nil || err2 != nil {
			return nil, wrong()
		}
		if _, twice := b.offsets[int(n)]; twice {
			return nil, invalid("%s %q: partition %d comes twice", name, s, n)
		}
		b.offsets[int(n)] = spool.Offset(off)
	}
	return b, nil
}

// parseSpan reads 90m as Go does, and 7d.
func parseSpan(s string) (time.Duration, error) {
	var d unit.Duration
	err := d.UnmarshalText([]byte(s))
	return d.Std(), err
}

// rate is what a job may send in a second; 0 is no limit.
type rate struct {
	records int
	bytes   unit.Rate
}

func parseRate(s string, otherwise int) (rate, error) {
	if s == "" {
		return rate{records: otherwise}, nil
	}
	if n, err := strconv.ParseUint(strings.TrimSuffix(s, "/s"), 10, 31); err == nil && (n == 0 || strings.HasSuffix(s, "/s")) {
		return rate{records: int(n)}, nil
	}
	b, err := unit.ParseRate(s)
	if err != nil {
		return rate{}, invalid("rate %q: want records or bytes a second, such as 5000/s or 5MiB/s; 0 is no limit", s)
	}
	return rate{bytes: b}, nil
}

// Range are the offsets [From, To) of a partition.
type Range struct {
	Partition int          `json:"partition"`
	From      spool.Offset `json:"from"`
	To        spool.Offset `json:"to"`
}

// resolved is a range that is settled.
type resolved struct {
	since, until time.Time // zero: no bound
	ranges       []Range
}

// resolve settles the range of a request, with what the log holds now.
func resolve(from, to *bound, partitions int, bounds func(partition int) (first, end spool.Offset)) (r resolved, err error) {
	if from.byTime() {
		r.since = from.at
	}
	if to.byTime() {
		r.until = to.at
	}
	if !r.since.IsZero() && !r.until.IsZero() && !r.since.Before(r.until) {
		return r, invalid("from %s is not before to %s", stamp(r.since), stamp(r.until))
	}
	if err := samePartitions(from, to, partitions); err != nil {
		return r, err
	}
	for p := range partitions {
		if !from.names(p) || !to.names(p) {
			continue
		}
		first, end := bounds(p)
		at := Range{Partition: p, From: first, To: end}
		low, given := from.offsetOf(p)
		if given {
			at.From = low
		}
		if high, ok := to.offsetOf(p); ok {
			if given && high < low {
				return r, invalid("partition %d: from %d is behind to %d", p, low, high)
			}
			at.To = min(end, high)
		}
		if at.To > at.From {
			r.ranges = append(r.ranges, at)
		}
	}
	return r, nil
}

// samePartitions checks the partitions that bounds name.
func samePartitions(from, to *bound, partitions int) error {
	for _, b := range []*bound{from, to} {
		if b == nil {
			continue
		}
		for _, p := range slices.Sorted(maps.Keys(b.offsets)) {
			switch {
			case p >= partitions:
				return invalid("partition %d: the stream has %d, counted from 0", p, partitions)
			case !from.names(p):
				return invalid("partition %d is in to and not in from", p)
			case !to.names(p):
				return invalid("partition %d is in from and not in to", p)
			}
		}
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
