package mapping

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// Identity is whose records they are.
type Identity struct{ Gateway, Stream string }

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
	celLevels celLevels
	celUser   celUser
}

// NewScratch makes one. now is the clock of Record.ExpiresAt.
func (m *Mapper) NewScratch(now func() time.Time) *Scratch {
	s := &Scratch{m: m, now: now}
	s.doc.work = &s.work
	return s
}

func (s *Scratch) begin(rec *spool.Record) {
	s.rec, s.parsed, s.jsonErr = rec, false, nil
}

// Action is what becomes of a record.
type Action uint8

// The actions.
const (
	Send   Action = iota
	Leave         // it is not sent
	Refuse        // it is a dead letter
)

// Decision is what becomes of a record, and where it goes.
type Decision struct {
	Action Action
	Reason Reason // of Leave and Refuse
	Err    error  // of a fault
	Hint   string // what can be done about it

	Topic    string // Kafka topic; not set for a mapping that is plain
	Overflow string // takes the record when the route has all the topics it may have
	Constant bool   // Topic does not count as one that a template made

	Key       string // decides the partition, unless that is given
	NoKey     bool   // the Kafka record gets no key
	Partition int64  // taken modulo the number of partitions; negative: by Key

	key   keyKind
	value []byte // of a value template
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

// check reports what is wrong with words and numbers.
func (c Config) check(fault func(string, error)) {
	oneOf := func(key, got string, want ...string) {
		for _, w := range want {
			if got == w {
				return
			}
		}
		fault(key, fmt.Errorf("%q is none of %s", got, strings.Join(want, ", ")))
	}
	v, t, p := c.Value, c.Timestamp, c.OnFault
	oneOf("value.format", v.Format, Raw, Envelope, CloudEventsBinary, CloudEventsStructured, FromTemplate)
	oneOf("value.empty_payload", v.EmptyPayload, EmptyValue, Tombstone, Drop)
	oneOf("timestamp.unit", t.Unit, "auto", "s", "ms", "us", "ns")
	oneOf("sample.by", c.Sample.By, ByRecord, ByKey)
	oneOf("on_fault.missing_field", p.MissingField, DeadLetter, Skip, Empty)
	oneOf("on_fault.invalid_json", p.InvalidJSON, DeadLetter, Skip, Missing)
	oneOf("on_fault.condition_error", p.ConditionError, DeadLetter, Skip, Pass)
	events := v.Format == CloudEventsBinary || v.Format == CloudEventsStructured
	switch {
	case v.Format == FromTemplate && v.Template == "":
		fault("value.template", errors.New("empty; format template needs one"))
	case v.Format != FromTemplate && v.Template != "":
		fault("value.template", fmt.Errorf("format is %s; set it to template", v.Format))
	}
	if !events {
		for key, text := range map[string]string{"type": v.Type, "source": v.Source, "subject": v.Subject} {
			if text != "" {
				fault("value."+key, fmt.Errorf("format is %s; this is for CloudEvents", v.Format))
			}
		}
	}
	if v.EmptyPayload == Tombstone && c.Key == KeyNone {
		fault("value.empty_payload", errors.New("a tombstone deletes the key of a record, and key is none"))
	}
	if c.Sample.Rate < 0 || c.Sample.Rate > 1 {
		fault("sample.rate", fmt.Errorf("%v is not between 0 and 1", c.Sample.Rate))
	}
	for key, d := range map[string]int64{"max_past": int64(t.MaxPast), "max_future": int64(t.MaxFuture)} {
		if d < 0 || d > int64(longestTimeBounds) {
			fault("timestamp."+key, fmt.Errorf("%v is not between 0 and 100 years", time.Duration(d)))
		}
	}
	if p.MaxJSON < 1 || p.MaxJSON > mostJSON {
		fault("on_fault.max_json", fmt.Errorf("%v is not between 1B and %v", p.MaxJSON, mostJSON))
	}
	if c.MaxTopics < 1 || c.MaxTopics > 100_000 {
		fault("max_topics", fmt.Errorf("%d is not between 1 and 100000", c.MaxTopics))
	}
}

// parseHeader reads name=template.
func parseHeader(text, format string) (h header, err error) {
	name, value, ok := strings.Cut(text, "=")
	switch {
	case !ok || name == "":
		return h, fmt.Errorf("%q is not name=template, such as site=${topic[1]}", text)
	case len(name) > maxHeaderName:
		return h, fmt.Errorf("the name has %d bytes, at most %d", len(name), maxHeaderName)
	case strings.HasPrefix(name, "mqtt."), strings.HasPrefix(name, "forebay."),
		(format == CloudEventsBinary || format == CloudEventsStructured) && (strings.HasPrefix(name, "ce_") || name == HeaderContentType):
		return h, fmt.Errorf("the header %s is the gateway's own", name)
	}
	h.name = name
	if h.value, err = parseTemplate(value); err != nil {
		return h, fmt.Errorf("behind %s=: %w", name, err)
	}
	return h, nil
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

// Place is Decide with the Kafka topic of a plain mapping too, and counts nothing.
func (m *Mapper) Place(s *Scratch, rec *spool.Record) Decision {
	d := m.Decide(s, rec, true)
	if m.plain {
		d.Topic, _, _ = m.topic.render(s)
		d.Overflow, d.Constant = m.topic.over, m.topic.constant()
	}
	return d
}

// Decide says what becomes of a record. again is true when it was asked for the record before: then nothing is counted.
func (m *Mapper) Decide(s *Scratch, rec *spool.Record, again bool) (d Decision) {
	s.begin(rec)
	d.Partition = -1
	if m.plain {
		m.key.decide(&d, rec)
		return d
	}
	s.faults = 0
	fault := m.decide(s, rec, &d)
	if fault != nil && (d.Action == Send || d.Reason == None) {
		d.Reason, d.Err, d.Hint = fault.Reason, fault.Err, fault.Reason.hint()
	}
	if f, ok := s.jsonErr.(*Fault); ok { // may be that the policy takes it for an object without fields
		s.faults |= 1 << f.Reason
	}
	if !again {
		for r := range m.counts.faults {
			if s.faults&(1<<r) != 0 {
				m.counts.faults[r].Add(1)
			}
		}
		if d.Action == Leave {
			m.counts.leftOut[d.Reason].Add(1)
		}
	}
	return d
}

// decide returns the fault that ended it, or that the policy let pass.
func (m *Mapper) decide(s *Scratch, rec *spool.Record, d *Decision) (last *Fault) {
	// stops notes a fault, and reports whether the policy ends the record's way.
	stops := func(err error) bool {
		if err == nil {
			return false
		}
		fault, ok := errors.AsType[*Fault](err)
		if !ok {
			panic(fmt.Sprintf("BUG: mapping: %v is no fault", err))
		}
		last = fault
		s.faults |= 1 << fault.Reason
		switch m.policy(fault.Reason) {
		case DeadLetter:
			d.Action = Refuse
		case Skip:
			d.Action = Leave
		default:
			return false
		}
		return true
	}
	if len(rec.Payload) == 0 && m.cfg.Value.EmptyPayload == Drop {
		d.Action, d.Reason = Leave, NoPayload
		return nil
	}
	if m.condition != nil {
		holds, err := m.condition.holds(s)
		if stops(err) {
			return last
		}
		if err == nil && !holds {
			d.Action, d.Reason = Leave, FilteredOut
			return last
		}
	}
	if stops(m.key.render(d, s)) {
		return last
	}
	if m.sample != 0 && !m.chosen(d, rec) {
		d.Action, d.Reason = Leave, SampledOut
		return last
	}
	topic := m.topic
	for i := range m.choices {
		holds, err := m.choices[i].when.holds(s)
		if stops(err) {
			return last
		}
		if holds {
			topic = m.choices[i].topic
			break
		}
	}
	name, missing, err := topic.render(s)
	if stops(err) || stops(missed(missing)) {
		return last
	}
	d.Topic, d.Overflow, d.Constant = name, topic.over, topic.constant()
	if m.partition != nil && stops(m.place(d, s)) {
		return last
	}
	if m.value != nil && len(rec.Payload) > 0 || m.value != nil && m.cfg.Value.EmptyPayload == EmptyValue {
		value, missing, err := m.value.appendTo(nil, s)
		if stops(err) || stops(missed(missing)) {
			return last
		}
		d.value = value
	}
	return last
}

func missed(f *field) error {
	if f == nil {
		return nil
	}
	return &Fault{MissingField, fmt.Errorf("%v is missing", f)}
}

func (m *Mapper) policy(r Reason) string {
	switch r {
	case InvalidJSON, JSONTooLarge:
		return m.cfg.OnFault.InvalidJSON
	case ConditionError:
		return m.cfg.OnFault.ConditionError
	case MissingField:
		return m.cfg.OnFault.MissingField
	}
	return m.cfg.OnFault.MissingField // a partition that is no number is as good as none
}

// place reads the partition.
func (m *Mapper) place(d *Decision, s *Scratch) error {
	text, missing, err := m.partition.appendTo(s.buf[:0], s)
	s.buf = text
	if err != nil {
		return err
	}
	if missing != nil {
		return missed(missing)
	}
	n, err := strconv.ParseUint(string(text), 10, 63)
	if err != nil {
		return &Fault{BadPartition, fmt.Errorf("partition: %q is not a whole number", text[:min(len(text), 64)])}
	}
	d.Partition = int64(n)
	return nil
}

// PartitionOf is the Kafka partition of a record, of n.
func (d *Decision) PartitionOf(n int32) int32 {
	if d.Partition >= 0 {
		return int32(d.Partition % int64(n))
	}
	return kafka.PartitionFor(d.Key, n)
}

// chosen reports whether the record is in the sample.
func (m *Mapper) chosen(d *Decision, rec *spool.Record) bool {
	h := fnv.New64a()
	if m.cfg.Sample.By == ByKey {
		_, _ = h.Write([]byte(d.Key))
	} else {
		_, _ = h.Write([]byte(m.ID(rec)))
	}
	// FNV changes its high bits little for the last bytes: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x < m.sample
}

// ID is a record's identity, the same whenever it is sent again.
func (m *Mapper) ID(rec *spool.Record) string { return string(m.appendID(nil, rec)) }

func (m *Mapper) appendID(to []byte, rec *spool.Record) []byte {
	to = append(to, m.who.Gateway...)
	to = append(to, '/')
	to = append(to, m.who.Stream...)
	to = append(to, '/')
	to = strconv.AppendUint(to, uint64(rec.Partition), 10)
	to = append(to, '/')
	return strconv.AppendUint(to, uint64(rec.Offset), 10)
}
