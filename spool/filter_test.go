package spool

import "testing"

func TestMatchFilter(t *testing.T) {
	f := func(filter, topic string, want bool) {
		t.Helper()
		if got := MatchFilter(filter, topic); got != want {
			t.Errorf("%q, %q: %v", filter, topic, got)
		}
	}
	f("plant/+/temp", "plant/7/temp", true)
	f("plant/+/temp", "plant/7/x/temp", false)
	f("plant/+", "plant", false)
	f("plant/+", "plant/", true)
	f("plant/#", "plant", true) // MQTT 5, 4.7.1.2: # includes the parent level
	f("plant/#", "plant/a/b", true)
	f("plant/#", "plants", false)
	f("#", "a/b", true)
	f("#", "$SYS/uptime", false) // MQTT 5, 4.7.2: a leading wildcard does not match $
	f("+/uptime", "$SYS/uptime", false)
	f("$SYS/#", "$SYS/uptime", true)
	f("a/b", "a/b", true)
	f("a/b", "a/b/c", false)
	f("a//b", "a//b", true)
	f("a/+/b", "a//b", true)
	f("+", "/", false)
	f("+/+", "/", true)
	f("/+", "/x", true)
	f("+/+/#", "a", false)
	f("+/+/#", "a/b", true)
}

func TestCheckFilter(t *testing.T) {
	f := func(filter string, ok bool) {
		t.Helper()
		if err := CheckFilter(filter); (err == nil) != ok {
			t.Errorf("%q: %v", filter, err)
		}
	}
	f("a/+/#", true)
	f("+", true)
	f("#", true)
	f("/", true)
	f("", false)
	f("a#", false)
	f("a/#/b", false)
	f("a+/b", false)
	f("a\x00", false)
}
