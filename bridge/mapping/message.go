package mapping

import (
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// The headers of a Kafka record, in this order. Those of the configuration follow, and then user properties in the order of
// the packet, duplicates included, under their own names; one that would pass for one of these gets userPrefix.
const (
	HeaderTopic         = "mqtt.topic"
	HeaderClientID      = "mqtt.client_id"
	HeaderQoS           = "mqtt.qos"
	HeaderRetain        = "mqtt.retain"
	HeaderID            = "forebay.id"                   // gateway/stream/partition/offset, of a restored spool with ~fork: the record's identity, the same whenever it is sent again
	HeaderReceivedAt    = "forebay.received_at"          // when the timestamp is the device's
	HeaderDeviceTime    = "forebay.device_time"          // what the device said, when it was not believed
	HeaderExpiry        = "mqtt.message_expiry_interval" // seconds that were left when the record was sent
	HeaderPayloadFormat = "mqtt.payload_format"
	HeaderContentType   = "content-type"
	HeaderResponseTopic = "mqtt.response_topic"
	HeaderCorrelation   = "mqtt.correlation_data"
	userPrefix          = "user."
)

var (
	qosBytes   = [3][]byte{[]byte("0"), []byte("1"), []byte("2")}
	falseBytes = []byte("false")
	trueBytes  = []byte("true")
)

// Message makes the Kafka record of what Decide or Topic was last asked about with the same scratch. without is a
// user property that becomes no header; it may be nil.
func (m *Mapper) Message(s *Scratch, rec *spool.Record, d *Decision, without *spool.UserProperty) kafka.Message {
	var msg kafka.Message
	m.MessageIn(&msg, s, rec, d, without)
	return msg
}

// MessageIn is Message that makes it where it is to stay.
func (m *Mapper) MessageIn(msg *kafka.Message, s *Scratch, rec *spool.Record, d *Decision, without *spool.UserProperty) {
	if s.rec != rec {
		panic("BUG: mapping: a message is asked for of a record that was not decided about")
	}
	users := 0
	if rec.Properties != nil {
		users = len(rec.Properties.User) + 4
	}
	// One piece of memory for what is not bytes yet. It must not grow: the headers are slices of it.
	room := len(rec.Topic) + len(rec.ClientID) + len(m.who.Gateway) + len(m.who.Stream) + 48
	if d.key != keyClient && d.key != keyTopic {
		room += len(d.Key)
	}
	buf := s.arena.Bytes(room)
	piece := func(s string) []byte {
		n := len(buf)
		buf = append(buf, s...)
		return buf[n:len(buf):len(buf)]
	}
	topic, client := piece(rec.Topic), piece(rec.ClientID)
	var key []byte
	switch d.key {
	case keyNone:
	case keyClient:
		key = client
	case keyTopic:
		key = topic
	default:
		key = piece(d.Key)
	}
	if key == nil && !d.NoKey {
		key = []byte{} // an empty client ID is a key, none is not
	}
	n := len(buf)
	buf = m.appendID(buf, rec)
	id := buf[n:len(buf):len(buf)]

	at, received, device := m.timestamp(s)
	value, contentType := m.valueOf(s, rec, d, at, view(id))
	s.arena.NewMessage(msg, uint64(rec.Offset), key, value, received, 5+users+len(m.headers)+m.ownHeaders())
	msg.SetTimestamp(at)
	msg.AddHeader(HeaderTopic, topic)
	msg.AddHeader(HeaderClientID, client)
	msg.AddHeader(HeaderQoS, qosBytes[min(rec.QoS, 2)])
	retain := falseBytes
	if rec.Retain {
		retain = trueBytes
	}
	msg.AddHeader(HeaderRetain, retain)
	msg.AddHeader(HeaderID, id)
	if m.time != nil {
		msg.AddHeader(HeaderReceivedAt, received.UTC().AppendFormat(nil, time.RFC3339Nano))
		if device != "" {
			msg.AddHeader(HeaderDeviceTime, []byte(device))
		}
	}
	if left, ok := s.expiry(); ok {
		msg.AddHeader(HeaderExpiry, strconv.AppendInt(nil, left, 10))
	}
	if m.cfg.Value.Format == CloudEventsBinary {
		m.addEvent(msg, s, d, at, id)
	}
	if contentType != "" {
		msg.AddHeader(HeaderContentType, []byte(contentType))
	}
	m.addHeaders(msg, s)
	if rec.Properties != nil {
		m.addProperties(msg, rec.Properties, contentType != "" || m.ownType, without)
	}
}

// ownHeaders is room for the headers that only some mappings have.
func (m *Mapper) ownHeaders() (n int) {
	if m.time != nil {
		n += 2
	}
	if m.cfg.Value.Format == CloudEventsBinary {
		n += 8
	}
	return n
}

// expiry is what is left of the Message Expiry Interval that the publisher gave, in seconds.
func (s *Scratch) expiry() (int64, bool) {
	if s.rec.ExpiresAt == 0 || s.rec.StreamTTL {
		return 0, false
	}
	left := time.Duration(s.rec.ExpiresAt - s.now().UnixNano())
	return max(int64((left+time.Second-1)/time.Second), 0), true
}

// addHeaders adds those of the configuration. One whose fields the record does not have is left out, and counted.
func (m *Mapper) addHeaders(msg *kafka.Message, s *Scratch) {
	for i := range m.headers {
		value, missing, err := m.headers[i].value.appendTo(nil, s)
		if err != nil || missing != nil {
			m.counts.faults[MissingHeader].Add(1)
			continue
		}
		msg.AddHeader(m.headers[i].name, value)
	}
}

func (m *Mapper) addProperties(msg *kafka.Message, p *spool.Properties, hasType bool, without *spool.UserProperty) {
	if p.HasPayloadFormat {
		msg.AddHeader(HeaderPayloadFormat, strconv.AppendUint(nil, uint64(p.PayloadFormat), 10))
	}
	if p.ContentType != "" && !hasType {
		msg.AddHeader(HeaderContentType, []byte(p.ContentType))
	}
	if p.ResponseTopic != "" {
		msg.AddHeader(HeaderResponseTopic, []byte(p.ResponseTopic))
	}
	if p.CorrelationData != nil {
		msg.AddHeader(HeaderCorrelation, p.CorrelationData)
	}
	for i := range p.User {
		u := &p.User[i]
		if u == without {
			continue
		}
		name := u.Name
		if m.reserved(name) {
			name = userPrefix + name
		}
		msg.AddHeader(name, []byte(u.Value))
	}
}

// reserved reports whether a device must not set a header of that name: a consumer would take it for the gateway's, or for
// one that the operator has defined.
func (m *Mapper) reserved(name string) bool {
	if strings.HasPrefix(name, "mqtt.") || strings.HasPrefix(name, "forebay.") || name == HeaderContentType {
		return true
	}
	if m.cfg.Value.Format == CloudEventsBinary && strings.HasPrefix(name, "ce_") {
		return true
	}
	for i := range m.headers {
		if m.headers[i].name == name {
			return true
		}
	}
	return false
}
