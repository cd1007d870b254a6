package audit

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	events  *prometheus.CounterVec
	missing *prometheus.CounterVec
	lost    prometheus.Counter
	list    []prometheus.Collector
	reg     prometheus.Registerer
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		reg: reg,
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_mqtt_audit_events_total", Help: "Audit events that were recorded, by name.",
		}, []string{"event"}),
		missing: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_mqtt_audit_missing_total", Help: "Audit events that were counted only, because there were too many of their name or from one address.",
		}, []string{"event"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_mqtt_audit_lost_total", Help: "Audit events that the stream of the spool did not take.",
		}),
	}
	for _, name := range Names {
		m.events.WithLabelValues(name)
		m.missing.WithLabelValues(name)
	}
	m.list = []prometheus.Collector{m.events, m.missing, m.lost}
	for i, c := range m.list {
		if err := reg.Register(c); err != nil {
			for _, done := range m.list[:i] {
				reg.Unregister(done)
			}
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, c := range m.list {
		m.reg.Unregister(c)
	}
}
