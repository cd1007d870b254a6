package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// template makes a Kafka topic's name of an MQTT topic and a client ID: text with ${topic}, ${topic[N]} (level N, counted
// from 0) and ${client_id}.
//
// Two different inputs never get the same name, and none that Kafka calls a collision (it takes . and _ for the same), by
// accident or by the will of a device: a name that does not show its values exactly and unmistakably carries a hash of
// them. What shows itself exactly:
//
//	one ${topic[N]} or ${client_id}   letters, digits, - and _
//	several, or ${topic}              letters, digits and -, as literal text with a . or _ stands between them;
//	                                  in ${topic}, / becomes .
type template struct {
	text  string
	parts []part
	vars  int
	multi bool // several values in one name: _ may be a separator
}

type part struct {
	literal  string
	variable variable
	level    int
}

type variable uint8

const (
	literalPart variable = iota
	topicVar
	levelVar
	clientVar
)

const (
	templateVars  = "${topic}, ${topic[N]} or ${client_id}"
	hashLen       = 16                    // hex digits of SHA-256: 64 bits, so that nobody finds two topics with the same
	maxTemplate   = 249 - 1 - hashLen - 1 // literal text and hash have to fit Kafka's 249
	overflowValue = "overflow"            // what every variable is once a route has made max_topics topics
)

// parseTemplate reads a template. Positions in errors count bytes from 1.
func parseTemplate(s string) (*template, error) {
	t := &template{text: s}
	literals := 0
	for at := 0; at < len(s); {
		if strings.HasPrefix(s[at:], "${") {
			end := strings.IndexByte(s[at:], '}')
			if end < 0 {
				return nil, fmt.Errorf("position %d: ${ has no closing brace; want %s", at+1, templateVars)
			}
			p, err := parseVariable(s[at : at+end+1])
			if err != nil {
				return nil, fmt.Errorf("position %d: %w", at+1, err)
			}
			if n := len(t.parts); n > 0 && t.vars > 0 {
				before := t.parts[n-1]
				if before.variable != literalPart || !strings.ContainsAny(before.literal, "._") {
					return nil, fmt.Errorf("position %d: between two variables there has to be text with a . or _, so that two topics never get one name", at+1)
				}
			}
			t.parts = append(t.parts, p)
			t.vars++
			t.multi = t.multi || p.variable == topicVar
			at += end + 1
			continue
		}
		end := at
		for end < len(s) && !strings.HasPrefix(s[end:], "${") {
			if !kafka.TopicChar(s[end]) {
				return nil, fmt.Errorf("position %d: %q is not allowed in a Kafka topic (a-z A-Z 0-9 . _ -)", end+1, s[end])
			}
			end++
		}
		t.parts = append(t.parts, part{literal: s[at:end]})
		literals += end - at
		at = end
	}
	t.multi = t.multi || t.vars > 1
	switch {
	case s == "":
		return nil, fmt.Errorf("empty; want a Kafka topic, may be with %s", templateVars)
	case t.vars == 0 && !kafka.ValidTopic(s):
		return nil, fmt.Errorf("%q is not a Kafka topic (1 to 249 characters, neither . nor ..)", s)
	case strings.HasPrefix(s, "__"):
		return nil, fmt.Errorf("position 1: %q: topics that begin with __ belong to Kafka itself", s)
	case t.vars > 0 && literals > maxTemplate:
		return nil, fmt.Errorf("%d characters beside the variables, at most %d", literals, maxTemplate)
	}
	return t, nil
}

func parseVariable(s string) (part, error) {
	switch name := s[2 : len(s)-1]; {
	case name == "topic":
		return part{variable: topicVar}, nil
	case name == "client_id":
		return part{variable: clientVar}, nil
	case strings.HasPrefix(name, "topic[") && strings.HasSuffix(name, "]"):
		level, err := parseLevel(name)
		return part{variable: levelVar, level: level}, err
	default:
		return part{}, fmt.Errorf("unknown variable %s; want %s", s, templateVars)
	}
}

// parseLevel reads N of topic[N].
func parseLevel(name string) (int, error) {
	digits := name[len("topic[") : len(name)-1]
	n, err := strconv.ParseUint(digits, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%q in %s is not a level, want 0 to 255", digits, name)
	}
	return int(n), nil
}

// constant reports whether all records get the same topic.
func (t *template) constant() bool { return t.vars == 0 }

// usesClient reports whether the name depends on the client ID.
func (t *template) usesClient() bool {
	for _, p := range t.parts {
		if p.variable == clientVar {
			return true
		}
	}
	return false
}

// overflow is the topic that takes what would need more topics than the route may have.
func (t *template) overflow() string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.variable == literalPart {
			b.WriteString(p.literal)
		} else {
			b.WriteString(overflowValue)
		}
	}
	name := b.String()
	return name[:min(len(name), 249)]
}

// render makes the name. Every input gives a legal one.
func (t *template) render(topic, client string) string {
	if t.vars == 0 {
		return t.text
	}
	var name strings.Builder
	hash := sha256.New()
	exact := true
	for _, p := range t.parts {
		if p.variable == literalPart {
			name.WriteString(p.literal)
			continue
		}
		value, ok := topic, true
		switch p.variable {
		case clientVar:
			value = client
		case levelVar:
			value, ok = topicLevel(topic, p.level)
		}
		exact = t.write(&name, value, p.variable) && ok && exact
		fmt.Fprintf(hash, "%t%d:%s", ok, len(value), value)
	}
	s := name.String()
	if exact && kafka.ValidTopic(s) && !strings.HasPrefix(s, "__") && !endsLikeHash(s) {
		return s
	}
	s = s[:min(len(s), 249-1-hashLen)]
	return s + "-" + hex.EncodeToString(hash.Sum(nil))[:hashLen]
}

// write appends value as far as it is legal and reports whether it can be read back.
func (t *template) write(to *strings.Builder, value string, v variable) bool {
	exact := value != ""
	for i := range len(value) {
		b := value[i]
		switch {
		case b == '/' && v == topicVar:
			to.WriteByte('.')
		case b == '.', !kafka.TopicChar(b):
			to.WriteByte('_')
			exact = false
		default:
			to.WriteByte(b)
			if b == '_' && t.multi {
				exact = false
			}
		}
	}
	return exact
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
