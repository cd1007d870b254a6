package spool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the series of forebay_spool_*. What others count already is read from there when it is scraped.
type metrics struct {
	reg prometheus.Registerer
	all []prometheus.Collector

	syncSeconds       prometheus.Histogram
	groupSeconds      prometheus.Histogram
	groupRecords      prometheus.Histogram
	journalBytes      prometheus.Counter
	blocked           prometheus.Gauge
	materialiseErrors prometheus.Counter
	materialiseTime   prometheus.Histogram
	sealed            prometheus.Counter
	removed           *prometheus.CounterVec
	readBehind        prometheus.Counter
	unkept            prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, s *Spool) *metrics {
	m := &metrics{
		reg: reg,
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forebay_spool_sync_seconds", Help: "Duration of a sync of the journal on the acknowledgement path.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15),
		}),
		groupSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forebay_spool_group_seconds", Help: "Duration of the write and sync of a group.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15),
		}),
		groupRecords: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forebay_spool_group_records", Help: "Records of a group: how many acknowledgements share a sync.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}),
		journalBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_spool_journal_written_bytes_total", Help: "Bytes of groups given to the journal.",
		}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forebay_spool_blocked_appends", Help: "Appends that wait for room: their publishers are not read.",
		}),
		materialiseErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_spool_materialise_errors_total", Help: "Failed rounds of moving records from the journal to segments.",
		}),
		materialiseTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forebay_spool_materialise_seconds", Help: "Duration of a round of moving records from the journal to segments.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		sealed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_spool_segments_sealed_total", Help: "Segments sealed.",
		}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_spool_segments_removed_total", Help: "Segments removed, by reason: retention, dropped (when_full: drop_oldest), not_stored (before the store had it), expired, stored (the local copy of one that the store has).",
		}, []string{"reason"}),
		unkept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_spool_quarantine_removed_files_total", Help: "Damaged files removed from quarantine by its max_size or max_age.",
		}),
		readBehind: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_spool_segment_reads_total", Help: "Batches that readers took from segments because they are behind the memory.",
		}),
	}
	for _, reason := range []string{GapRetention, GapDropped, GapNotStored, gapExpired, removedStored} {
		m.removed.WithLabelValues(reason)
	}
	m.all = []prometheus.Collector{
		m.syncSeconds, m.groupSeconds, m.groupRecords, m.journalBytes, m.blocked, m.materialiseErrors, m.materialiseTime,
		m.sealed, m.removed, m.readBehind, m.unkept, newCollector(s),
	}
	for _, c := range m.all {
		m.reg.MustRegister(c)
	}
	return m
}

func (m *metrics) unregister() {
	if m == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}

func (m *metrics) synced(d time.Duration) {
	if m != nil { // the journal syncs while it is opened
		m.syncSeconds.Observe(d.Seconds())
	}
}

func (m *metrics) group(d time.Duration, bytes, records int) {
	m.groupSeconds.Observe(d.Seconds())
	m.groupRecords.Observe(float64(records))
	m.journalBytes.Add(float64(bytes))
}

func (m *metrics) materialised(d time.Duration) { m.materialiseTime.Observe(d.Seconds()) }

// collector turns Stats into series at each scrape.
type collector struct {
	s *Spool

	disk, maxSize, free, full, queue, tail, unapplied, quarantined, clockStep, clockSteps *prometheus.Desc

	bytes, segments, streamFull, appended, expired, skipped, dropped, records, hotShare *prometheus.Desc
}

func newCollector(s *Spool) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("forebay_spool_"+name, help, labels, nil)
	}
	return &collector{
		s:           s,
		disk:        d("disk_bytes", "Bytes on disk: journal, segments, meta database, quarantine."),
		maxSize:     d("max_size_bytes", "Limit of the bytes on disk."),
		free:        d("disk_free_bytes", "Free bytes of the spool's file system."),
		full:        d("full", "1 while there is no room for new records."),
		queue:       d("queue_bytes", "Memory of records that wait for the journal."),
		tail:        d("tail_bytes", "Memory of the newest records."),
		unapplied:   d("unapplied_bytes", "Memory of records that are in the journal only."),
		quarantined: d("quarantined_files_total", "Damaged files that were set aside."),
		clockStep:   d("clock_step_seconds", "How far the wall clock was set forward, less back, since the directory was made: its difference to the spool's own time."),
		clockSteps:  d("clock_steps_total", "Times that the wall clock was set by more than a second."),
		bytes:       d("stream_disk_bytes", "Bytes of a stream's segments on disk.", "stream"),
		segments:    d("stream_segments", "Segments of a stream.", "stream"),
		streamFull:  d("stream_full", "1 while a stream is at its own max_size.", "stream"),
		appended:    d("appended_records_total", "Records made durable.", "stream"),
		expired:     d("expired_records_total", "Records that left the disk with their time over.", "stream"),
		skipped:     d("skipped_records_total", "Records left out for a reader because their time was over.", "stream"),
		dropped:     d("dropped_records_total", "Records lost by policy or damage, and those rejected.", "stream", "reason"),
		hotShare:    d("stream_hot_partition_ratio", "Share of the busiest partition in the bytes that a stream got in the last minute.", "stream"),
		records:     d("stream_records", "Offsets that a stream keeps.", "stream"),
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.disk, c.maxSize, c.free, c.full, c.queue, c.tail, c.unapplied, c.quarantined, c.clockStep, c.clockSteps,
		c.bytes, c.segments, c.streamFull, c.appended, c.expired, c.skipped, c.dropped, c.records, c.hotShare,
	} {
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
	st := c.s.Stats()
	gauge(c.disk, float64(st.BytesOnDisk))
	gauge(c.maxSize, float64(st.MaxSize))
	gauge(c.free, float64(st.DiskFree))
	gauge(c.full, bit(st.Full))
	gauge(c.queue, float64(st.QueueBytes))
	gauge(c.tail, float64(st.TailBytes))
	gauge(c.unapplied, float64(st.UnappliedBytes))
	counter(c.quarantined, uint64(st.Quarantined))
	gauge(c.clockStep, time.Duration(c.s.clock.skew.Load()).Seconds())
	counter(c.clockSteps, c.s.clock.steps.Load())
	for _, s := range st.Streams {
		gauge(c.bytes, float64(s.Bytes), s.Name)
		gauge(c.segments, float64(s.Segments), s.Name)
		gauge(c.streamFull, bit(s.Full), s.Name)
		gauge(c.hotShare, s.HotShare, s.Name)
		counter(c.appended, s.Appended, s.Name)
		counter(c.expired, s.Expired, s.Name)
		counter(c.skipped, s.Skipped, s.Name)
		for reason, n := range s.Dropped {
			counter(c.dropped, n, s.Name, reason)
		}
		var kept uint64
		for _, p := range s.Partitions {
			kept += p.Records
		}
		gauge(c.records, float64(kept), s.Name)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
