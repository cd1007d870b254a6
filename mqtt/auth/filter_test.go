package auth

import (
	"strings"
	"testing"
)

func TestFilterMatchesTopics(t *testing.T) {
	f := func(filter, topic string, want bool) {
		t.Helper()
		nf := newFilter(filter)
		if got := nf.match(topic); got != want {
			t.Errorf("%s matches %s: %v", filter, topic, got)
		}
	}
	f("a/b", "a/b", true)
	f("a/b", "a/b/c", false)
	f("a/b", "a", false)
	f("plant/+/temp", "plant/7/temp", true)
	f("plant/+/temp", "plant/7/8/temp", false)
	f("plant/+/temp", "plant//temp", true)
	f("plant/#", "plant", true) // MQTT 5, 4.7.1.2: # includes the parent level
	f("plant/#", "plant/", true)
	f("plant/#", "plants", false)
	f("plant/#", "plant/a/b/c", true)
	f("+/#", "a", true)
	f("+/+", "a", false)
	f("+/+", "/a", true)
	f("/+", "/a", true)
	f("+", "/a", false)
	f("#", "a/b", true)
	f("#", "$SYS/uptime", false) // MQTT 5, 4.7.2: a leading wildcard does not match $
	f("+/uptime", "$SYS/uptime", false)
	f("$SYS/#", "$SYS/uptime", true)
	f("$SYS/+", "$SYS/uptime", true)
	f("a/+/c/#", "a/b/c", true)
	f("a/+/c/#", "a/b", false)
	f("a/+/+/d", "a/b/c/d", true)
	f("a/+/+/d", "a/b/c/e", false)
}

// universe returns every filter or topic of up to three levels out of the given words.
func universe(words ...string) []string {
	var out []string
	for _, a := range words {
		out = append(out, a)
		for _, b := range words {
			out = append(out, a+"/"+b)
			for _, c := range words {
				out = append(out, a+"/"+b+"/"+c)
			}
		}
	}
	return out
}

// The answers about filters are compared with what they mean: all topics, one by one. Two words and an empty level stand for
// everything else, as filters know only equal and not equal.
func TestContainsAndOverlapsAreWhatTopicsSay(t *testing.T) {
	var filters []string
	for _, f := range universe("a", "b", "$s", "", "+", "#") {
		if checkFilter(f) == nil {
			filters = append(filters, f)
		}
	}
	// The empty topic is none of MQTT, and taken for one by +: that errs on the safe side.
	topics := append(universe("a", "b", "c", "$s", ""), "a/b/c/d", "b/a/c/d", "a/a/a/a", "$s/a/b/c", "c/c/c/c", "///", "a///", "/a/b/c")
	matches := map[string]map[string]bool{}
	for _, f := range filters {
		nf := newFilter(f)
		matches[f] = map[string]bool{}
		for _, s := range topics {
			if nf.match(s) {
				matches[f][s] = true
			}
		}
	}
	for _, a := range filters {
		fa := newFilter(a)
		for _, b := range filters {
			contains, overlaps := true, false
			for s := range matches[b] {
				if matches[a][s] {
					overlaps = true
				} else {
					contains = false
				}
			}
			// The topics of some filters are too long for this universe: nothing to compare with.
			if len(matches[b]) == 0 {
				continue
			}
			if got := fa.contains(b); got && !contains {
				t.Fatalf("%q contains %q: %v, topics say %v", a, b, got, contains)
			} else if !got && contains && strings.Count(b, "/") < 2 && strings.Count(a, "/") < 2 {
				t.Errorf("%q contains %q: %v, topics say %v", a, b, got, contains)
			}
			if got := fa.overlaps(b); got != overlaps {
				t.Errorf("%q overlaps %q: %v, topics say %v", a, b, got, overlaps)
			}
		}
	}
}

func TestPatternIsAGlob(t *testing.T) {
	f := func(glob, s string, want bool) {
		t.Helper()
		if got := pattern(glob).match(s); got != want {
			t.Errorf("%q matches %q: %v", glob, s, got)
		}
	}
	f("", "", true)
	f("", "a", false)
	f("*", "", true)
	f("*", "abc", true)
	f("a*", "abc", true)
	f("*c", "abc", true)
	f("a*c*e", "abcde", true)
	f("a*c*e", "abcd", false)
	f("a?c", "abc", true)
	f("a?c", "aéc", true)
	f("a?c", "ac", false)
	f(`a\*c`, "a*c", true)
	f(`a\*c`, "abc", false)
	f(`a\\c`, `a\c`, true)
	f("dev-*", "dev-7", true)
	f("dev-*", "xdev-7", false)
	f("abc", "abcd", false)
}
