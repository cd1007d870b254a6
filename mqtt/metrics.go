package mqtt

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/forebay-gateway/forebay/mqtt/transport"

	"github.com/forebay-gateway/forebay/spool"
)

// Reasons of a dropped message.
const (
	dropBufferFull = "buffer_full"      // QoS 0, the subscriber does not read fast enough
	dropTooLarge   = "packet_too_large" // above the subscriber's Maximum Packet Size
	dropExpired    = "expired"          // its time was over, or retention has removed it, before it could be sent
	dropRefused    = "refused"          // the subscriber answered with an error
	dropRefusedIn  = "publish_refused"  // a publish that was not allowed or not valid
	dropDenied     = "not_authorized"   // a publish or a delivery that the ACL does not allow
	dropNotStored  = "not_stored"       // a QoS 0 publish, or a will, that the spool did not take, or not before its connection ended
)

var dropReasons = []string{dropBufferFull, dropTooLarge, dropExpired, dropRefused, dropRefusedIn, dropDenied, dropNotStored}

type metrics struct {
	reg  prometheus.Registerer
	list []prometheus.Collector

	connections   *prometheus.GaugeVec
	sessions      prometheus.Gauge
	subscriptions prometheus.Gauge
	connects      prometheus.Counter
	takenOver     prometheus.Counter
	takeOversHeld prometheus.Counter
	expired       prometheus.Counter
	received      [3]prometheus.Counter
	sent          [3]prometheus.Counter
	acked         [3]prometheus.Counter
	repeated      prometheus.Counter
	dropped       map[string]prometheus.Counter
	refusals      *prometheus.CounterVec
	closes        *prometheus.CounterVec
	fellBehind    prometheus.Counter
	gapRecords    prometheus.Counter
	tooFar        [3]prometheus.Counter // by behindReasons
	skipped       [3]prometheus.Counter
	held          prometheus.Counter
	wills         prometheus.Counter
	writeTimeouts prometheus.Counter
	acceptErrors  prometheus.Counter
	overLimit     prometheus.Counter
	limits        *prometheus.CounterVec
	slowedTime    *prometheus.CounterVec
	paused        *prometheus.CounterVec

	handshakes         prometheus.Counter
	handshakeFailures  *prometheus.CounterVec
	certificateReloads *prometheus.CounterVec
	notAfter           *prometheus.GaugeVec

	panics   prometheus.Counter
	bytesOut prometheus.Counter

	bytesIn    prometheus.Counter
	packetsIn  prometheus.Counter
	packetsOut prometheus.Counter
	payloadIn  prometheus.Counter
	payloadOut prometheus.Counter
}

