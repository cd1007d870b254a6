package gateway

import (
	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/spool"
)

// ackUpstream is the bridge as the MQTT front asks it, for streams with ack: upstream.
type ackUpstream struct{ b *bridge.Bridge }

var (
	_ mqtt.Upstream  = ackUpstream{}
	_ bridge.Awaiter = (*mqtt.Awaited)(nil)
)

func (u ackUpstream) Await(stream string, partition int, at spool.Offset, w *mqtt.Awaited) {
	u.b.Await(stream, partition, at, w)
}

func (u ackUpstream) AwaitEarlier(stream string, w *mqtt.Awaited) { u.b.AwaitEarlier(stream, w) }

func (u ackUpstream) Away(stream string, partition int) string { return u.b.Away(stream, partition) }

// upstreamStreams are the streams whose publishers wait for Kafka.
func upstreamStreams(cfg spool.Config) (list []spool.StreamConfig) {
	for _, st := range cfg.Streams {
		if st = st.WithDefaults(); st.Ack == spool.AckUpstream {
			list = append(list, st)
		}
	}
	return list
}

func awaits(cfg spool.Config) map[string]bridge.Await {
	m := make(map[string]bridge.Await)
	for _, st := range upstreamStreams(cfg) {
		m[st.Name] = bridge.Await{Routes: st.AckRoutes, Timeout: st.AckTimeout.Std()}
	}
	return m
}

func ackRules(cfg spool.Config) map[string]mqtt.AckRule {
	m := make(map[string]mqtt.AckRule)
	for _, st := range upstreamStreams(cfg) {
		m[st.Name] = mqtt.AckRule{Timeout: st.AckTimeout.Std(), Fallback: mqtt.AckFallback(st.AckFallback)}
	}
	return m
}
