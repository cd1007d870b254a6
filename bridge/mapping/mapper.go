package mapping

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// Identity is whose records they are.
type Identity struct {
	Gateway, Stream string
	Forks           []spool.Fork // of the spool
}

// AppendID appends the identity of the record at an offset, gateway/stream/partition/offset. Of what came after a restore it ends in
// ~fork: the gateway that was backed up may have given the offset to another record.
func (i *Identity) AppendID(to []byte, partition uint16, o spool.Offset) []byte {
	to = append(to, i.Gateway...)
	to = append(to, '/')
	to = append(to, i.Stream...)
	to = append(to, '/')
	to = strconv.AppendUint(to, uint64(partition), 10)
	to = append(to, '/')
	to = strconv.AppendUint(to, uint64(o), 10)
	if len(i.Forks) > 0 {
		to = append(to, i.Suffix(partition, o)...)
	}
	return to
}

// Suffix is what an ID has behind the offset.
func (i *Identity) Suffix(partition uint16, o spool.Offset) string {
	if fork := spool.ForkOf(i.Forks, i.Stream, int(partition), o); fork != "" {
		return "~" + fork
	}
	return ""
}

// Mapper is a mapping, ready to be applied. Its methods may be called by many goroutines at the same time, each with a scratch
// of its own.
type Mapper struct {
	cfg       Config
	who       Identity
	topic     *topicTemplate
	choices   []choice
	condition *condition
	key       keySource
	partition *template
	headers   []header
	ownType   bool // a header of the configuration stands for the property content type
	value     *template
	events    events
	time      *template
	maxJSON   int
	sample    uint64 // a hash below it is chosen; 0 is no sampling
	plain     bool
	counts    counts
}

type choice struct {
	when  *condition
	topic *topicTemplate
}

type header struct {
	name  string
	value *template
}

// Scratch is what applying a mapping needs in memory: one record at a time, used again for the next.
type Scratch struct {
	m   *Mapper
	rec *spool.Record
	now func() time.Time

	doc     jsonDoc
	parsed  bool
	jsonErr error

	buf       []byte
	faults    uint32 // of the record in hand, a bit for each reason
	work      work
	own       kafka.Arena  // of messages that have no other memory
	arena     *kafka.Arena // of messages
	celLevels celLevels
	celUser   celUser
}

// NewScratch makes one. now is the clock of Record.ExpiresAt.
func (m *Mapper) NewScratch(now func() time.Time) *Scratch {
	s := &Scratch{m: m, now: now}
	s.doc.work = &s.work
	s.Use(nil)
	return s
}

// Use has the messages to come made in a, which may be nil.
func (s *Scratch) Use(a *kafka.Arena) {
	if a == nil {
		a = &s.own
	}
	s.arena = a
}

func (s *Scratch) begin(rec *spool.Record) {
	s.rec, s.parsed, s.jsonErr = rec, false, nil
}

