package mapping

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// DownConfig is what an operator sets of a downlink's mapping.
type DownConfig struct {
	Topic, QoS, Retain, Expiry                  string
	ContentType, ResponseTopic, CorrelationData string
	UserProperties                              []string
	MaxUserProperties, MaxPayload, MaxJSON      int
	ClearNull                                   bool // a null value removes the retained message
}

// DownMapper makes publishes of Kafka records. Its methods may be called by many goroutines at the same time, each with a scratch of
// its own.
type DownMapper struct {
	cfg                          DownConfig
	gateway                      string
	topic, qos, retain, expiry   *template
	contentType, response, corre *template
}

// DownScratch is what applying a mapping needs in memory: one record at a time.
type DownScratch struct {
	m   *DownMapper
	rec *kafka.Incoming

	doc     jsonDoc
	parsed  bool
	jsonErr error
	work    work
	buf     []byte
}

// Publish is what becomes of a Kafka record.
type Publish struct {
	Record  *spool.Record // without client ID and time of reception
	Expired bool          // its time was over
	LeftOut int           // headers that are no user properties for want of room, or because they are no text
}

// NewDown makes a mapping. The error has every fault, each beginning with the key that has to change.
func NewDown(cfg DownConfig, gateway string) (*DownMapper, error) {
	m := &DownMapper{cfg: cfg, gateway: gateway}
	if m.cfg.MaxJSON == 0 {
		m.cfg.MaxJSON = int(DefaultMaxJSON)
	}
	var errs []error
	parse := func(key, text string) *template {
		if text == "" {
			return nil
		}
		t, err := downward.parse(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			return nil
		}
		return t
	}
	topic := func(key string, t *template) {
		if t == nil {
			return
		}
		if err := checkTopicTemplate(t); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if cfg.Topic == "" {
		errs = append(errs, errors.New("topic: none given; want an MQTT topic, such as commands/${key}"))
	}
	m.topic, m.qos, m.retain, m.expiry = parse("topic", cfg.Topic), parse("qos", cfg.QoS), parse("retain", cfg.Retain), parse("expiry", cfg.Expiry)
	m.contentType, m.response = parse("content_type", cfg.ContentType), parse("response_topic", cfg.ResponseTopic)
	m.corre = parse("correlation_data", cfg.CorrelationData)
	topic("topic", m.topic)
	topic("response_topic", m.response)
	constant := func(key string, t *template, check func(string) error) {
		if t == nil || t.vars > 0 {
			return
		}
		if err := check(t.text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	constant("qos", m.qos, func(s string) error { _, err := parseQoS(s); return err })
	constant("retain", m.retain, func(s string) error { _, err := parseRetain(s); return err })
	constant("expiry", m.expiry, func(s string) error { _, err := parseExpiry(s); return err })
	for i, p := range cfg.UserProperties {
		if name := strings.TrimSuffix(p, "*"); strings.Contains(name, "*") || p == "" {
			errs = append(errs, fmt.Errorf("user_properties[%d]: %q is neither the name of a header nor its beginning with a * behind", i, p))
		}
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	return m, nil
}

// NewScratch makes one.
func (m *DownMapper) NewScratch() *DownScratch {
	s := &DownScratch{m: m}
	s.doc.work = &s.work
	return s
}

// parse looks into the value once.
func (s *DownScratch) parse() error {
	if !s.parsed {
		s.parsed, s.jsonErr = true, nil
		switch n := len(s.rec.Value); {
		case n > s.m.cfg.MaxJSON:
			s.jsonErr = &Fault{JSONTooLarge, fmt.Errorf("a value of %d bytes is not looked into, the most is %d", n, s.m.cfg.MaxJSON)}
		default:
			if err := s.doc.parse(s.rec.Value); errors.Is(err, errManyValues) {
				s.jsonErr = &Fault{JSONTooLarge, fmt.Errorf("a value of %w is not looked into", err)}
			} else if err != nil {
				s.jsonErr = &Fault{InvalidJSON, fmt.Errorf("the value is not JSON: %w", err)}
			}
		}
	}
	return s.jsonErr
}

// Publish makes the publish of a record, or says with a *Fault why there is none. What it returns has no bytes in common with the record.
func (m *DownMapper) Publish(s *DownScratch, rec *kafka.Incoming, now time.Time) (p Publish, err error) {
	s.rec, s.parsed = rec, false
	if n := len(rec.Value); n > m.cfg.MaxPayload {
		return p, &Fault{TooLarge, fmt.Errorf("a value of %d bytes, max_payload is %d", n, m.cfg.MaxPayload)}
	}
	r := &spool.Record{}
	if r.Topic, err = s.topic(m.topic, BadTopic); err != nil {
		return p, err
	}
	text := func(t *template, reason Reason, use func(string) error) {
		if err != nil || t == nil {
			return
		}
		var b []byte
		if b, err = s.render(t, reason, false); err == nil {
			if bad := use(string(b)); bad != nil {
				err = &Fault{reason, bad}
			}
		}
	}
	text(m.qos, BadQoS, func(v string) (bad error) { r.QoS, bad = parseQoS(v); return bad })
	text(m.retain, BadRetain, func(v string) (bad error) { r.Retain, bad = parseRetain(v); return bad })
	if rec.Value == nil && m.cfg.ClearNull {
		r.Retain = true
	}
	text(m.expiry, BadExpiry, func(v string) error {
		d, bad := parseExpiry(v)
		if bad == nil && d > 0 {
			at := rec.Timestamp
			if at.After(now) || at.UnixMilli() <= 0 { // its clock is ahead, or it has no time
				at = now
			}
			r.ExpiresAt = at.Add(d).UnixNano()
		}
		return bad
	})
	if err != nil {
		return p, err
	}
	if r.ExpiresAt != 0 && r.ExpiresAt <= now.UnixNano() {
		return Publish{Expired: true}, nil
	}
	if p.LeftOut, err = s.properties(r); err != nil {
		return p, err
	}
	r.Payload = append([]byte(nil), rec.Value...)
	p.Record = r
	return p, nil
}

// render makes a text of a template. In a topic a field is never more than its place: a level, part of one, or levels with :path.
func (s *DownScratch) render(t *template, reason Reason, topic bool) ([]byte, error) {
	to := s.buf[:0]
	defer func() { s.buf = to[:0] }()
	for i := range t.parts {
		p := &t.parts[i]
		if p.field == nil {
			to = append(to, p.literal...)
			continue
		}
		text, ok, err := s.text(p.field)
		switch {
		case err != nil && p.fallback == nil:
			return nil, err
		case (err != nil || !ok) && p.fallback != nil:
			to = append(to, *p.fallback...)
			continue
		case !ok:
			return nil, &Fault{MissingField, fmt.Errorf("%v is missing", p.field)}
		}
		switch p.encoding {
		case asJSON:
			if p.field.source == fromJSON {
				n := s.doc.root().find(p.field.path)
				to = append(to, n.raw()...)
			} else {
				to = appendJSONString(to, text)
			}
			continue
		case asBase64:
			// Of the alphabet for URLs: / is for levels, and + for filters.
			text = base64.RawURLEncoding.EncodeToString([]byte(text))
		}
		if topic {
			if err := s.fits(p, text); err != nil {
				return nil, &Fault{reason, fmt.Errorf("%v: %w", p.field, err)}
			}
		}
		to = append(to, text...)
	}
	return to, nil
}

// properties fills those of the publish. It returns how many headers were left out.
func (s *DownScratch) properties(r *spool.Record) (leftOut int, err error) {
	var props spool.Properties
	optional := func(t *template) (string, bool) {
		if t == nil {
			return "", false
		}
		b, err := s.render(t, None, false)
		return string(b), err == nil && len(b) > 0
	}
	if v, ok := optional(s.m.contentType); ok && isText(v) {
		props.ContentType = v
	}
	if v, ok := optional(s.m.corre); ok && len(v) <= maxProperty {
		props.CorrelationData = []byte(v)
	}
	if t := s.m.response; t != nil {
		name, err := s.topic(t, BadResponseTopic)
		fault, _ := errors.AsType[*Fault](err)
		switch {
		case err == nil:
			props.ResponseTopic = name
		case fault != nil && fault.Reason == BadResponseTopic: // a request that nobody could answer
			return 0, err
		}
	}
	if h := firstHeader(s.rec, HeaderPayloadFormat); h != nil && string(h.Value) == "1" && utf8.Valid(s.rec.Value) {
		props.HasPayloadFormat, props.PayloadFormat = true, 1
	}
	size := 0
	for i := range s.rec.Headers {
		h := &s.rec.Headers[i]
		if !s.m.wants(h.Name) {
			continue
		}
		size += len(h.Name) + len(h.Value)
		if len(props.User) >= s.m.cfg.MaxUserProperties || size > s.m.cfg.MaxPayload || !isText(h.Name) || !isText(view(h.Value)) {
			leftOut++
			continue
		}
		props.User = append(props.User, spool.UserProperty{Name: strings.Clone(h.Name), Value: string(h.Value)})
	}
	if props.ContentType != "" || props.ResponseTopic != "" || props.CorrelationData != nil || props.HasPayloadFormat || len(props.User) > 0 {
		r.Properties = &props
	}
	return leftOut, nil
}

const maxProperty = 65535 // bytes of a string of MQTT

// isText reports whether s may be a string of MQTT.
func isText(s string) bool {
	return len(s) <= maxProperty && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// wants reports whether a header becomes a user property.
func (m *DownMapper) wants(name string) bool {
	if strings.HasPrefix(name, "mqtt.") || strings.HasPrefix(name, "forebay.") || name == HeaderContentType {
		return false
	}
	for _, p := range m.cfg.UserProperties {
		if begins, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(name, begins) || p == name {
			return true
		}
	}
	return false
}

func parseQoS(s string) (uint8, error) {
	if s == "0" || s == "1" || s == "2" {
		return s[0] - '0', nil
	}
	return 0, fmt.Errorf("%.64q is none of 0, 1 and 2", s)
}

func parseRetain(s string) (bool, error) {
	switch s {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fmt.Errorf("%.64q is neither true nor false", s)
}

// maxExpiry is the longest Message Expiry Interval, 2^32-1 seconds; 0 is none, as in MQTT it is not, because a publish that is over at once
// is of no use to anybody.
const maxExpiry = (1<<32 - 1) * time.Second

func parseExpiry(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	var d unit.Duration
	if err := d.UnmarshalText([]byte(s)); err != nil || d.Std() > maxExpiry || d < 0 {
		return 0, fmt.Errorf("%.64q is neither a number of seconds nor a duration such as 10m, of at most 136 years", s)
	}
	return d.Std(), nil
}

// Identified reports whether a record carries a forebay.id of a gateway.
func Identified(rec *kafka.Incoming, gateway string) bool {
	for i := range rec.Headers {
		if h := &rec.Headers[i]; h.Name == HeaderID && strings.HasPrefix(view(h.Value), gateway+"/") {
			return true
		}
	}
	return false
}
