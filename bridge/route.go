package bridge

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// route is a route's configuration, ready to be applied to records.
type route struct {
	cfg       RouteConfig
	topic     *template
	key       keySource
	gatewayID string
	up        *upstream
	dead      bool // it reads the dead-letter stream
	counts    counts
	pauses    pauses
	rate      *rate       // nil is no limit
	unread    atomic.Bool // a partition could not be read back

	mu       sync.Mutex
	names    map[string]bool // Kafka topics that the template has made in this process
	overflow bool            // said so
}

// admit returns the Kafka topic to use for one that the template made: itself, or the overflow topic when the route has all
// that it may have. first is true when this is the first one over.
func (r *route) admit(name string) (admitted string, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names[name] || len(r.names) < r.cfg.MaxTopics {
		r.names[name] = true
		return name, false
	}
	first = !r.overflow
	r.overflow = true
	return r.topic.overflow(), first
}

// upstream is a client and what its lanes share.
type upstream struct {
	*kafka.Client
	lanes atomic.Int64
}

func newRoute(cfg RouteConfig, gatewayID string) (*route, error) {
	tmpl, err := parseTemplate(cfg.Topic)
	if err != nil {
		return nil, fmt.Errorf("route %s: topic: %w", cfg.Name, err)
	}
	key, err := parseKey(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("route %s: key: %w", cfg.Name, err)
	}
	return &route{cfg: cfg, topic: tmpl, key: key, gatewayID: gatewayID, rate: newRate(cfg.Rate, cfg.RecordsPerSecond), names: make(map[string]bool)}, nil
}

// keySource says where a record's key comes from.
type keySource struct {
	kind  keyKind
	level int
}

type keyKind uint8

const (
	keyClient keyKind = iota
	keyTopic
	keyLevel
	keyNone
)

func parseKey(s string) (keySource, error) {
	switch {
	case s == KeyClientID:
		return keySource{kind: keyClient}, nil
	case s == KeyTopic:
		return keySource{kind: keyTopic}, nil
	case s == KeyNone:
		return keySource{kind: keyNone}, nil
	case strings.HasPrefix(s, "topic[") && strings.HasSuffix(s, "]"):
		level, err := parseLevel(s)
		return keySource{kind: keyLevel, level: level}, err
	}
	return keySource{}, fmt.Errorf("%q is none of client_id, topic, topic[N], none", s)
}

// of is the text that decides a record's partition. A topic that has no such level falls back to the client ID, so that the
// record still has a place and a key.
func (k keySource) of(r *spool.Record) string {
	switch k.kind {
	case keyTopic:
		return r.Topic
	case keyLevel:
		if level, ok := topicLevel(r.Topic, k.level); ok {
			return level
		}
	}
	return r.ClientID
}

// partitionOf is the Kafka partition of a record, of n. Without a key it is the client ID's, so that order holds.
func partitionOf(r *route, rec *spool.Record, n int32) int32 {
	return kafka.PartitionFor(r.key.of(rec), n)
}

// id is the record's identity, the same whenever it is sent again.
func (r *route) id(rec *spool.Record) string {
	return fmt.Sprintf("%s/%s/%d/%d", r.gatewayID, r.cfg.Stream, rec.Partition, rec.Offset)
}

// record is rec as the route looks at it: a dead letter as the record that it was, at its place among the dead letters, with
// what is known about it as its last user property.
func (r *route) record(rec *spool.Record) *spool.Record {
	if !r.dead {
		return rec
	}
	was, _, err := splitDead(rec)
	if err != nil {
		return rec
	}
	was.Partition, was.Offset, was.ExpiresAt = rec.Partition, rec.Offset, 0
	props := *was.Properties
	props.User = append(props.User, rec.Properties.User[len(rec.Properties.User)-1])
	was.Properties = &props
	return was
}

// matches reports whether the route takes records of an MQTT topic.
func (r *route) matches(topic string) bool {
	for _, f := range r.cfg.Filters {
		if spool.MatchFilter(f, topic) {
			return true
		}
	}
	return false
}

