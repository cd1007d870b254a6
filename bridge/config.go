package bridge

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// Config is what an operator sets.
type Config struct {
	// Kafka clusters that routes send to.
	Upstreams []kafka.Config `yaml:"upstreams"`

	// A Kafka broker inside the gateway, for demo and tests only. Routes name it as upstream embedded.
	Embedded embedded.Config `yaml:"embedded"`

	// Which records go where.
	Routes []RouteConfig `yaml:"routes"`

	// Which Kafka records become publishes. docs/DOWNLINK.md.
	Downlinks []downlink.Config `yaml:"downlinks"`

	// Stream of the spool that takes records which Kafka will never accept, and those of downlinks of which no publish can be made. It is made with one partition unless spool.streams
	// lists it, then without filters; what is in it stays until it is redriven or purged (forebay deadletter), and retention
	// begins then. A route may read it, to copy dead letters to a Kafka topic. With none such a record holds its lane, and
	// health says so.
	DeadLetterStream string `yaml:"dead_letter_stream"`
}

// RouteConfig sends the records of a stream to one upstream.
type RouteConfig struct {
	// Name of the route, for logs, metrics and its cursor: lower-case letters, digits, - and _, at most 64. A renamed route is
	// a new one, and the spool keeps the records of the old one until forebay route retire gives them up.
	Name string `yaml:"name"`

	// Stream of the spool that the route reads. Default: default.
	Stream string `yaml:"stream"`

	// MQTT topic filters of the records that the route takes. Default: all, which is #.
	Filters []string `yaml:"filters"`

	// Name of the upstream. It may be left out when there is only one.
	Upstream string `yaml:"upstream"`

	// Where the route goes on when its upstream is of no use.
	Failover Failover `yaml:"failover"`

	// Kafka topic, may be with fields of the record: ${topic}, ${topic[N]} (level N of the MQTT topic, from 0), ${client_id}, ${user_name},
	// ${user.NAME} (a user property), ${json.PATH} (a field of the payload); docs/MAPPING.md lists them. ${field|text} stands for
	// text when the record has no such field. Values that are not legal in a Kafka topic, or could be mistaken for others, get
	// a hash behind the name.
	Topic string `yaml:"topic"`

	// Other topics for some of the records: the first one whose condition holds.
	Choose []mapping.Choice `yaml:"choose"`

	// Key of the Kafka record, which decides its partition: client_id, topic, topic[N] (a level), none (no key; the client ID
	// still decides the partition, so that a device's records stay in order), or a template such as ${topic[1]}.${json.line}. Records
	// of a device stay in order only among those with the same key.
	Key string `yaml:"key"`

	// Partition, a template that makes a whole number, which is taken modulo the number of partitions. Empty: the key decides.
	Partition string `yaml:"partition"`

	// Headers beside those of the gateway, name=template each, such as site=${topic[1]}. One whose fields a record does not have
	// is left out.
	Headers []string `yaml:"headers"`

	// The value of the Kafka record.
	Value mapping.Value `yaml:"value"`

	// The time of the Kafka record.
	Timestamp mapping.Timestamp `yaml:"timestamp"`

	// Condition of the records that the route sends, a CEL expression over the same fields, such as json.temp > 30.0 &&
	// levels[0] == "plant". Empty: all that the filters match.
	Condition string `yaml:"condition"`

	// Send only a part of the records.
	Sample mapping.Sample `yaml:"sample"`

	// What becomes of records that templates and conditions cannot be applied to.
	OnFault mapping.Policy `yaml:"on_fault"`

	// Where a new route starts: beginning (all that the spool still has), end, or a time such as 2026-11-30T16:00:00Z.
	From string `yaml:"from"`

	// at_least_once, or exactly_once: each record in a transaction with the position behind it, in the compacted topic
	// forebay.positions of the upstream. Consumers have to read with isolation.level read_committed. A dead letter may come
	// twice after a crash.
	Delivery string `yaml:"delivery"`

	// What a new start does when the last run had no end (kill -9, power cut): read_back looks in Kafka for what was sent
	// shortly before, and sends only what is not there, which needs the right to read the topics (ACL READ); resend sends it
	// again, so that some records come twice, with the same forebay.id header.
	AfterCrash string `yaml:"after_crash"`

	// Most bytes a second that the route sends, payloads, keys and headers before compression; 0 is no limit. What is more waits
	// in the spool, the oldest is sent first: a site that comes back does not flood its link.
	Rate unit.Rate `yaml:"rate"`

	// Most records a second that the route sends; 0 is no limit.
	RecordsPerSecond int `yaml:"records_per_second"`

	// What a route that is behind sends first. oldest_first: everything in the order in which it came. live_first: when it is behind by
	// more than live_after and its upstream acknowledges again, what it has not delivered is put aside as a backlog, and what comes from
	// then on goes out at once; the backlog is delivered beside it, the oldest record first, each with the header forebay.backlog=true.
	// Order per device is kept within each of the two, and not between them: old records arrive after newer ones. Not with delivery:
	// exactly_once.
	Drain string `yaml:"drain"`

	// With live_first: how old the record that is next to be sent may be. Default: 1m.
	LiveAfter unit.Duration `yaml:"live_after"`

	// With live_first: most bytes a second of backlogs, counted as rate is. They also keep to what new records leave of rate; 0 is no
	// other limit.
	BacklogRate unit.Rate `yaml:"backlog_rate"`

	// Also send what came by a downlink. Without it such records are left out, so that nothing goes round in circles.
	Downlinks bool `yaml:"downlinks"`

	// Make topics that do not exist. Without it their records wait in the spool, and health says how to make them.
	CreateTopics *kafka.Create `yaml:"create_topics"`

	// Largest number of Kafka topics that the fields in topic may make; records that would need more go to the topic with
	// overflow in place of each field, and health says so.
	MaxTopics int `yaml:"max_topics"`
}

