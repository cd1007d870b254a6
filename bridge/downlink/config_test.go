package downlink

import (
	"strings"
	"testing"
)

func TestEveryFaultOfADownlinkBeginsWithItsKey(t *testing.T) {
	c := Config{Name: "d", Upstream: "nope", Topics: []string{"c"}, Topic: "a/#", QoS: "3", Retain: "x", Expiry: "never", OnGap: "z"}
	err := c.WithDefaults("main").Validate([]string{"main", "lake"}, true)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("got %v", err)
	}
	got := map[string]string{}
	for _, e := range joined.Unwrap() {
		key, problem, _ := strings.Cut(e.Error(), ": ")
		if strings.Contains(problem, "\n") {
			t.Errorf("two faults in one: %q", problem)
		}
		got[key] = problem
	}
	for _, key := range []string{"upstream", "topic", "qos", "retain", "expiry", "on_gap"} {
		if got[key] == "" {
			t.Errorf("no fault of %s in %v", key, got)
		}
	}
	if got["upstream"] != `unknown upstream "nope"; there are main, lake` || got["on_gap"] != `"z" is none of continue, hold` {
		t.Errorf("got %q, %q", got["upstream"], got["on_gap"])
	}
}
