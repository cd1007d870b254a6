package downlink

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Config brings the records of some Kafka topics to MQTT.
type Config struct {
	// Name of the downlink, for logs, metrics and its positions: lower-case letters, digits, - and _, at most 64; no route has it. A
	// downlink with another name is a new one, and begins where from says.
	Name string `yaml:"name"`

	// Name of the upstream. It may be left out when there is only one.
	Upstream string `yaml:"upstream"`

	// Kafka topics, by name.
	Topics []string `yaml:"topics"`

	// Kafka topics, by a regular expression (RE2) that the whole name has to match, such as commands\..*; in place of topics. Topics that
	// are made later are found within seconds and read from their beginning. forebay.positions is never among them.
	Pattern string `yaml:"pattern"`

	// Where a new downlink begins in the topics that it finds: end (what comes from now on), beginning, or a time such as
	// 2026-11-30T16:00:00Z. Later the positions in the spool count. Partitions and topics that come later are read from their beginning.
	From string `yaml:"from"`

	// MQTT topic, may be with fields of the record: ${key}, ${header.NAME}, ${json.PATH} (a field of the value), ${topic} and ${topic[N]}
	// (the Kafka topic, and part N of it between dots, from 0); docs/DOWNLINK.md lists them. The value of a field is one level or a part of
	// it; with ${field:path} it may have several. Wildcards, U+0000 and the like never pass.
	Topic string `yaml:"topic"`

	// QoS of the publish: 0, 1, 2, or a template such as ${header.mqtt.qos|1}.
	QoS string `yaml:"qos"`

	// RETAIN of the publish: true, false, or a template such as ${header.mqtt.retain|false}.
	Retain string `yaml:"retain"`

	// Message expiry: empty for none, seconds, a duration such as 10m, or a template such as ${header.ttl|3600}, counted from the time of
	// the Kafka record. A record whose time is over is left out, and counted.
	Expiry string `yaml:"expiry"`

	// Content type of the publish, a template, which is left out when a field is missing.
	ContentType string `yaml:"content_type"`

	// Response topic of the publish, a template, which is left out when a field is missing.
	ResponseTopic string `yaml:"response_topic"`

	// Correlation data of the publish, a template, which is left out when a field is missing.
	CorrelationData string `yaml:"correlation_data"`

	// Headers that become user properties: names, or beginnings of names with a * behind. Headers of the gateway (forebay. and mqtt.),
	// content-type, and those whose value is no text do not.
	UserProperties []string `yaml:"user_properties"`

	// Most user properties of a publish. What is more is left out, and counted. mqtt.max_user_properties is a limit too.
	MaxUserProperties int `yaml:"max_user_properties"`

	// Largest value of a record, and largest sum of its user properties. A record with a larger one is a dead letter without its value.
	MaxPayload unit.Bytes `yaml:"max_payload"`

	// Largest value that is looked into for JSON fields. 0: 256KiB.
	MaxJSON unit.Bytes `yaml:"max_json"`

	// What becomes of a null value (a tombstone): drop (nothing is published, and it is counted), clear (the retained message of the MQTT
	// topic is removed), or empty (a publish without payload).
	NullValue string `yaml:"null_value"`

	// Records with a forebay.id header of this gateway, which it sent to Kafka itself: drop, or pass. Programs that copy headers from what
	// they read to what they write, as Kafka Streams does, need pass.
	OwnRecords string `yaml:"own_records"`

	// What becomes of records of which no publish can be made: dead_letter, or skip (they are counted).
	OnPoison string `yaml:"on_poison"`

	// What to do when records are gone before they were read, or the topic was made anew: continue with what there is, or hold the partition
	// until forebay downlink resume. Both are counted and logged.
	OnGap string `yaml:"on_gap"`

	// Records of transactions: read_committed, or read_uncommitted.
	Isolation string `yaml:"isolation"`

	// Memory for what is read and not in the spool yet.
	MaxBuffered unit.Bytes `yaml:"max_buffered"`
}

// Words of the configuration.
const (
	FromBeginning = "beginning"
	FromEnd       = "end"

	NullDrop  = "drop"
	NullClear = "clear"
	NullEmpty = "empty"

	OwnDrop = "drop"
	OwnPass = "pass"

	DeadLetter = "dead_letter"
	Skip       = "skip"

	Continue = "continue"
	Hold     = "hold"

	ReadCommitted   = "read_committed"
	ReadUncommitted = "read_uncommitted"

	DefaultMaxUserProperties            = 32
	DefaultMaxPayload        unit.Bytes = 1 << 20
	DefaultMaxBuffered       unit.Bytes = 8 << 20
)

