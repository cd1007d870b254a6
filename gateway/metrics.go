package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// newRegistry has the process, the Go runtime and the build from the start; each part adds its own.
func newRegistry(b Build) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "forebay_build_info",
		Help: "The running build; always 1.",
	}, []string{"version", "commit", "go_version"})
	info.WithLabelValues(b.Version, b.Commit, b.Go).Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// healthMetrics ask Health at each scrape, so that they never say anything else than /readyz does.
type healthMetrics struct {
	g         *Gateway
	ready, up *prometheus.Desc
	waiting   *prometheus.Desc
}

var _ prometheus.Collector = (*healthMetrics)(nil)

func newHealthMetrics(g *Gateway) *healthMetrics {
	return &healthMetrics{
		g:       g,
		ready:   prometheus.NewDesc("forebay_gateway_ready", "Whether publishers can be acknowledged: 1 or 0.", nil, nil),
		up:      prometheus.NewDesc("forebay_gateway_part_up", "Whether a part runs and has no problem: 1 or 0.", []string{"part"}, nil),
		waiting: prometheus.NewDesc("forebay_gateway_restart_pending_keys", "Keys of the configuration that a reload has found changed and that wait for a restart.", nil, nil),
	}
}

// Describe names the series.
func (m *healthMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.ready
	ch <- m.up
	ch <- m.waiting
}

// Collect looks at the gateway once for all series.
func (m *healthMetrics) Collect(ch chan<- prometheus.Metric) {
	h := m.g.Health()
	ch <- prometheus.MustNewConstMetric(m.ready, prometheus.GaugeValue, one(h.Ready))
	ch <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(m.g.waiting.Load()))
	for _, p := range h.Parts {
		up := p.State == string(running) && p.Problem == ""
		ch <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, one(up), p.Name)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