// Words of the configuration.
const (
	EmbeddedUpstream = "embedded"

	KeyClientID = mapping.KeyClientID
	KeyTopic    = mapping.KeyTopic
	KeyNone     = mapping.KeyNone

	AtLeastOnce = "at_least_once"
	ExactlyOnce = "exactly_once"

	ReadBack = "read_back"
	Resend   = "resend"

	FailBackAuto  = "auto"
	FailBackNever = "never"

	FromBeginning = "beginning"
	FromEnd       = "end"

	DefaultDeadLetterStream = "deadletter"
	NoDeadLetters           = "none"
)

// DefaultConfig is the configuration of an empty file: no upstream, no route.
func DefaultConfig() Config {
	return Config{Embedded: embedded.DefaultConfig(), DeadLetterStream: DefaultDeadLetterStream}
}

// deadLetters is the dead-letter stream, empty when there is none, as without routes and downlinks.
func (c Config) deadLetters() string {
	if c.DeadLetterStream == NoDeadLetters || len(c.Routes) == 0 && len(c.Downlinks) == 0 {
		return ""
	}
	return c.DeadLetterStream
}

// WithDefaults fills what a route's entry left out. only is the name of the upstream if there is just one.
func (c RouteConfig) WithDefaults(only string) RouteConfig {
	if c.Stream == "" {
		c.Stream = spool.DefaultStream
	}
	if len(c.Filters) == 0 {
		c.Filters = []string{"#"}
	}
	if c.Upstream == "" {
		c.Upstream = only
	}
	if c.From == "" {
		c.From = FromBeginning
	}
	if c.Delivery == "" {
		c.Delivery = AtLeastOnce
	}
	if c.AfterCrash == "" {
		c.AfterCrash = ReadBack
	}
	if c.Drain == "" {
		c.Drain = OldestFirst
	}
	if c.Drain == LiveFirst && c.LiveAfter == 0 {
		c.LiveAfter = defaultLiveAfter
	}
	c.Failover = c.Failover.withDefaults()
	m := c.mapping().WithDefaults()
	c.Key, c.MaxTopics, c.Value, c.Timestamp, c.Sample, c.OnFault = m.Key, m.MaxTopics, m.Value, m.Timestamp, m.Sample, m.OnFault
	return c
}

// mapping is the part of the route that says what becomes of a record.
func (c RouteConfig) mapping() mapping.Config {
	return mapping.Config{
		Topic: c.Topic, MaxTopics: c.MaxTopics, Key: c.Key, Partition: c.Partition, Headers: c.Headers, Value: c.Value, Timestamp: c.Timestamp,
		Condition: c.Condition, Sample: c.Sample, Choose: c.Choose, OnFault: c.OnFault,
	}
}

// upstreamNames lists the upstreams in order, the embedded one included.
func (c Config) upstreamNames() []string {
	var names []string
	for _, u := range c.Upstreams {
		names = append(names, u.Name)
	}
	if c.Embedded.Enabled {
		names = append(names, EmbeddedUpstream)
	}
	return names
}

