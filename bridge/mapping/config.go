package mapping

import (
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Config is what an operator sets of a route's mapping. The parts that are sections of their own in the file are types here.
type Config struct {
	Topic     string
	MaxTopics int
	Key       string
	Partition string
	Headers   []string
	Value     Value
	Timestamp Timestamp
	Condition string
	Sample    Sample
	Choose    []Choice
	OnFault   Policy
}

// Value says what the value of a Kafka record is.
type Value struct {
	// What the value is: raw (the payload, unchanged), envelope (a JSON object with the payload and what is known about it),
	// cloudevents_binary or cloudevents_structured (CloudEvents 1.0, the Kafka protocol binding), or template.
	Format string `yaml:"format"`

	// Template of the value, for format template: text with fields. ${json.temp:json} is a field as JSON.
	Template string `yaml:"template"`

	// What a record without a payload becomes: empty (a value of no bytes), tombstone (no value, which deletes the key in a
	// compacted topic), or drop (it is not sent, and counted). It comes before format.
	EmptyPayload string `yaml:"empty_payload"`

	// Type of CloudEvents, a template. Default: forebay.mqtt.publish.
	Type string `yaml:"type"`

	// Source of CloudEvents, a template that makes a URI reference. Default: /, the gateway, /, and the client ID, percent-encoded.
	Source string `yaml:"source"`

	// Subject of CloudEvents, a template. Default: the MQTT topic.
	Subject string `yaml:"subject"`
}

// Timestamp says what the time of a Kafka record is.
type Timestamp struct {
	// Template of the time, such as ${json.ts} or ${user.sent_at}. Empty: when the gateway received the record. With a template
	// that time is in the header forebay.received_at.
	From string `yaml:"from"`

	// Unit of a number: s, ms, us or ns since 1970, or auto, which tells them by their size. Text of the form
	// 2026-11-30T16:00:00Z is understood with any of them.
	Unit string `yaml:"unit"`

	// How far a device's time may be before that of reception. What is outside of the bounds, missing or not a time is counted,
	// and the time of reception is used. Kafka removes old records by this time. 0: 7d.
	MaxPast unit.Duration `yaml:"max_past"`

	// How far a device's time may be behind that of reception. 0: 5m.
	MaxFuture unit.Duration `yaml:"max_future"`
}

// Sample thins out what a route sends.
type Sample struct {
	// Part of the records that are sent, more than 0 and less than 1. 0 or 1: all.
	Rate float64 `yaml:"rate"`

	// What is chosen: record (each on its own), or key (all records of a key or none: the same devices on each gateway). Both choose
	// the same again whenever a record is looked at.
	By string `yaml:"by"`
}

// Choice is another topic for some of the records.
type Choice struct {
	// Condition, as that of the route.
	When string `yaml:"when"`

	// Kafka topic of the records for which it holds, a template as topic of the route.
	Topic string `yaml:"topic"`
}

// Policy says what becomes of records that a mapping cannot be applied to. Each is counted.
type Policy struct {
	// A field is missing that topic, key, partition or template need and that has no |text: dead_letter; skip (it is not sent); or
	// empty (nothing stands in its place, a key or partition is that of the client ID). Headers without their field are left
	// out, whatever this says.
	MissingField string `yaml:"missing_field"`

	// The payload is not JSON, or larger than max_json, and a template or condition needs a JSON field: dead_letter, skip, or
	// missing (as if it were an object without fields: missing_field and condition_error say what follows).
	InvalidJSON string `yaml:"invalid_json"`

	// A condition ends in an error, such as a missing key: dead_letter, skip, or pass (the route's condition holds, one of choose
	// does not).
	ConditionError string `yaml:"condition_error"`

	// Largest payload that is looked into for JSON fields. 0: 256KiB.
	MaxJSON unit.Bytes `yaml:"max_json"`
}

// Words of the configuration.
const (
	Raw                   = "raw"
	Envelope              = "envelope"
	CloudEventsBinary     = "cloudevents_binary"
	CloudEventsStructured = "cloudevents_structured"
	FromTemplate          = "template"

	EmptyValue = "empty"
	Tombstone  = "tombstone"
	Drop       = "drop"

	DeadLetter = "dead_letter"
	Skip       = "skip"
	Empty      = "empty"
	Pass       = "pass"
	Missing    = "missing"

	ByRecord = "record"
	ByKey    = "key"

	KeyClientID = "client_id"
	KeyTopic    = "topic"
	KeyNone     = "none"
)

// The defaults.
const (
	DefaultType                     = "forebay.mqtt.publish"
	DefaultMaxPast    unit.Duration = unit.Duration(7 * 24 * time.Hour)
	DefaultMaxFuture  unit.Duration = unit.Duration(5 * time.Minute)
	DefaultMaxJSON    unit.Bytes    = 256 << 10
	mostJSON          unit.Bytes    = 16 << 20
	DefaultMaxTopics                = 1000
	maxHeaders                      = 64
	maxHeaderName                   = 255
	maxChoices                      = 64
	longestTimeBounds               = unit.Duration(100 * 365 * 24 * time.Hour)
)

// WithDefaults fills what was left out.
func (v Value) WithDefaults() Value {
	set(&v.Format, Raw)
	set(&v.EmptyPayload, EmptyValue)
	return v
}

// WithDefaults fills what was left out.
func (t Timestamp) WithDefaults() Timestamp {
	set(&t.Unit, "auto")
	set(&t.MaxPast, DefaultMaxPast)
	set(&t.MaxFuture, DefaultMaxFuture)
	return t
}

// WithDefaults fills what was left out.
func (s Sample) WithDefaults() Sample {
	set(&s.By, ByRecord)
	return s
}

// WithDefaults fills what was left out.
func (p Policy) WithDefaults() Policy {
	set(&p.MissingField, DeadLetter)
	set(&p.InvalidJSON, DeadLetter)
	set(&p.ConditionError, DeadLetter)
	set(&p.MaxJSON, DefaultMaxJSON)
	return p
}

// WithDefaults fills what was left out.
func (c Config) WithDefaults() Config {
	set(&c.Key, KeyClientID)
	set(&c.MaxTopics, DefaultMaxTopics)
	c.Value, c.Timestamp, c.Sample, c.OnFault = c.Value.WithDefaults(), c.Timestamp.WithDefaults(), c.Sample.WithDefaults(), c.OnFault.WithDefaults()
	return c
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}