func newMetrics(srv *Server, reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{reg: reg, dropped: make(map[string]prometheus.Counter)}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "forebay_mqtt_" + name, Help: help})
		m.list = append(m.list, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "forebay_mqtt_" + name, Help: help})
		m.list = append(m.list, g)
		return g
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "forebay_mqtt_" + name, Help: help}, []string{label})
		m.list = append(m.list, v)
		return v
	}
	byQoS := func(name, help string) (list [3]prometheus.Counter) {
		v := vec(name, help, "qos")
		for q := range list {
			list[q] = v.WithLabelValues(strconv.Itoa(q))
		}
		return list
	}

	m.connections = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "forebay_mqtt_connections", Help: "Open connections.",
	}, []string{"listener"})
	m.list = append(m.list, m.connections)
	for _, l := range srv.cfg.Listeners {
		m.connections.WithLabelValues(l.Name)
	}
	m.sessions = gauge("sessions", "Sessions, connected or not.")
	m.subscriptions = gauge("subscriptions", "Subscriptions of all sessions.")
	m.connects = counter("connects_total", "Connections that got a session.")
	m.takenOver = counter("taken_over_total", "Connections that ended because their client connected again.")
	m.takeOversHeld = counter("take_overs_held_total", "Connections that had to wait because clients fight over their client ID.")
	m.expired = counter("sessions_expired_total", "Sessions that ended by their expiry.")
	m.received = byQoS("received_total", "PUBLISH packets from clients.")
	m.sent = byQoS("sent_total", "PUBLISH packets to clients, repetitions excepted.")
	m.acked = byQoS("acknowledged_total", "Deliveries that clients acknowledged.")
	m.repeated = counter("repeated_total", "QoS 2 publishes that had been received before.")
	drops := vec("dropped_total", "Messages that were not stored or not delivered.", "reason")
	for _, r := range dropReasons {
		m.dropped[r] = drops.WithLabelValues(r)
	}
	m.refusals = vec("refused_total", "Refusals sent to clients, by reason code.", "reason")
	m.closes = vec("closed_total", "Connections closed by the gateway, by reason code.", "reason")
	m.fellBehind = counter("fell_behind_total", "Times that a subscriber left the live tail to be served from the spool.")
	m.gapRecords = counter("gap_records_total", "Offsets that were gone from the spool before a subscriber had read them.")
	tooFar := vec("sessions_too_far_behind_total", "Times that a session or share group was further behind than allowed, by limit.", "reason")
	skipped := vec("skipped_records_total", "Records that a session or share group lost because it was too far behind, by limit.", "reason")
	for i, r := range behindReasons {
		m.tooFar[i], m.skipped[i] = tooFar.WithLabelValues(r), skipped.WithLabelValues(r)
	}
	m.held = counter("held_total", "Publishes of MQTT 3.1.1 clients that waited for room in the spool.")
	m.wills = counter("wills_total", "Wills published.")
	m.writeTimeouts = counter("write_timeouts_total", "Connections closed because the client did not read.")
	m.acceptErrors = counter("accept_errors_total", "Failed attempts to take a new connection.")
	m.overLimit = counter("over_limit_total", "Connections refused because there were too many.")
	m.limits = vec("limits_reached_total", "Times that a client has met a limit, by its key.", "limit")
	for _, l := range limitNames {
		m.limits.WithLabelValues(l)
	}
	m.slowedTime = vec("slowed_seconds_total", "Time that connections were not read because of a rate, by its key.", "limit")
	for _, l := range pacedLimits {
		m.slowedTime.WithLabelValues(l)
	}
	m.paused = vec("accept_paused_total", "Times that a listener let newcomers wait, for connection_rate or max_handshakes.", "listener")
	m.handshakes = counter("tls_handshakes_total", "TLS handshakes that succeeded.")
	m.handshakeFailures = vec("handshake_failures_total", "Connections that did not come as far as MQTT.", "reason")
	for _, r := range transport.Reasons {
		m.handshakeFailures.WithLabelValues(r)
	}
	m.certificateReloads = vec("certificate_reloads_total", "Changed certificate, key, CA and revocation list files, by result.", "result")
	m.certificateReloads.WithLabelValues("ok")
	m.certificateReloads.WithLabelValues("failed")
	m.notAfter = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "forebay_mqtt_certificate_not_after_seconds", Help: "Until when the certificate of a listener is valid, Unix time.",
	}, []string{"listener"})
	m.list = append(m.list, m.notAfter)
	for _, l := range srv.cfg.Listeners {
		m.paused.WithLabelValues(l.Name)
	}
	m.panics = counter("panics_total", "Faults of the gateway that ended one connection.")
	m.bytesIn = counter("received_bytes_total", "Bytes read from clients.")
	m.packetsIn = counter("received_packets_total", "Packets from clients, CONNECT excepted.")
	m.packetsOut = counter("sent_packets_total", "Packets to clients.")
	m.payloadIn = counter("received_payload_bytes_total", "Payloads of the PUBLISH packets from clients.")
	m.payloadOut = counter("sent_payload_bytes_total", "Payloads of the PUBLISH packets to clients, repetitions excepted.")
	m.bytesOut = counter("sent_bytes_total", "Bytes written to clients.")
	retained := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "forebay_mqtt_retained", Help: "Topics with a retained message.",
	}, func() float64 { return float64(srv.retained.len()) })
	m.list = append(m.list, retained)
	m.list = append(m.list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "forebay_mqtt_session_bytes", Help: "Size of the client IDs, topic filters and wills of all sessions.",
	}, func() float64 { return float64(srv.sessionBytes.Load()) }))
	m.list = append(m.list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "forebay_mqtt_max_connections", Help: "Connections that all listeners together take; 0 is no limit.",
	}, func() float64 { return float64(srv.openLimit) }))
	m.list = append(m.list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "forebay_mqtt_output_bytes", Help: "Output that waits for all connections.",
	}, func() float64 { return float64(srv.output.bytes.Load()) }))

	if srv.upstream != nil {
		m.list = append(m.list, srv.upstream.newAckMetrics()...)
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

func (m *metrics) publishSent(qos byte, rec *spool.Record) {
	m.sent[qos].Inc()
	m.payloadOut.Add(float64(len(rec.Payload)))
}

func (m *metrics) droppedAll() (n uint64) {
	for _, c := range m.dropped {
		n += value(c)
	}
	return n
}

func sum(list [3]prometheus.Counter) (n uint64) {
	for _, c := range list {
		n += value(c)
	}
	return n
}

func (m *metrics) drop(reason string) { m.dropped[reason].Inc() }

func (m *metrics) slowed(limit string, d time.Duration) {
	m.slowedTime.WithLabelValues(limit).Add(d.Seconds())
}

// refused and closed count by reason code: a set that the standard knows.
func (m *metrics) refused(reason byte) {
	m.refusals.WithLabelValues(fmt.Sprintf("0x%02X", reason)).Inc()
}

func (m *metrics) closed(reason byte) {
	m.closes.WithLabelValues(fmt.Sprintf("0x%02X", reason)).Inc()
}

// overBehind counts what is above the limits of a session.
func (m *metrics) overBehind(over [3]uint64, skipped bool) {
	for i, n := range over {
		if n == 0 {
			continue
		}
		m.tooFar[i].Inc()
		if skipped {
			m.skipped[i].Add(float64(n))
		}
	}
}

func (m *metrics) stats() Stats {
	st := Stats{Dropped: make(map[string]uint64), Skipped: make(map[string]uint64)}
	for i, r := range behindReasons {
		st.Skipped[r] = value(m.skipped[i])
	}
	st.Gaps = value(m.gapRecords)
	for q := range st.Received {
		st.Received[q] = value(m.received[q])
		st.Sent[q] = value(m.sent[q])
		st.Acknowledged[q] = value(m.acked[q])
	}
	for reason, c := range m.dropped {
		st.Dropped[reason] = value(c)
	}
	st.Subscriptions = int(value(m.subscriptions))
	return st
}

func value(c prometheus.Metric) uint64 {
	var out dto.Metric
	if c.Write(&out) != nil {
		return 0
	}
	if g := out.GetGauge(); g != nil {
		return uint64(g.GetValue())
	}
	return uint64(out.GetCounter().GetValue())
}
