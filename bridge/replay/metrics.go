package replay

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/spool"
)

// counts are of all jobs since the start of the process. A dry run counts nothing.
type counts struct {
	sent, bytes, leftOut, refused, expired atomic.Uint64

	mu   sync.Mutex
	gaps map[string]uint64 // offsets, by reason
}

func (e *Engine) count(t Tally, w *work) {
	c := &e.counts
	c.sent.Add(t.Sent)
	c.bytes.Add(t.Bytes)
	c.leftOut.Add(t.LeftOut)
	c.refused.Add(t.Refused)
	c.expired.Add(w.expired)
	if len(w.gaps) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gaps == nil {
		c.gaps = make(map[string]uint64)
	}
	for _, g := range w.gaps {
		c.gaps[g.Reason] += uint64(g.To - g.From)
	}
}

// collector shows the engine as it is when it is asked.
type collector struct{ e *Engine }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("forebay_replay_"+name, help, labels, nil)
}

var (
	descRecords = desc("records_total", "Records of replays, by result: sent (acknowledged), left_out (by the route), refused (never taken), expired.", "result")
	descBytes   = desc("sent_bytes_total", "Payload bytes of the records that replays have sent.")
	descGaps    = desc("gap_offsets_total", "Offsets of the ranges of replays that were gone before the replay came to them, by reason.", "reason")
	descJobs    = desc("jobs", "Replays that are listed, by state: running, done, failed, cancelled.", "state")
	descWaiting = desc("jobs_waiting", "Replays that run and wait for something, such as an upstream that is not reachable.")
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRecords, descBytes, descGaps, descJobs, descWaiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	n := &c.e.counts
	counter(descRecords, n.sent.Load(), "sent")
	counter(descRecords, n.leftOut.Load(), "left_out")
	counter(descRecords, n.refused.Load(), "refused")
	counter(descRecords, n.expired.Load(), "expired")
	counter(descBytes, n.bytes.Load())
	gaps := map[string]uint64{spool.GapRetention: 0, spool.GapDropped: 0, spool.GapDamaged: 0, spool.GapNotStored: 0}
	n.mu.Lock()
	for reason, offsets := range n.gaps {
		gaps[reason] = offsets
	}
	n.mu.Unlock()
	for reason, offsets := range gaps {
		counter(descGaps, offsets, reason)
	}
	states, waiting := make(map[State]int), 0
	c.e.mu.Lock()
	for _, j := range c.e.jobs {
		j.mu.Lock()
		states[j.def.State]++
		if j.problem != nil {
			waiting++
		}
		j.mu.Unlock()
	}
	c.e.mu.Unlock()
	for _, s := range States {
		gauge(descJobs, states[s], string(s))
	}
	gauge(descWaiting, waiting)
}