// WithDefaults fills what an entry left out. only is the name of the upstream if there is just one.
func (c Config) WithDefaults(only string) Config {
	set(&c.Upstream, only)
	set(&c.From, FromEnd)
	set(&c.QoS, "1")
	set(&c.Retain, "false")
	set(&c.ContentType, "${header.content-type}")
	set(&c.ResponseTopic, "${header.mqtt.response_topic:path}")
	set(&c.CorrelationData, "${header.mqtt.correlation_data}")
	if len(c.UserProperties) == 0 {
		c.UserProperties = []string{"*"}
	}
	set(&c.MaxUserProperties, DefaultMaxUserProperties)
	set(&c.MaxPayload, DefaultMaxPayload)
	set(&c.NullValue, NullDrop)
	set(&c.OwnRecords, OwnDrop)
	set(&c.OnPoison, DeadLetter)
	set(&c.OnGap, Continue)
	set(&c.Isolation, ReadCommitted)
	set(&c.MaxBuffered, DefaultMaxBuffered)
	return c
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func (c Config) mapping() mapping.DownConfig {
	return mapping.DownConfig{
		Topic: c.Topic, QoS: c.QoS, Retain: c.Retain, Expiry: c.Expiry, ContentType: c.ContentType, ResponseTopic: c.ResponseTopic,
		CorrelationData: c.CorrelationData, UserProperties: c.UserProperties, MaxUserProperties: c.MaxUserProperties,
		MaxPayload: int(c.MaxPayload), MaxJSON: int(c.MaxJSON), ClearNull: c.NullValue == NullClear,
	}
}

// Validate reports everything that is wrong with an entry that has its defaults, each with the key that has to change. upstreams are the
// names that there are; deadLetters tells whether there is a dead-letter stream.
func (c Config) Validate(upstreams []string, deadLetters bool) error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !kafka.ValidName(c.Name) {
		fault("name: %q is not 1 to 64 of a-z, 0-9, - and _, starting with a letter or digit", c.Name)
	}
	known := false
	for _, u := range upstreams {
		known = known || u == c.Upstream
	}
	switch {
	case len(upstreams) == 0:
		fault("upstream: there is none; list one under upstreams, or set embedded.enabled")
	case c.Upstream == "":
		fault("upstream: which one? there are %s", strings.Join(upstreams, ", "))
	case !known:
		fault("upstream: unknown upstream %q; there are %s", c.Upstream, strings.Join(upstreams, ", "))
	}
	c.validateTopics(fault)
	if _, err := parseFrom(c.From); err != nil {
		fault("from: %w", err)
	}
	if _, err := mapping.NewDown(c.mapping(), ""); err != nil {
		if joined, ok := err.(interface{ Unwrap() []error }); ok { // one by one: each has a key of its own
			errs = append(errs, joined.Unwrap()...)
		} else {
			errs = append(errs, err)
		}
	}
	word := func(key, got string, want ...string) {
		for _, w := range want {
			if got == w {
				return
			}
		}
		fault("%s: %q is none of %s", key, got, strings.Join(want, ", "))
	}
	word("null_value", c.NullValue, NullDrop, NullClear, NullEmpty)
	word("own_records", c.OwnRecords, OwnDrop, OwnPass)
	word("on_poison", c.OnPoison, DeadLetter, Skip)
	word("on_gap", c.OnGap, Continue, Hold)
	word("isolation", c.Isolation, ReadCommitted, ReadUncommitted)
	if c.OnPoison == DeadLetter && !deadLetters {
		fault("on_poison: there is no dead_letter_stream; say skip, or set one")
	}
	if c.MaxUserProperties < 0 || c.MaxUserProperties > 1000 {
		fault("max_user_properties: %d is not between 0 and 1000", c.MaxUserProperties)
	}
	if c.MaxPayload < 1<<10 || c.MaxPayload > 16<<20 {
		fault("max_payload: %v is not between 1KiB and 16MiB", c.MaxPayload)
	}
	if c.MaxJSON < 0 || c.MaxJSON > 16<<20 {
		fault("max_json: %v is more than 16MiB", c.MaxJSON)
	}
	if c.MaxBuffered < 64<<10 || c.MaxBuffered > 1<<30 {
		fault("max_buffered: %v is not between 64KiB and 1GiB", c.MaxBuffered)
	}
	return errors.Join(errs...)
}

var kafkaTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func (c Config) validateTopics(fault func(string, ...any)) {
	switch {
	case len(c.Topics) == 0 && c.Pattern == "":
		fault("topics: none given; name Kafka topics, or set pattern")
	case len(c.Topics) > 0 && c.Pattern != "":
		fault("pattern: topics are named too; want one of the two")
	case len(c.Topics) > 1000:
		fault("topics: %d topics, at most 1000", len(c.Topics))
	}
	for i, t := range c.Topics {
		if !kafkaTopic.MatchString(t) || t == "." || t == ".." {
			fault("topics[%d]: %q is no Kafka topic: 1 to 249 letters, digits, dots, underscores and hyphens", i, t)
		}
	}
	if c.Pattern != "" {
		if _, err := c.pattern(); err != nil {
			fault("pattern: %w", err)
		}
	}
}

// pattern is the regular expression for whole names, nil when topics are named.
func (c Config) pattern() (*regexp.Regexp, error) {
	if c.Pattern == "" {
		return nil, nil
	}
	return regexp.Compile(`^(?:` + c.Pattern + `)$`)
}

// Takes reports whether the downlink reads a Kafka topic.
func (c Config) Takes(topic string) bool {
	if re, err := c.pattern(); err == nil && re != nil {
		return re.MatchString(topic)
	}
	for _, t := range c.Topics {
		if t == topic {
			return true
		}
	}
	return false
}

// start is where a new downlink begins.
type start struct {
	end bool
	at  time.Time // zero: the beginning
}

func parseFrom(s string) (start, error) {
	switch s {
	case FromBeginning:
		return start{}, nil
	case FromEnd:
		return start{end: true}, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return start{}, fmt.Errorf("%q is none of beginning, end, or a time such as 2026-11-30T16:00:00Z", s)
	}
	return start{at: t}, nil
}