func (c Config) onlyUpstream() string {
	if names := c.upstreamNames(); len(names) == 1 {
		return names[0]
	}
	return ""
}

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	seen := make(map[string]int)
	for i, u := range c.Upstreams {
		key := fmt.Sprintf("upstreams[%d]", i)
		errs = append(errs, prefixed(key, u.Validate())...)
		if j, ok := seen[u.Name]; ok {
			fault("%s.name: %q is already the name of upstreams[%d]", key, u.Name, j)
		}
		if u.Name == EmbeddedUpstream {
			fault("%s.name: %q is the broker inside the gateway; take another name", key, u.Name)
		}
		seen[u.Name] = i
	}
	errs = append(errs, prefixed("embedded", c.Embedded.Validate())...)

	names := c.upstreamNames()
	clear(seen)
	for i, r := range c.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		if j, ok := seen[r.Name]; ok {
			fault("%s.name: %q is already the name of routes[%d]", key, r.Name, j)
		}
		seen[r.Name] = i
		r = r.WithDefaults(c.onlyUpstream())
		r.validate(names, c.deadLetters(), func(format string, args ...any) { fault(key+format, args...) })
	}
	errs = append(errs, c.validateDownlinks(seen, names)...)
	switch d := c.deadLetters(); {
	case d == spool.DefaultStream:
		fault("dead_letter_stream: %q takes records of devices; want another one, or none", d)
	case d != "" && !kafka.ValidName(d):
		fault("dead_letter_stream: %q is not 1 to 64 of a-z, 0-9, - and _, starting with a letter or digit", d)
	}
	return errors.Join(errs...)
}

func (c RouteConfig) validate(upstreams []string, deadLetters string, fault func(string, ...any)) {
	if !kafka.ValidName(c.Name) {
		fault(".name: %q is not 1 to 64 of a-z, 0-9, - and _, starting with a letter or digit", c.Name)
	}
	for i, f := range c.Filters {
		if err := spool.CheckFilter(f); err != nil {
			fault(".filters[%d]: %w", i, err)
		}
	}
	known := strings.Join(upstreams, ", ")
	switch {
	case len(upstreams) == 0:
		fault(".upstream: there is none; list one under upstreams, or set embedded.enabled")
	case c.Upstream == "":
		fault(".upstream: which one? there are %s", known)
	case !contains(upstreams, c.Upstream):
		fault(".upstream: unknown upstream %q; there are %s", c.Upstream, known)
	}
	c.Failover.validate(c.Upstream, upstreams, fault)
	c.validateDrain(fault)
	m, err := mapping.New(c.mapping(), mapping.Identity{Stream: c.Stream})
	for _, e := range prefixed("", err) {
		fault("%w", e)
	}
	if err == nil && m.CanFail() && deadLetters == "" {
		fault(".on_fault: records without a field that is needed become dead letters, and there is no dead_letter_stream; say skip, or what else is to be done")
	}
	if _, err := parseFrom(c.From); err != nil {
		fault(".from: %w", err)
	}
	if c.Delivery != AtLeastOnce && c.Delivery != ExactlyOnce {
		fault(".delivery: %q is neither at_least_once nor exactly_once", c.Delivery)
	}
	if c.Delivery == ExactlyOnce && c.Upstream == EmbeddedUpstream {
		fault(".delivery: the embedded upstream does not keep transactions across a crash; use a real cluster for exactly_once")
	}
	if c.AfterCrash != ReadBack && c.AfterCrash != Resend {
		fault(".after_crash: %q is neither read_back nor resend", c.AfterCrash)
	}
	if c.Rate < 0 || c.Rate > 0 && c.Rate < 1<<10 {
		fault(".rate: %v is less than 1KiB/s; 0 is no limit", c.Rate)
	}
	if c.RecordsPerSecond < 0 {
		fault(".records_per_second: %d is negative; 0 is no limit", c.RecordsPerSecond)
	}
	if ct := c.CreateTopics; ct != nil {
		if ct.Partitions < 1 || ct.Partitions > 10_000 {
			fault(".create_topics.partitions: %d is not between 1 and 10000", ct.Partitions)
		}
		if ct.Replication < 0 || ct.Replication > 100 {
			fault(".create_topics.replication: %d is not between 1 and 100; leave it out for the cluster's default", ct.Replication)
		}
		for i, kv := range ct.Configs {
			if k, _, ok := strings.Cut(kv, "="); !ok || k == "" {
				fault(".create_topics.configs[%d]: %q is not key=value, such as retention.ms=86400000", i, kv)
			}
		}
	}
}

func parseFrom(s string) (spool.Start, error) {
	switch s {
	case FromBeginning:
		return spool.Beginning, nil
	case FromEnd:
		return spool.End, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return spool.Start{}, fmt.Errorf("%q is none of beginning, end, or a time such as 2026-11-30T16:00:00Z", s)
	}
	return spool.At(t), nil
}

// prefixed puts the key in front of each of the joined faults of a part.
func prefixed(key string, err error) []error {
	if err == nil {
		return nil
	}
	faults := []error{err}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		faults = j.Unwrap()
	}
	out := make([]error, len(faults))
	for i, e := range faults {
		out[i] = fmt.Errorf("%s.%w", key, e)
	}
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
