package auth

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// filter is a topic filter, taken apart for fast matching.
type filter struct {
	text   string
	prefix string   // what stands before the first wildcard, its slash included; all of it without a wildcard
	levels []string // what follows prefix; nil without a wildcard
	all    bool     // matches every topic, those with $ too: no filter of MQTT does. See widen
}

// checkFilter says what is wrong with a topic filter (MQTT 5, 4.7.1).
func checkFilter(s string) error {
	switch {
	case s == "":
		return errors.New("topic filter is empty")
	case len(s) > 65535:
		return errors.New("topic filter is longer than 65535 bytes")
	case strings.ContainsRune(s, 0) || !utf8.ValidString(s):
		return fmt.Errorf("topic filter %q is not text", s)
	case s == "$share" || strings.HasPrefix(s, "$share/"):
		return fmt.Errorf("topic filter %q: write the filter without $share/{name}/, it is checked without", s)
	}
	levels := strings.Split(s, "/")
	for i, level := range levels {
		switch {
		case level == "#" && i == len(levels)-1, level == "+":
		case strings.ContainsAny(level, "+#"):
			return fmt.Errorf("topic filter %q: + and # stand alone in their level, # in the last", s)
		}
	}
	return nil
}

// newFilter takes apart a filter that checkFilter has accepted.
func newFilter(s string) filter {
	f := filter{text: s, prefix: s}
	start := 0
	for start < len(s) {
		level, _, more := strings.Cut(s[start:], "/")
		if level == "+" || level == "#" {
			f.prefix, f.levels = s[:start], strings.Split(s[start:], "/")
			break
		}
		start += len(level) + 1
		if !more {
			break
		}
	}
	return f
}

// match reports whether a topic name matches (MQTT 5, 4.7).
func (f *filter) match(topic string) bool {
	if f.levels == nil {
		return f.all || f.prefix == topic
	}
	if !strings.HasPrefix(topic, f.prefix) {
		// a/# matches a
		return len(f.levels) == 1 && f.levels[0] == "#" && len(topic) == len(f.prefix)-1 && f.prefix[:len(topic)] == topic
	}
	if f.prefix == "" && strings.HasPrefix(topic, "$") { // MQTT 5, 4.7.2-1
		return false
	}
	rest, more := topic[len(f.prefix):], true
	for i, level := range f.levels {
		if level == "#" {
			return true
		}
		if !more {
			return false
		}
		end := strings.IndexByte(rest, '/')
		here := rest
		if end < 0 {
			more = false
		} else {
			here, rest = rest[:end], rest[end+1:]
		}
		if level != "+" && level != here {
			return false
		}
		if !more && i == len(f.levels)-2 && f.levels[i+1] == "#" {
			return true // the parent level
		}
	}
	return !more
}

// contains reports whether every topic that matches the filter other matches f.
func (f *filter) contains(other string) bool {
	if f.all {
		return true
	}
	want, have := strings.Split(f.text, "/"), strings.Split(other, "/")
	if hidden(want[0], have[0]) {
		return false
	}
	for i, level := range want {
		switch {
		case level == "#":
			return true
		case i == len(have):
			return false
		case level == "+" && have[i] == "#":
			// Below the first level # stands for no level too, and + does not.
			return i == 0 && len(want) == 2 && want[1] == "#"
		case level == "+":
		case level != have[i]:
			return false
		}
	}
	return len(have) <= len(want)
}

// overlaps reports whether some topic matches both f and the filter other.
func (f *filter) overlaps(other string) bool {
	if f.all {
		return true
	}
	a, b := strings.Split(f.text, "/"), strings.Split(other, "/")
	if hidden(a[0], b[0]) || hidden(b[0], a[0]) {
		return false
	}
	for i := 0; i < len(a) && i < len(b); i++ {
		switch {
		case a[i] == "#" || b[i] == "#":
			return true
		case a[i] == "+" || b[i] == "+":
		case a[i] != b[i]:
			return false
		}
	}
	switch len(a) - len(b) {
	case 0:
		return true
	case 1:
		return a[len(b)] == "#"
	case -1:
		return b[len(a)] == "#"
	}
	return false
}

// hidden reports whether the first level of one filter is a wildcard, which does not see the $ topics of the other.
func hidden(wildcard, level string) bool {
	return (wildcard == "+" || wildcard == "#") && strings.HasPrefix(level, "$")
}

// WithoutShare cuts $share/{name}/ from a filter as it is sent.
func WithoutShare(s string) string {
	if rest, ok := strings.CutPrefix(s, "$share/"); ok {
		if _, topic, ok := strings.Cut(rest, "/"); ok {
			return topic
		}
	}
	return s
}

// CheckTopic says what is wrong with the topic of a question about an action.
func CheckTopic(a Action, topic string) error {
	switch a {
	case ActionConnect:
		if topic != "" {
			return errors.New("connect has none")
		}
		return nil
	case ActionSubscribe:
		return checkFilter(WithoutShare(topic))
	}
	if strings.ContainsAny(topic, "+#") {
		return fmt.Errorf("%q: a topic name holds no wildcards", topic)
	}
	return checkFilter(topic)
}
