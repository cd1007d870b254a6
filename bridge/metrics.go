package bridge

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// counts are a route's counters.
type counts struct {
	sent         atomic.Uint64 // acknowledged by all in-sync replicas
	sentBytes    atomic.Uint64
	retried      atomic.Uint64
	errors       [5]atomic.Uint64 // by class
	skipped      atomic.Uint64
	expired      atomic.Uint64
	detached     atomic.Uint64
	limited      atomic.Int64 // nanoseconds
	found        atomic.Uint64
	readBack     [2]atomic.Uint64 // partitions, by result
	deadLettered atomic.Uint64
	moves        atomic.Uint64
	splits       atomic.Uint64

	mu   sync.Mutex
	gaps map[string]uint64 // offsets, by reason
}

// The results of reading a partition back.
const (
	readDone = iota
	readRefused
)

func (c *counts) acked(records, bytes int) {
	c.sent.Add(uint64(records))
	c.sentBytes.Add(uint64(bytes))
}

func (c *counts) failed(class kafka.Class, records int) {
	c.errors[class].Add(1)
	c.retried.Add(uint64(records))
}

func (c *counts) gap(reason string, offsets uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gaps == nil {
		c.gaps = make(map[string]uint64)
	}
	c.gaps[reason] += offsets
}

func (c *counts) gapOffsets() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]uint64{spool.GapRetention: 0, spool.GapDropped: 0, spool.GapDamaged: 0}
	for k, v := range c.gaps {
		out[k] = v
	}
	return out
}

// collector shows the bridge as it is when it is asked: the series of a route are there from its start and go with it.
type collector struct{ b *Bridge }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("forebay_bridge_"+name, help, labels, nil)
}

