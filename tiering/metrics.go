package tiering

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the series of forebay_tiering_*. What others count already is read from there when it is scraped.
type metrics struct {
	reg    prometheus.Registerer
	all    []prometheus.Collector
	sent   prometheus.Counter
	errors *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, t *Tier) *metrics {
	m := &metrics{
		reg: reg,
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_tiering_sent_bytes_total", Help: "Bytes of segments given to the store, those of uploads that broke off included.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_tiering_errors_total", Help: "Rounds that the store ended, by reason.",
		}, []string{"reason"}),
	}
	for _, r := range []string{"denied", "no_bucket", "owned", "conflict", "unsupported", "damaged", "changed", "no_room", "vanished", "full", "timeout", "unreachable"} {
		m.errors.WithLabelValues(r)
	}
	m.all = []prometheus.Collector{m.sent, m.errors, newCollector(t)}
	for _, c := range m.all {
		reg.MustRegister(c)
	}
	return m
}

func (m *metrics) unregister() {
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}

// collector turns Status into series at each scrape.
type collector struct {
	t *Tier

	up, paused, cache, fetched, hits, misses, inPlace                                 *prometheus.Desc
	coldBytes, coldSegments, behindBytes, behindSegments, behindSeconds               *prometheus.Desc
	uploaded, uploadedBytes, removedLocal, removedCold, damaged, growth, fullIn, cost *prometheus.Desc
}

func newCollector(t *Tier) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("forebay_tiering_"+name, help, labels, nil)
	}
	return &collector{
		t:              t,
		up:             d("up", "1 while the last round with the store succeeded."),
		paused:         d("paused", "1 in the times of the day in which nothing is uploaded."),
		cache:          d("cache_bytes", "Bytes of fetched segments on the disk."),
		fetched:        d("fetched_bytes_total", "Bytes that were fetched from the store to be read."),
		hits:           d("cache_hits_total", "Segments that a reader found in the cache."),
		misses:         d("cache_misses_total", "Segments that had to be fetched."),
		inPlace:        d("in_place_total", "Segments that were opened where a directory has them."),
		coldBytes:      d("cold_bytes", "Bytes of a stream's segments in the store.", "stream"),
		coldSegments:   d("cold_segments", "Segments of a stream in the store.", "stream"),
		behindBytes:    d("behind_bytes", "Bytes of sealed segments that are not stored.", "stream"),
		behindSegments: d("behind_segments", "Sealed segments that are not stored.", "stream"),
		behindSeconds:  d("behind_seconds", "Age of the oldest sealed segment that is not stored.", "stream"),
		uploaded:       d("uploaded_segments_total", "Segments stored and verified.", "stream"),
		uploadedBytes:  d("uploaded_bytes_total", "Bytes of segments that are stored and verified.", "stream"),
		removedLocal:   d("removed_local_segments_total", "Local copies removed by keep_local.", "stream"),
		removedCold:    d("removed_cold_segments_total", "Segments removed from the store by its retention.", "stream"),
		damaged:        d("damaged_reads_total", "Stored segments that a reader found damaged: a gap for it.", "stream"),
		growth:         d("growth_bytes_per_day", "Bytes of sealed segments a day; 0 until an hour of them was looked at.", "stream"),
		fullIn:         d("local_full_seconds", "Time until the local limit is reached if nothing is removed; +Inf when nothing comes, or growth is not known yet.", "stream"),
		cost:           d("cost_per_month", "What is stored times price_per_gb_month.", "stream"),
	}
}

func (c *collector) descs() []*prometheus.Desc {
	return []*prometheus.Desc{
		c.up, c.paused, c.cache, c.fetched, c.hits, c.misses, c.inPlace, c.coldBytes, c.coldSegments, c.behindBytes, c.behindSegments, c.behindSeconds,
		c.uploaded, c.uploadedBytes, c.removedLocal, c.removedCold, c.damaged, c.growth, c.fullIn, c.cost,
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs() {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := c.t.Status()
	gauge(c.up, bit(s.Problem == ""))
	gauge(c.paused, bit(s.Paused))
	gauge(c.cache, float64(s.CacheUsed))
	counter(c.fetched, c.t.cache.fetchedBytes.Load())
	counter(c.hits, c.t.cache.hits.Load())
	counter(c.misses, c.t.cache.misses.Load())
	counter(c.inPlace, c.t.cache.inPlace.Load())
	for _, l := range s.Streams {
		st := c.t.byName[l.Stream]
		age := 0.0
		if !l.BehindSince.IsZero() {
			own, _ := c.t.spool.Clock()
			age = max(own.Sub(l.BehindSince), 0).Seconds()
		}
		gauge(c.coldBytes, float64(l.ColdBytes), l.Stream)
		gauge(c.coldSegments, float64(l.ColdSegments), l.Stream)
		gauge(c.behindBytes, float64(l.BehindBytes), l.Stream)
		gauge(c.behindSegments, float64(l.BehindSegments), l.Stream)
		gauge(c.behindSeconds, age, l.Stream)
		counter(c.uploaded, st.uploaded.Load(), l.Stream)
		counter(c.uploadedBytes, st.uploadedBytes.Load(), l.Stream)
		counter(c.removedLocal, st.removedLocal.Load(), l.Stream)
		counter(c.removedCold, st.removedCold.Load(), l.Stream)
		counter(c.damaged, st.damagedReads.Load(), l.Stream)
		gauge(c.growth, l.BytesPerDay, l.Stream)
		full := inf
		if l.LocalFullIn != nil {
			full = *l.LocalFullIn * (24 * time.Hour).Seconds()
		}
		gauge(c.fullIn, full, l.Stream)
		gauge(c.cost, l.CostNow, l.Stream)
	}
}

var inf = math.Inf(1)

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
