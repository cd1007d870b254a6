package downlink

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/bridge/mapping"
)

// counts are a downlink's counters.
type counts struct {
	records, bytes, headers atomic.Uint64
	leftOut                 [len(leftReasons)]atomic.Uint64
	poison                  throttle

	mu       sync.Mutex
	poisons  map[string]uint64
	gaps     map[string]uint64
	gapsLost map[string]uint64
}

// leftReason is why a record is not published, and is no poison.
type leftReason int

const (
	leftOwn     leftReason = iota // a forebay.id header of this gateway
	leftNull                      // null_value: drop
	leftExpired                   // its time was over
	leftDropped                   // the stream's when_full is drop_new
)

var leftReasons = [...]string{leftOwn: "own", leftNull: "null_value", leftExpired: "expired", leftDropped: "spool_full"}

func (c *counts) poisoned(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.poisons == nil {
		c.poisons = make(map[string]uint64)
	}
	c.poisons[reason]++
}

func (c *counts) gap(reason string, lost int64) {
	c.lost(reason, lost)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gaps[reason]++
}

func (c *counts) lost(reason string, offsets int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gaps == nil {
		c.gaps, c.gapsLost = make(map[string]uint64), make(map[string]uint64)
	}
	c.gapsLost[reason] += uint64(offsets)
}

func (c *counts) byReason() (poisons, gaps, lost map[string]uint64) {
	poisons, gaps, lost = make(map[string]uint64), make(map[string]uint64), make(map[string]uint64)
	for _, r := range mapping.DownFaults {
		poisons[r.String()] = 0
	}
	poisons[reasonRefused] = 0
	for _, r := range gapReasons {
		gaps[r], lost[r] = 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, n := range c.poisons {
		poisons[r] = n
	}
	for r, n := range c.gaps {
		gaps[r] = n
	}
	for r, n := range c.gapsLost {
		lost[r] = n
	}
	return poisons, gaps, lost
}

// collector shows the downlinks as they are when it is asked.
type collector struct{ e *Engine }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("forebay_downlink_"+name, help, append([]string{"downlink"}, labels...), nil)
}

var (
	descRecords = desc("records_total", "Kafka records that are in the spool as publishes.")
	descBytes   = desc("bytes_total", "Payload bytes of the Kafka records that are in the spool as publishes.")
	descLeft    = desc("left_out_records_total", "Kafka records that were not published, by reason: own (a forebay.id of this gateway), null_value, expired, spool_full (when_full: drop_new).", "reason")
	descPoison  = desc("poison_records_total", "Kafka records of which no publish can be made, by reason, whatever on_poison makes of them.", "reason")
	descHeaders = desc("left_out_headers_total", "Headers that became no user property: there were too many, or they are no text.")
	descGaps    = desc("gaps_total", "Times that a topic was not what it was at the position of a partition, by reason: retention, truncated, recreated.", "reason")
	descLost    = desc("gap_offsets_total", "Offsets that were gone before they were read, as far as that is known.", "reason")
	descLag     = desc("lag_records", "Kafka offsets from the positions to the ends of the partitions; there is none while nothing is read, or Kafka does not answer.")
	descMaxLag  = desc("max_partition_lag_records", "Kafka offsets from the position to the end of the partition that is furthest behind; there is none while lag_records has none.")
	descParts   = desc("partitions", "Partitions that are read.")
	descStopped = desc("paused_partitions", "Partitions that are paused because their records wait for room in the spool.")
	descHeld    = desc("held_partitions", "Partitions that are held behind a gap: somebody has to act.")
	descBuff    = desc("buffered_bytes", "Memory of records that are read and not in the spool.")
	descPaused  = desc("paused", "1 when an operator has paused the downlink.")
	descStuck   = desc("stuck", "1 when the downlink has something to bring and does not.")
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descRecords, descBytes, descLeft, descPoison, descHeaders, descGaps, descLost, descLag, descMaxLag, descParts, descStopped, descHeld, descBuff,
		descPaused, descStuck,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, i := range c.e.List() {
		send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{i.Downlink}, labels...)...)
		}
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			send(d, prometheus.CounterValue, float64(v), labels...)
		}
		gauge := func(d *prometheus.Desc, v float64) { send(d, prometheus.GaugeValue, v) }
		flag := func(d *prometheus.Desc, is bool) {
			v := 0.0
			if is {
				v = 1
			}
			gauge(d, v)
		}
		counter(descRecords, i.Records)
		counter(descBytes, i.Bytes)
		counter(descHeaders, i.HeadersLeftOut)
		for _, by := range []struct {
			d *prometheus.Desc
			m map[string]uint64
		}{{descLeft, i.LeftOut}, {descPoison, i.Poison}, {descGaps, i.Gaps}, {descLost, i.GapOffsets}} {
			for reason, n := range by.m {
				counter(by.d, n, reason)
			}
		}
		if i.Lag != nil {
			gauge(descLag, float64(*i.Lag))
			gauge(descMaxLag, float64(*i.MaxLag))
		}
		gauge(descParts, float64(i.Partitions))
		gauge(descStopped, float64(i.Stopped))
		gauge(descHeld, float64(i.Held))
		gauge(descBuff, float64(i.Buffered))
		flag(descPaused, i.State == Paused)
		flag(descStuck, i.State == Stuck)
	}
}
