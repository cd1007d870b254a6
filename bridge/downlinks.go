package bridge

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// wasDown reports whether the route leaves rec out because it came by a downlink. Dead letters are no publishes: a route of them takes all.
func (r *route) wasDown(rec *spool.Record) bool {
	return !r.cfg.Downlinks && !r.dead && strings.HasPrefix(rec.ClientID, downlink.ClientPrefix)
}

// DownlinkConfigs are the downlinks with their defaults.
func (c Config) DownlinkConfigs() []downlink.Config {
	var out []downlink.Config
	for _, d := range c.Downlinks {
		out = append(out, d.WithDefaults(c.onlyUpstream()))
	}
	return out
}

// validateDownlinks reports what is wrong with the downlinks. routes are the names that are taken.
func (c Config) validateDownlinks(routes map[string]int, upstreams []string) (errs []error) {
	seen := make(map[string]int)
	for i, d := range c.DownlinkConfigs() {
		key := fmt.Sprintf("downlinks[%d]", i)
		errs = append(errs, prefixed(key, d.Validate(upstreams, c.deadLetters() != ""))...)
		if j, ok := seen[d.Name]; ok {
			errs = append(errs, fmt.Errorf("%s.name: %q is already the name of downlinks[%d]", key, d.Name, j))
		}
		if j, ok := routes[d.Name]; ok {
			errs = append(errs, fmt.Errorf("%s.name: %q is already the name of routes[%d]", key, d.Name, j))
		}
		seen[d.Name] = i
		for j, r := range c.Routes {
			r = r.WithDefaults(c.onlyUpstream())
			if !r.Downlinks || d.OwnRecords != downlink.OwnPass || r.Upstream != d.Upstream && !contains(r.Failover.To, d.Upstream) {
				continue
			}
			if topic, ok := r.sendsTo(d.Takes); ok {
				errs = append(errs, fmt.Errorf("%s.own_records: pass, and routes[%d] sends what came by a downlink to topic %s of the same upstream: its records would go round for ever",
					key, j, topic))
			}
		}
	}
	return errs
}

// sendsTo is the first fixed topic of the route that takes says yes to.
func (c RouteConfig) sendsTo(takes func(topic string) bool) (topic string, ok bool) {
	if takes(c.Topic) {
		return c.Topic, true
	}
	for _, choice := range c.Choose {
		if takes(choice.Topic) {
			return choice.Topic, true
		}
	}
	return "", false
}

// NewDownlinks makes the engine of the bridge's downlinks. The bridge has to be open until it is closed.
func (b *Bridge) NewDownlinks(front downlink.Front, gatewayID string) (*downlink.Engine, error) {
	e, err := downlink.New(b.cfg.DownlinkConfigs(), downlink.Options{
		Log: b.source, Front: front, GatewayID: gatewayID, DeadLetters: b.cfg.deadLetters(), Bury: b.buryIncoming, Logger: b.log, Registerer: b.registerer,
		Now: b.now, Upstream: func(name string) *kafka.Client {
			for _, u := range b.upstreams {
				if u.Name() == name {
					return u.Client
				}
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	b.down.Store(e) // for dead letters that are sent again
	return e, nil
}

// deadIncoming is what a dead letter of a downlink has of the Kafka record beside its value, which is the payload. Where a value was too large
// there is no payload: the record is in Kafka, as long as that keeps it.
type deadIncoming struct {
	Offset    int64        `json:"offset"`
	Timestamp time.Time    `json:"timestamp"`
	Key       []byte       `json:"key"` // base64; null when the record has none
	Null      bool         `json:"null_value,omitempty"`
	Cut       bool         `json:"cut,omitempty"` // the value is left out
	Size      int          `json:"size"`          // of the value
	Headers   []deadHeader `json:"headers,omitempty"`
	LeftOut   int          `json:"headers_left_out,omitempty"`
}

type deadHeader struct {
	Name  string `json:"name"`
	Value []byte `json:"value"` // base64
}

// What a dead letter keeps of key and headers: a user property has 65,535 bytes, and base64 needs a third more.
const maxDeadHeaders = 24 << 10

// buryIncoming makes the dead letter of a Kafka record. Its topic as a record is the Kafka topic.
func (b *Bridge) buryIncoming(l downlink.Letter) (*spool.Record, error) {
	in := l.Record
	kept := &deadIncoming{Offset: in.Offset, Timestamp: in.Timestamp.UTC(), Null: in.Value == nil, Cut: l.Cut, Size: len(in.Value)}
	room := maxDeadHeaders
	if room -= len(in.Key); room >= 0 {
		kept.Key = in.Key
	} else {
		kept.LeftOut++
	}
	for i := range in.Headers {
		h := &in.Headers[i]
		if room -= len(h.Name) + len(h.Value) + 32; room < 0 {
			kept.LeftOut++
			continue
		}
		kept.Headers = append(kept.Headers, deadHeader{strings.ToValidUTF8(h.Name, "\ufffd"), h.Value})
	}
	meta := deadMeta{
		Version: deadVersion, At: b.now().UTC(), Route: l.Downlink, Upstream: l.Upstream, ID: fmt.Sprintf("%s/%d/%d", in.Topic, in.Partition, in.Offset),
		KafkaTopic: in.Topic, KafkaPartition: in.Partition, Reason: l.Reason, Hint: l.Hint, Downlink: kept,
	}
	if l.Err != nil {
		text := l.Err.Error()
		meta.Error = strings.ToValidUTF8(text[:min(len(text), maxDeadError)], "")
	}
	rec := &spool.Record{Topic: in.Topic}
	if !l.Cut {
		rec.Payload = append([]byte(nil), in.Value...)
		if utf8.Valid(rec.Payload) {
			rec.Properties = &spool.Properties{HasPayloadFormat: true, PayloadFormat: 1}
		}
	}
	return deadRecord(rec, meta)
}

// incoming is the Kafka record again.
func (k *deadIncoming) incoming(topic string, partition int32, value []byte) *kafka.Incoming {
	in := &kafka.Incoming{Topic: topic, Partition: partition, Offset: k.Offset, Epoch: -1, Timestamp: k.Timestamp, Key: k.Key, Value: value}
	switch { // the spool has no null
	case k.Null:
		in.Value = nil
	case value == nil:
		in.Value = []byte{}
	}
	for _, h := range k.Headers {
		in.Headers = append(in.Headers, kafka.Header(h))
	}
	return in
}
