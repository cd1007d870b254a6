package mqtt

import (
	"github.com/prometheus/client_golang/prometheus"
)

// ackMetrics are those of one stream whose acknowledgements wait for the upstream.
type ackMetrics struct {
	waited                       prometheus.Observer
	arrived, unrouted, abandoned prometheus.Counter
	fallbacks                    map[string]prometheus.Counter // by reason
}

// newAckMetrics makes the series of all such streams; none when there is no such stream.
func (u *upstreamAcks) newAckMetrics() []prometheus.Collector {
	waited := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "forebay_mqtt_upstream_ack_seconds",
		Help:    "Time that acknowledgements waited for the upstream, from the sync to its answer; fallbacks excepted.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
	}, []string{"stream"})
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "forebay_mqtt_upstream_acks_total",
		Help: "Publishes that have waited for the upstream, by result: arrived, unrouted (no route must have them), abandoned (the client is gone).",
	}, []string{"stream", "result"})
	fallbacks := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "forebay_mqtt_upstream_ack_fallbacks_total",
		Help: "Publishes whose publisher was told by ack_fallback, and not by the upstream, by reason.",
	}, []string{"stream", "fallback", "reason"})
	list := []prometheus.Collector{waited, results, fallbacks}
	for _, s := range u.list {
		m := &ackMetrics{
			waited:    waited.WithLabelValues(s.name),
			arrived:   results.WithLabelValues(s.name, "arrived"),
			unrouted:  results.WithLabelValues(s.name, "unrouted"),
			abandoned: results.WithLabelValues(s.name, "abandoned"),
			fallbacks: make(map[string]prometheus.Counter),
		}
		for _, reason := range lateReasons {
			m.fallbacks[reason] = fallbacks.WithLabelValues(s.name, string(s.rule.Fallback), reason)
		}
		s.metrics = m
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "forebay_mqtt_upstream_acks_waiting", Help: "Acknowledgements that wait for the upstream.",
			ConstLabels: prometheus.Labels{"stream": s.name},
		}, func() float64 {
			u.mu.Lock()
			defer u.mu.Unlock()
			return float64(s.waiting)
		}))
	}
	return list
}
