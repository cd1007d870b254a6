package mapping

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// topicTemplate makes the name of a Kafka topic.
//
// Two different inputs never get the same name, and none that Kafka calls a collision (it takes . and _ for the same), by
// accident or by the will of a device: a name that does not show its values exactly and unmistakably carries a hash of
// them. What shows itself exactly:
//
//	one value, not ${topic}       letters, digits, - and _
//	several, or with ${topic}     letters, digits and -, as literal text with a . or _ stands between them;
//	                              in ${topic}, / becomes .
//
// A value that is missing and one that is empty are two. Only a fallback (${field|text}) is the same as its text: that is
// what it is for.
type topicTemplate struct {
	*template
	multi bool   // several values in one name: _ may be a separator
	over  string // takes what would need more topics than the route may have
}

const (
	hashLen       = 16                    // hex digits of SHA-256: 64 bits, so that nobody finds two topics with the same
	maxTopicText  = 249 - 1 - hashLen - 1 // literal text and hash have to fit Kafka's 249
	overflowValue = "overflow"            // what every value is once a route has made max_topics topics
)

func parseTopic(s string) (*topicTemplate, error) {
	t, err := parseTemplate(s)
	if err != nil {
		return nil, err
	}
	tt := &topicTemplate{template: t, multi: t.vars > 1 || t.has(fromTopic)}
	at, literals, separated, first := 1, 0, true, true
	for i := range t.parts {
		p := &t.parts[i]
		if p.field == nil {
			for j := range len(p.literal) {
				if !kafka.TopicChar(p.literal[j]) {
					return nil, fmt.Errorf("position %d: %q is not allowed in a Kafka topic (a-z A-Z 0-9 . _ -)", at+j, p.literal[j])
				}
			}
			at += len(p.literal)
			literals += len(p.literal)
			separated = strings.ContainsAny(p.literal, "._")
			continue
		}
		switch p.field.source {
		case fromPayload, fromCorrelation, fromReceivedAt, fromReceivedMS, fromID:
			return nil, fmt.Errorf("position %d: ${%v} would make a Kafka topic of every record", at, p.field)
		}
		if p.encoding != asText {
			return nil, fmt.Errorf("position %d: a Kafka topic takes no :json and no :base64", at)
		}
		if !first && !separated {
			return nil, fmt.Errorf("position %d: between two fields there has to be text with a . or _, so that two topics never get one name", at)
		}
		if f := p.fallback; f != nil {
			if *f == "" || strings.ContainsFunc(*f, func(r rune) bool { return r == '.' || r == '_' || r > 127 || !kafka.TopicChar(byte(r)) }) {
				return nil, fmt.Errorf("position %d: the text %q behind | is not of a-z A-Z 0-9 -", at, *f)
			}
		}
		first, separated = false, false
		at += p.length(s[at-1:])
	}
	switch {
	case s == "":
		return nil, fmt.Errorf("empty; want a Kafka topic, may be with fields such as ${topic[1]}")
	case t.vars == 0 && !kafka.ValidTopic(s):
		return nil, fmt.Errorf("%q is not a Kafka topic (1 to 249 characters, neither . nor ..)", s)
	case strings.HasPrefix(s, "__"):
		return nil, fmt.Errorf("position 1: %q: topics that begin with __ belong to Kafka itself", s)
	case t.vars > 0 && literals > maxTopicText:
		return nil, fmt.Errorf("%d characters beside the fields, at most %d", literals, maxTopicText)
	}
	tt.over = tt.overflow()
	return tt, nil
}

// length is how many bytes the part has in the text that begins with it.
func (p *part) length(s string) int {
	_, n, err := upward.parsePart(s[2:])
	if err != nil {
		panic("BUG: mapping: a part that was read is not: " + err.Error())
	}
	return 2 + n
}

// constant reports whether all records get the same topic.
func (t *topicTemplate) constant() bool { return t.vars == 0 }

// byTopic reports whether the name depends on nothing but the MQTT topic and the client ID.
func (t *topicTemplate) byTopic() bool {
	for i := range t.parts {
		if f := t.parts[i].field; f != nil && f.source != fromTopic && f.source != fromLevel && f.source != fromClientID {
			return false
		}
	}
	return true
}

func (t *topicTemplate) overflow() string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.field == nil {
			b.WriteString(p.literal)
		} else {
			b.WriteString(overflowValue)
		}
	}
	name := b.String()
	return name[:min(len(name), 249)]
}

// render makes the name for the record in hand. Every record gets a legal one. missing is a field beside topic levels that
// the record does not have.
func (t *topicTemplate) render(s *Scratch) (name string, missing *field, err error) {
	if t.vars == 0 {
		return t.text, nil, nil
	}
	b := s.buf[:0]
	exact := true
	for i := range t.parts {
		p := &t.parts[i]
		if p.field == nil {
			b = append(b, p.literal...)
			continue
		}
		value, ok, err := t.value(p, s)
		if err != nil {
			return "", nil, err
		}
		if !ok && missing == nil && p.field.source != fromLevel {
			missing = p.field
		}
		var e bool
		b, e = t.append(b, value, p.field.source)
		exact = exact && e && ok
	}
	s.buf = b
	if v := view(b); exact && kafka.ValidTopic(v) && !strings.HasPrefix(v, "__") && !endsLikeHash(v) && v != t.over {
		return string(b), missing, nil
	}
	hash := sha256.New()
	for i := range t.parts {
		if p := &t.parts[i]; p.field != nil {
			value, ok, _ := t.value(p, s)
			fmt.Fprintf(hash, "%t%d:%s", ok, len(value), value)
		}
	}
	b = b[:min(len(b), 249-1-hashLen)]
	return string(b) + "-" + hex.EncodeToString(hash.Sum(nil))[:hashLen], missing, nil
}

func (t *topicTemplate) value(p *part, s *Scratch) (string, bool, error) {
	value, ok, err := s.text(p.field)
	if !ok && err == nil && p.fallback != nil {
		return *p.fallback, true, nil
	}
	return value, ok, err
}

// append appends value as far as it is legal and reports whether it can be read back.
func (t *topicTemplate) append(to []byte, value string, from source) ([]byte, bool) {
	exact := value != ""
	for i := range len(value) {
		b := value[i]
		switch {
		case b == '/' && from == fromTopic:
			to = append(to, '.')
		case b == '.', !kafka.TopicChar(b):
			to = append(to, '_')
			exact = false
		default:
			to = append(to, b)
			if b == '_' && t.multi {
				exact = false
			}
		}
		if len(to) > 1024 {
			return to, false // far behind what a name may have
		}
	}
	return to, exact
}

// endsLikeHash reports whether a name that is exact could be taken for one with a hash.
func endsLikeHash(s string) bool {
	i := len(s) - hashLen - 1
	if i < 0 || s[i] != '-' {
		return false
	}
	for _, b := range []byte(s[i+1:]) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return true
}
