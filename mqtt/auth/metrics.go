package auth

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	accepted *prometheus.CounterVec
	refused  *prometheus.CounterVec
	hookDown prometheus.Counter
	keysDown prometheus.Counter
	reloads  *prometheus.CounterVec
	autoBans prometheus.Counter
	list     []prometheus.Collector
	reg      prometheus.Registerer
}

// The reasons of refusals.
const (
	refusedCredentials   = "credentials"
	refusedNotAuthorized = "not_authorized"
	refusedBanned        = "banned"
	refusedBusy          = "busy"
	refusedUnavailable   = "unavailable"
	refusedMethod        = "method"
)

func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrNotAuthorized):
		return refusedNotAuthorized
	case errors.Is(err, ErrBanned):
		return refusedBanned
	case errors.Is(err, ErrBusy):
		return refusedBusy
	case errors.Is(err, ErrUnavailable):
		return refusedUnavailable
	case errors.Is(err, ErrBadMethod), errors.Is(err, ErrProtocol):
		return refusedMethod
	}
	return refusedCredentials
}

func newMetrics(a *Auth, reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		reg: reg,
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_accepted_total", Help: "Clients that were let in, by the method that accepted them.",
		}, []string{"method"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_refused_total", Help: "Clients that were not let in, by reason.",
		}, []string{"reason"}),
		hookDown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_hook_failures_total", Help: "Questions that the HTTP hook did not answer.",
		}),
		keysDown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_jwks_failures_total", Help: "Fetches of the JWKS that failed.",
		}),
		autoBans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_automatic_bans_total", Help: "Addresses that were banned for failures (auth.ban.auto).",
		}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_reloads_total", Help: "Changed files that were read again, by result; a failed one leaves the old content in force.",
		}, []string{"result"}),
	}
	for _, method := range methods {
		m.accepted.WithLabelValues(string(method))
	}
	for _, reason := range []string{
		refusedCredentials, refusedNotAuthorized, refusedBanned, refusedBusy, refusedUnavailable, refusedMethod,
	} {
		m.refused.WithLabelValues(reason)
	}
	m.reloads.WithLabelValues("ok")
	m.reloads.WithLabelValues("failed")
	m.list = []prometheus.Collector{
		m.accepted, m.refused, m.hookDown, m.keysDown, m.reloads, m.autoBans,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "forebay_mqtt_auth_files_faulty", Help: "Files of mqtt.auth whose present content has a fault, so that the old one stays in force.",
		}, func() float64 { return float64(a.faults.count()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "forebay_mqtt_auth_bans", Help: "Bans in force.",
		}, func() float64 { return float64(len(a.Bans())) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "forebay_mqtt_auth_hashes_total", Help: "Passwords that were hashed.",
		}, func() float64 { return float64(a.gate.hashes.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "forebay_mqtt_auth_slowed_connections", Help: "Connections that wait because of earlier failures.",
		}, func() float64 { return float64(a.throttle.held.Load()) }),
	}
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
