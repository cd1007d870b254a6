package demo

import (
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// view is everything that one picture of the demo shows.
type view struct {
	phase    string
	elapsed  time.Duration
	duration time.Duration // 0: until Ctrl-C
	devices  int

	upstreamUp bool
	outage     time.Duration // until the upstream comes back; 0 is no outage now

	fleet    fleet.Snapshot
	spooled  int64 // records that are durable
	disk     int64 // bytes of the spool on disk
	lag      int64 // records that the route has still to deliver
	memory   int64 // bytes the Go runtime holds
	now      rates // since the view before
	ack      fleet.Latency
	deliver  fleet.Latency
	bridge   fleet.Latency
	history  []float64 // published a second, newest last
	lags     []float64 // lag, newest last
	problem  string    // what the gateway says about itself
	shutdown string    // what Ctrl-C does now
}

// rates are messages a second.
type rates struct{ published, acknowledged, spooled, delivered, bridged float64 }

// recorder turns snapshots into views: it knows the ones before.
type recorder struct {
	last    view
	at      time.Time
	smooth  rates
	history []float64
	lags    []float64
}

// maxHistory is as much as the widest picture shows.
const maxHistory = 60

// add completes v with what follows from the views before it.
func (r *recorder) add(v view, now time.Time) view {
	if dt := now.Sub(r.at).Seconds(); !r.at.IsZero() && dt > 0 {
		rate := func(old *float64, n, before int64) float64 {
			const weight = 0.4 // of the newest: numbers that can be read, and still show a burst
			*old += weight * (float64(n-before)/dt - *old)
			return max(*old, 0)
		}
		p := &r.last
		v.now = rates{
			published:    rate(&r.smooth.published, v.fleet.Published, p.fleet.Published),
			acknowledged: rate(&r.smooth.acknowledged, v.fleet.Acknowledged, p.fleet.Acknowledged),
			spooled:      rate(&r.smooth.spooled, v.spooled, p.spooled),
			delivered:    rate(&r.smooth.delivered, v.fleet.Delivered, p.fleet.Delivered),
			bridged:      rate(&r.smooth.bridged, v.fleet.Bridged, p.fleet.Bridged),
		}
		r.history = keep(r.history, float64(v.fleet.Published-p.fleet.Published)/dt)
		r.lags = keep(r.lags, float64(v.lag))
	}
	// A picture without new messages keeps the latencies of the last one that had some: a zero would look like a figure.
	held := func(fresh, old fleet.Latency) fleet.Latency {
		if fresh.Count == 0 {
			return old
		}
		return fresh
	}
	v.ack = held(v.fleet.Ack, r.last.ack)
	v.deliver = held(v.fleet.Subscriber, r.last.deliver)
	v.bridge = held(v.fleet.Kafka, r.last.bridge)
	v.history, v.lags = r.history, r.lags
	r.last, r.at = v, now
	return v
}

func keep(s []float64, x float64) []float64 {
	s = append(s, x)
	return s[max(0, len(s)-maxHistory):]
}