// New makes a mapping. The error has every fault, each beginning with the key that has to change.
func New(cfg Config, who Identity) (*Mapper, error) {
	cfg = cfg.WithDefaults()
	m := &Mapper{cfg: cfg, who: who, maxJSON: int(cfg.OnFault.MaxJSON)}
	var errs []error
	fault := func(key string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	optional := func(key, text string) *template {
		if text == "" {
			return nil
		}
		t, err := parseTemplate(text)
		fault(key, err)
		return t
	}
	var err error
	m.topic, err = parseTopic(cfg.Topic)
	fault("topic", err)
	m.key, err = parseKey(cfg.Key)
	fault("key", err)
	m.partition = optional("partition", cfg.Partition)
	for i, text := range cfg.Headers {
		h, err := parseHeader(text, cfg.Value.Format)
		fault(fmt.Sprintf("headers[%d]", i), err)
		m.headers = append(m.headers, h)
		m.ownType = m.ownType || h.name == HeaderContentType
	}
	if n := len(cfg.Headers); n > maxHeaders {
		fault("headers", fmt.Errorf("%d headers, at most %d", n, maxHeaders))
	}
	if cfg.Condition != "" {
		m.condition, err = parseCondition(cfg.Condition, m.maxJSON)
		fault("condition", err)
	}
	if n := len(cfg.Choose); n > maxChoices {
		fault("choose", fmt.Errorf("%d choices, at most %d", n, maxChoices))
	}
	for i, c := range cfg.Choose {
		var ch choice
		ch.when, err = parseCondition(c.When, m.maxJSON)
		fault(fmt.Sprintf("choose[%d].when", i), err)
		ch.topic, err = parseTopic(c.Topic)
		fault(fmt.Sprintf("choose[%d].topic", i), err)
		m.choices = append(m.choices, ch)
	}
	m.time = optional("timestamp.from", cfg.Timestamp.From)
	m.value = optional("value.template", cfg.Value.Template)
	m.events = events{
		kind: optional("value.type", cfg.Value.Type), source: optional("value.source", cfg.Value.Source),
		subject: optional("value.subject", cfg.Value.Subject),
	}
	cfg.check(fault)
	if r := cfg.Sample.Rate; r > 0 && r < 1 {
		m.sample = uint64(r * math.MaxUint64)
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	m.plain = m.topic.byTopic() && m.key.template == nil && m.partition == nil && m.condition == nil && m.sample == 0 && len(m.choices) == 0 &&
		cfg.Value.EmptyPayload != Drop && m.value == nil
	return m, nil
}

// Plain reports whether nothing but MQTT topic and client ID decides where a record goes, and every record is sent: then the Kafka
// topic may be remembered by those two.
func (m *Mapper) Plain() bool { return m.plain }

// Constant reports whether all records get the same topic.
func (m *Mapper) Constant() bool { return len(m.choices) == 0 && m.topic.constant() }

// Text is the topic of the configuration: the Kafka topic of every record, when that is constant.
func (m *Mapper) Text() string { return m.cfg.Topic }

// UsesClient reports whether the Kafka topic of a plain mapping depends on the client ID.
func (m *Mapper) UsesClient() bool { return m.topic.has(fromClientID) }

// CanFail reports whether a record may have a fault that the policy makes a dead letter.
func (m *Mapper) CanFail() bool {
	p := m.cfg.OnFault
	conditions := m.condition != nil || len(m.choices) > 0
	needs := m.partition != nil
	for _, t := range []*template{m.topic.template, m.key.template, m.partition, m.value} {
		needs = needs || t != nil && t.needs()
	}
	for _, c := range m.choices {
		needs = needs || c.topic.needs()
	}
	return needs && p.MissingField == DeadLetter || conditions && p.ConditionError == DeadLetter ||
		(needs || conditions) && p.InvalidJSON == DeadLetter
}

// needs reports whether the template has a field that a record may lack.
func (t *template) needs() bool {
	for i := range t.parts {
		if p := &t.parts[i]; p.field != nil && (p.fallback == nil || p.field.source == fromJSON) && !always[p.field.source] {
			return true
		}
	}
	return false
}

// always are the fields that every record has. A topic level is not needed: topics and keys know what to do without it.
var always = map[source]bool{
	fromTopic: true, fromLevel: true, fromClientID: true, fromQoS: true, fromRetain: true, fromReceivedAt: true, fromReceivedMS: true,
	fromPayload: true, fromID: true, fromGateway: true, fromStream: true,
}

// Places is what decides which records go where, as text: two mappings with the same one place every record the same way.
// It is empty when only topic and key of the configuration do.
func (m *Mapper) Places() string {
	c := m.cfg
	if c.Partition == "" && c.Condition == "" && m.sample == 0 && len(c.Choose) == 0 && c.Value.EmptyPayload != Drop && m.plain {
		return ""
	}
	return fmt.Sprintf("%q %q %v %q %q %q %q %v %v", c.Partition, c.Condition, c.Sample, c.Choose, c.Value.EmptyPayload, c.Value.Template,
		[]string{c.OnFault.MissingField, c.OnFault.InvalidJSON, c.OnFault.ConditionError}, c.OnFault.MaxJSON, m.who.Gateway)
}

// Topic is the Kafka topic of a record, for a mapping that is plain, and the one that takes what is too much.
func (m *Mapper) Topic(s *Scratch, rec *spool.Record) (name, overflow string) {
	s.begin(rec)
	name, _, _ = m.topic.render(s)
	return name, m.topic.over
}

// ID is a record's identity, the same whenever it is sent again.
func (m *Mapper) ID(rec *spool.Record) string { return string(m.appendID(nil, rec)) }

func (m *Mapper) appendID(to []byte, rec *spool.Record) []byte {
	return m.who.AppendID(to, rec.Partition, rec.Offset)
}