var (
	descSent      = desc("sent_records_total", "Records acknowledged by all in-sync replicas.", "route")
	descSentBytes = desc("sent_bytes_total", "Payload bytes of the records acknowledged.", "route")
	descRetried   = desc("retried_records_total", "Records sent again after their flight came back without an acknowledgement.", "route")
	descErrors    = desc("errors_total", "Flights that came back with an error, by class: retry, shrink, poison, fault, dead.", "route", "class")
	descSkipped   = desc("skipped_records_total", "Records that no filter of the route takes.", "route")
	descLeftOut   = desc("filtered_records_total", "Records that the mapping did not send, by reason: condition, sample, empty_payload, downlink (it came by one), or a fault whose policy is skip.", "route", "reason")
	descFaults    = desc("mapping_faults_total", "Faults of records that the mapping met, by reason, whatever the policy made of the record.", "route", "reason")
	descOverflow  = desc("topic_overflow", "1 when the topic's fields have asked for more Kafka topics than max_topics.", "route")
	descExpired   = desc("expired_records_total", "Records left out because their time was over before they were sent.", "route")
	descLimited   = desc("rate_limited_seconds_total", "Time that the reading of the spool waited for the route's rate, over its partitions.", "route")
	descFound     = desc("found_records_total", "Records that were not sent again after a crash, since Kafka had them.", "route")
	descReadBack  = desc("read_back_partitions_total", "Kafka partitions that were read back after a crash, by result: done, refused (no right to read).", "route", "result")
	descDead      = desc("dead_letters_total", "Records that Kafka will not take and that are in the dead-letter stream.", "route")
	descRedriven  = desc("dead_letters_redriven_total", "Dead letters that Kafka took when they were sent again.", "route")
	descPurged    = desc("dead_letters_purged_total", "Dead letters that were given up.", "route")
	descWaiting   = desc("dead_letters", "Dead letters that nobody has dealt with yet.")
	descGaps      = desc("gap_offsets_total", "Offsets that were gone before the route came to them.", "route", "reason")
	descDetaches  = desc("lane_detaches_total", "Times a lane was left to the catch-up because it held the others.", "route")
	descDetached  = desc("detached_lanes", "Lanes that catch up on their own.", "route")
	descHeld      = desc("held_lanes", "Lanes held by a fault or a bad record: somebody has to act.", "route")
	descLag       = desc("lag_records", "Durable offsets from the oldest one not delivered to the log end.", "route")
	descLagTime   = desc("lag_seconds", "Age of the oldest record that is not delivered.", "route")
	descLiveLag   = desc("live_lag_seconds", "Age of the oldest record that is not delivered, those of backlogs left out.", "route")
	descBacklog   = desc("backlog_records", "Part of lag_records that drain: live_first has put aside, to be delivered beside newer records.", "route")
	descSplits    = desc("backlogs_total", "Times the route put aside what it was behind with, by drain: live_first.", "route")
	descInFlight  = desc("in_flight_records", "Records sent and not acknowledged.", "route")
	descBuffered  = desc("buffered_bytes", "Memory of records in lanes, sent ones included.", "route")
	descStuck     = desc("stuck", "1 when the route has something to deliver and does not.", "route")
	descOrphans   = desc("orphaned_routes", "Routes that the configuration does not have and for which the spool keeps records all the same.")
	descOrphanLag = desc("orphaned_records", "Records that the spool keeps for orphaned routes, the most of one.")
	descStandby   = desc("on_standby", "1 while the route is not on its first upstream.", "route")
	descActive    = desc("active_upstream", "1 for the upstream that the route is on, 0 for the others of its failover list.", "route", "upstream")
	descMoves     = desc("failovers_total", "Times the route went on with another upstream, back to the first included.", "route")
	descPaused    = desc("paused", "1 when an operator has paused the route or some of its lanes.", "route")

	descUp       = desc("upstream_up", "1 when the upstream gave its last sign of life and none of its death since.", "upstream")
	descConnErrs = desc("upstream_connection_errors_total", "Failed connections, reads and writes, by reason.", "upstream", "reason")
	descRebuilds = desc("upstream_rebuilds_total", "Times the producer was built anew.", "upstream")
	descTorn     = desc("upstream_torn_records_total", "Records acknowledged before an earlier one of their flight; has to stay 0.", "upstream")
	descThrottle = desc("upstream_throttle_seconds_total", "Time that brokers asked this client to wait.", "upstream")
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descSent, descSentBytes, descRetried, descErrors, descSkipped, descLeftOut, descFaults, descOverflow, descExpired, descLimited, descFound, descReadBack, descDead, descRedriven,
		descPurged, descWaiting, descGaps, descDetaches, descDetached, descHeld, descLag, descLagTime, descLiveLag, descBacklog, descSplits, descInFlight, descBuffered, descStuck,
		descPaused, descStandby, descActive, descMoves, descOrphans, descOrphanLag, descUp, descConnErrs, descRebuilds, descTorn, descThrottle,
	} {
		ch <- d
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	var orphanLag uint64
	orphans := c.b.Orphans()
	for _, o := range orphans {
		orphanLag = max(orphanLag, o.Lag)
	}
	gauge(descOrphans, float64(len(orphans)))
	gauge(descOrphanLag, float64(orphanLag))
	stuck := make(map[string]float64)
	for i, h := range c.b.Health() {
		if h.State == Stuck {
			stuck[h.Route] = 1
		}
		lanes, _ := c.b.routes[i].pauses.names()
		paused := 0.0
		if _, all := c.b.routes[i].pauses.route(); all || len(lanes) > 0 {
			paused = 1
		}
		gauge(descPaused, paused, h.Route)
		r := c.b.routes[i]
		active, _, _, _ := r.failover.where()
		for _, up := range r.failover.list {
			gauge(descActive, flag(up == active), h.Route, up.Name())
		}
		gauge(descStandby, flag(active != r.failover.list[0]), h.Route)
		counter(descMoves, float64(r.counts.moves.Load()), h.Route)
	}
	for _, s := range c.b.Stats() {
		counter(descSent, float64(s.Sent), s.Route)
		counter(descSentBytes, float64(s.SentBytes), s.Route)
		counter(descRetried, float64(s.Retried), s.Route)
		for _, class := range kafka.Classes {
			counter(descErrors, float64(s.Errors[class.String()]), s.Route, class.String())
		}
		counter(descSkipped, float64(s.Skipped), s.Route)
		for reason, n := range s.LeftOut {
			counter(descLeftOut, float64(n), s.Route, reason)
		}
		for reason, n := range s.MappingFaults {
			counter(descFaults, float64(n), s.Route, reason)
		}
		overflow := 0.0
		if s.Overflowed {
			overflow = 1
		}
		gauge(descOverflow, overflow, s.Route)
		counter(descExpired, float64(s.Expired), s.Route)
		counter(descLimited, s.RateLimited.Seconds(), s.Route)
		counter(descFound, float64(s.Found), s.Route)
		for result, n := range s.ReadBack {
			counter(descReadBack, float64(n), s.Route, result)
		}
		counter(descDead, float64(s.DeadLettered), s.Route)
		for reason, n := range s.Gaps {
			counter(descGaps, float64(n), s.Route, reason)
		}
		counter(descDetaches, float64(s.Detaches), s.Route)
		gauge(descDetached, float64(s.DetachedLanes), s.Route)
		gauge(descHeld, float64(s.HeldLanes), s.Route)
		gauge(descLag, float64(s.Lag), s.Route)
		gauge(descLagTime, s.LagAge.Seconds(), s.Route)
		gauge(descLiveLag, s.LiveLagAge.Seconds(), s.Route)
		gauge(descBacklog, float64(s.Backlog), s.Route)
		counter(descSplits, float64(s.Splits), s.Route)
		gauge(descInFlight, float64(s.InFlight), s.Route)
		gauge(descBuffered, float64(s.BufferedBytes), s.Route)
		gauge(descStuck, stuck[s.Route], s.Route)
	}
	if d := c.b.dead; d != nil {
		for _, r := range c.b.routes {
			redriven, purged := d.counted(r.cfg.Name)
			counter(descRedriven, float64(redriven), r.cfg.Name)
			counter(descPurged, float64(purged), r.cfg.Name)
		}
		gauge(descWaiting, float64(d.Waiting()))
	}
	for _, u := range c.b.upstreams {
		s := u.Status()
		up := 0.0
		if s.Up {
			up = 1
		}
		gauge(descUp, up, u.Name())
		for reason, n := range s.ConnErrors {
			counter(descConnErrs, float64(n), u.Name(), reason)
		}
		counter(descRebuilds, float64(s.Rebuilds), u.Name())
		counter(descTorn, float64(s.Torn), u.Name())
		counter(descThrottle, s.Throttled.Seconds(), u.Name())
	}
}