// The headers of a Kafka record, in this order. User properties follow, in the order of the packet, duplicates included,
// under their own names; one that would pass for one of these gets userPrefix.
const (
	headerTopic         = "mqtt.topic"
	headerClientID      = "mqtt.client_id"
	headerQoS           = "mqtt.qos"
	headerRetain        = "mqtt.retain"
	headerPayloadFormat = "mqtt.payload_format"
	headerContentType   = "content-type"
	headerResponseTopic = "mqtt.response_topic"
	headerCorrelation   = "mqtt.correlation_data"
	headerID            = "forebay.id" // gateway/stream/partition/offset: the record's identity, the same whenever it is sent again
	userPrefix          = "user."
)

var (
	qosBytes    = [3][]byte{[]byte("0"), []byte("1"), []byte("2")}
	retainBytes = map[bool][]byte{false: []byte("false"), true: []byte("true")}
)

// message makes the Kafka record. The value is the payload, unchanged.
func (r *route) message(rec *spool.Record) kafka.Message {
	users := 0
	if rec.Properties != nil {
		users = len(rec.Properties.User) + 4
	}
	// One piece of memory for what is not bytes yet. It must not grow: the headers are slices of it.
	key := r.key.of(rec)
	buf := make([]byte, 0, len(rec.Topic)+len(rec.ClientID)+len(key)+len(r.gatewayID)+len(r.cfg.Stream)+48)
	piece := func(s string) []byte {
		n := len(buf)
		buf = append(buf, s...)
		return buf[n:len(buf):len(buf)]
	}
	topic, client := piece(rec.Topic), piece(rec.ClientID)
	var k []byte
	switch r.key.kind {
	case keyNone:
	case keyClient:
		k = client
	case keyTopic:
		k = topic
	default:
		k = piece(key)
	}
	if k == nil && r.key.kind != keyNone {
		k = []byte{} // an empty client ID is a key, none is not
	}
	payload := rec.Payload
	if payload == nil {
		payload = []byte{} // a null value would be a tombstone
	}
	m := kafka.NewMessage(uint64(rec.Offset), k, payload, time.Unix(0, rec.ReceivedAt), 5+users)
	m.AddHeader(headerTopic, topic)
	m.AddHeader(headerClientID, client)
	m.AddHeader(headerQoS, qosBytes[min(rec.QoS, 2)])
	m.AddHeader(headerRetain, retainBytes[rec.Retain])
	n := len(buf)
	buf = append(buf, r.gatewayID...)
	buf = append(buf, '/')
	buf = append(buf, r.cfg.Stream...)
	buf = append(buf, '/')
	buf = strconv.AppendUint(buf, uint64(rec.Partition), 10)
	buf = append(buf, '/')
	buf = strconv.AppendUint(buf, uint64(rec.Offset), 10)
	m.AddHeader(headerID, buf[n:])
	if rec.Properties != nil {
		addProperties(&m, rec.Properties, r.dead)
	}
	return m
}

func addProperties(m *kafka.Message, p *spool.Properties, dead bool) {
	if p.HasPayloadFormat {
		m.AddHeader(headerPayloadFormat, strconv.AppendUint(nil, uint64(p.PayloadFormat), 10))
	}
	if p.ContentType != "" {
		m.AddHeader(headerContentType, []byte(p.ContentType))
	}
	if p.ResponseTopic != "" {
		m.AddHeader(headerResponseTopic, []byte(p.ResponseTopic))
	}
	if p.CorrelationData != nil {
		m.AddHeader(headerCorrelation, p.CorrelationData)
	}
	for i, u := range p.User {
		name := u.Name
		var meta deadMeta
		if dead && i == len(p.User)-1 && name == deadMetaProperty && json.Unmarshal([]byte(u.Value), &meta) == nil {
			addDeadHeaders(m, &meta)
			continue
		}
		if reserved(name) {
			name = userPrefix + name
		}
		m.AddHeader(name, []byte(u.Value))
	}
}

// reserved reports whether a device must not set a header of that name: a consumer would take it for the gateway's.
func reserved(name string) bool {
	return strings.HasPrefix(name, "mqtt.") || strings.HasPrefix(name, "forebay.") || name == headerContentType
}
