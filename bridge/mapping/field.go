package mapping

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/forebay-gateway/forebay/spool"
)

// field is something that a record has, or has not.
type field struct {
	source source
	level  int        // of topic[N]
	name   string     // of a user property
	path   []jsonStep // of json
}

type source uint8

const (
	fromTopic source = iota
	fromLevel
	fromClientID
	fromUserName
	fromQoS
	fromRetain
	fromReceivedAt
	fromReceivedMS
	fromPayload
	fromContentType
	fromResponseTopic
	fromCorrelation
	fromFormat
	fromUser
	fromJSON
	fromID
	fromGateway
	fromStream

	// Of a Kafka record that a downlink brings.
	downTopic
	downLevel
	downPartition
	downOffset
	downTimestamp
	downKey
	downHeader
	downValue
	downGateway
)

// plainFields are those without anything behind their name.
var plainFields = map[string]source{
	"topic": fromTopic, "client_id": fromClientID, "user_name": fromUserName, "qos": fromQoS, "retain": fromRetain,
	"received_at": fromReceivedAt, "received_ms": fromReceivedMS, "payload": fromPayload, "content_type": fromContentType,
	"response_topic": fromResponseTopic, "correlation_data": fromCorrelation, "payload_format": fromFormat, "id": fromID,
	"gateway": fromGateway, "stream": fromStream,
}

const fieldNames = "topic, topic[N], client_id, user_name, qos, retain, received_at, received_ms, payload, content_type, response_topic, " +
	"correlation_data, payload_format, user.NAME, json.PATH, id, gateway, stream"

// parseField reads a field at the beginning of s and returns how many bytes it has.
func parseField(s string) (field, int, error) {
	end := 0
	for end < len(s) && (s[end] >= 'a' && s[end] <= 'z' || s[end] == '_') {
		end++
	}
	name := s[:end]
	rest := s[end:]
	switch {
	case name == "topic" && strings.HasPrefix(rest, "["):
		level, n, err := parseLevel(rest)
		return field{source: fromLevel, level: level}, end + n, err
	case name == "user" && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[")):
		steps, n, err := parsePath(rest)
		if err != nil {
			return field{}, 0, err
		}
		if len(steps) != 1 || steps[0].array {
			// A user property's name may well have dots.
			return field{}, 0, fmt.Errorf(`user%s: want the name of one user property; one with dots or brackets goes as user["a.b"]`, rest[:n])
		}
		return field{source: fromUser, name: steps[0].name}, end + n, nil
	case name == "json":
		steps, n, err := parsePath(rest)
		return field{source: fromJSON, path: steps}, end + n, err
	}
	if src, ok := plainFields[name]; ok {
		return field{source: src}, end, nil
	}
	return field{}, 0, fmt.Errorf("unknown field %q; want one of %s", name+strings.TrimRight(rest[:min(len(rest), 16)], "}"), fieldNames)
}

// parseLevel reads [N].
func parseLevel(s string) (level, n int, err error) {
	inside, _, ok := strings.Cut(s[1:], "]")
	if !ok {
		return 0, 0, errors.New("topic[ has no closing bracket")
	}
	l, err := strconv.ParseUint(inside, 10, 8)
	if err != nil {
		return 0, 0, fmt.Errorf("%q in topic[%s] is not a level, want 0 to 255", inside, inside)
	}
	return int(l), len(inside) + 2, nil
}

// parsePath reads .name, ["name"] and [N] for as long as there are any.
func parsePath(s string) (steps []jsonStep, n int, err error) {
	for at := 0; ; {
		switch {
		case at < len(s) && s[at] == '.':
			end := at + 1
			for end < len(s) && !strings.ContainsRune(".[]{}|:\"' ", rune(s[end])) {
				end++
			}
			if end == at+1 {
				return nil, 0, errors.New("a dot without a name behind it")
			}
			steps = append(steps, jsonStep{name: s[at+1 : end]})
			at = end
		case strings.HasPrefix(s[at:], `["`):
			quoted, err := strconv.QuotedPrefix(s[at+1:])
			if err != nil {
				return nil, 0, fmt.Errorf("the name behind %s has no closing quote", s[at:at+2])
			}
			name, err := strconv.Unquote(quoted)
			end := at + 1 + len(quoted)
			if err != nil || end >= len(s) || s[end] != ']' {
				return nil, 0, fmt.Errorf("%s has no closing bracket", s[at:end])
			}
			steps = append(steps, jsonStep{name: name})
			at = end + 1
		case at < len(s) && s[at] == '[':
			inside, _, ok := strings.Cut(s[at+1:], "]")
			i, err := strconv.ParseUint(inside, 10, 31)
			if !ok || err != nil {
				return nil, 0, fmt.Errorf(`%q in brackets is neither an index nor a name in quotes`, inside)
			}
			steps = append(steps, jsonStep{index: int(i), array: true})
			at += len(inside) + 2
		default:
			return steps, at, nil
		}
	}
}

// text is the field of the record in hand, false when the record has none. A number is what the device wrote, an object or
// an array the JSON text, null is nothing. The error says that the payload is no JSON, when the field needs that.
func (s *Scratch) text(f *field) (string, bool, error) {
	rec := s.rec
	switch f.source {
	case fromTopic:
		return rec.Topic, true, nil
	case fromLevel:
		level, ok := topicLevel(rec.Topic, f.level)
		return level, ok, nil
	case fromClientID:
		return rec.ClientID, true, nil
	case fromUserName:
		return rec.UserName, rec.UserName != "", nil
	case fromQoS:
		return qosTexts[min(rec.QoS, 2)], true, nil
	case fromRetain:
		return strconv.FormatBool(rec.Retain), true, nil
	case fromReceivedAt:
		return time.Unix(0, rec.ReceivedAt).UTC().Format(time.RFC3339Nano), true, nil
	case fromReceivedMS:
		return strconv.FormatInt(rec.ReceivedAt/int64(time.Millisecond), 10), true, nil
	case fromPayload:
		return view(rec.Payload), true, nil
	case fromJSON:
		n, err := s.json(f.path)
		switch {
		case n == nil || n.kind == jsonNull:
			return "", false, err
		case n.kind == jsonString:
			return n.str(), true, nil
		}
		return view(n.raw()), true, nil
	case fromID:
		return s.m.ID(rec), true, nil
	case fromGateway:
		return s.m.who.Gateway, true, nil
	case fromStream:
		return s.m.who.Stream, true, nil
	}
	return propertyText(f, rec.Properties)
}

var qosTexts = [3]string{"0", "1", "2"}

func propertyText(f *field, p *spool.Properties) (string, bool, error) {
	if p == nil {
		return "", false, nil
	}
	switch f.source {
	case fromContentType:
		return p.ContentType, p.ContentType != "", nil
	case fromResponseTopic:
		return p.ResponseTopic, p.ResponseTopic != "", nil
	case fromCorrelation:
		return view(p.CorrelationData), p.CorrelationData != nil, nil
	case fromFormat:
		return strconv.Itoa(int(p.PayloadFormat)), p.HasPayloadFormat, nil
	case fromUser:
		for i := range p.User {
			if p.User[i].Name == f.name {
				return p.User[i].Value, true, nil // names may repeat: the first
			}
		}
		return "", false, nil
	}
	panic(fmt.Sprintf("BUG: mapping: source %d", f.source))
}

// json is the value at a path of the payload, nil when there is none.
func (s *Scratch) json(path []jsonStep) (*jsonNode, error) {
	if !s.isJSON() && s.m.cfg.OnFault.InvalidJSON != Missing {
		return nil, s.jsonErr
	}
	return s.doc.root().find(path), nil
}

// isJSON reports whether the payload is JSON that may be looked into. One that is not is an object without fields.
func (s *Scratch) isJSON() bool {
	if !s.parsed {
		s.parsed = true
		if s.jsonErr = s.parseJSON(); s.jsonErr != nil {
			if err := s.doc.parse(noFields); err != nil {
				panic("BUG: mapping: " + err.Error())
			}
		}
	}
	return s.jsonErr == nil
}

var noFields = []byte("{}")

func (s *Scratch) parseJSON() error {
	if n := len(s.rec.Payload); n > s.m.maxJSON {
		return &Fault{JSONTooLarge, fmt.Errorf("a payload of %d bytes is not looked into, the most is %d", n, s.m.maxJSON)}
	}
	if err := s.doc.parse(s.rec.Payload); errors.Is(err, errManyValues) {
		return &Fault{JSONTooLarge, fmt.Errorf("a payload of %w is not looked into", err)}
	} else if err != nil {
		return &Fault{InvalidJSON, fmt.Errorf("the payload is not JSON: %w", err)}
	}
	return nil
}

// topicLevel is level n of a topic name, false when it has fewer.
func topicLevel(topic string, n int) (string, bool) {
	for ; n > 0; n-- {
		_, rest, more := strings.Cut(topic, "/")
		if !more {
			return "", false
		}
		topic = rest
	}
	level, _, _ := strings.Cut(topic, "/")
	return level, true
}

// view is b as a string without a copy. Nobody changes a record's bytes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// appendJSONString appends s as a JSON string. What is not UTF-8 becomes U+FFFD.
func appendJSONString(to []byte, s string) []byte {
	const hex = "0123456789abcdef"
	to = append(to, '"')
	from := 0
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			to = append(to, s[from:i]...)
			switch c {
			case '"', '\\':
				to = append(to, '\\', c)
			case '\n':
				to = append(to, '\\', 'n')
			case '\r':
				to = append(to, '\\', 'r')
			case '\t':
				to = append(to, '\\', 't')
			default:
				to = append(to, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			to = append(to, s[from:i]...)
			to = append(to, "\ufffd"...)
			i++
			from = i
			continue
		}
		i += n
	}
	to = append(to, s[from:]...)
	return append(to, '"')
}
