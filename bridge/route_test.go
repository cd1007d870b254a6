package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/spool"
)

func TestRouteTakesOnlyWhatItsFiltersMatch(t *testing.T) {
	r := &route{cfg: RouteConfig{Filters: []string{"plant/+/temp", "alarms/#"}}}
	f := func(topic string, want bool) {
		t.Helper()
		if got := r.matches(topic); got != want {
			t.Errorf("matches(%q) = %v", topic, got)
		}
	}
	f("plant/7/temp", true)
	f("plant/7/hum", false)
	f("alarms", true) // MQTT 5, 4.7.1.2: # includes the parent level
	f("alarms/a/b", true)
	f("$SYS/x", false)
	r.cfg.Filters = []string{"#"}
	f("$SYS/x", false) // MQTT 5, 4.7.2
	f("x", true)
}

func TestKeysAndPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(8, "bytopic", "bylevel", "nokey"))
		defer r.end()
		for _, topic := range []string{"a/1/x", "a/2/x", "a"} {
			for range 3 {
				r.log.add("default", 0, spool.Record{Topic: topic, ClientID: "dev", Payload: []byte("v")})
			}
		}
		cfg := Config{Routes: []RouteConfig{
			{Name: "r1", Topic: "bytopic", Key: "topic"},
			{Name: "r2", Topic: "bylevel", Key: "topic[1]"},
			{Name: "r3", Topic: "nokey", Key: "none", Filters: []string{"a/1/+"}},
		}}
		r.start(cfg)
		r.drained(time.Minute)
		f := func(topic string, want map[string]int) {
			t.Helper()
			got := make(map[string]int)
			partitions := make(map[string]int32)
			for _, rec := range r.consume(topic) {
				key := string(rec.Key)
				if rec.Key == nil {
					key = "(none)"
				}
				got[key]++
				if p, ok := partitions[key]; ok && p != rec.Partition {
					t.Errorf("%s: key %s in partitions %d and %d", topic, key, p, rec.Partition)
				}
				partitions[key] = rec.Partition
			}
			if len(got) != len(want) {
				t.Errorf("%s: keys %v, want %v", topic, got, want)
			}
			for k, n := range want {
				if got[k] != n {
					t.Errorf("%s: keys %v, want %v", topic, got, want)
				}
			}
		}
		f("bytopic", map[string]int{"a/1/x": 3, "a/2/x": 3, "a": 3})
		f("bylevel", map[string]int{"1": 3, "2": 3, "dev": 3}) // no such level: the client's ID
		f("nokey", map[string]int{"(none)": 3})
		if s := r.b.Stats()[2]; s.Sent != 3 || s.Skipped != 6 {
			t.Errorf("%d sent, %d skipped, want 3 and 6", s.Sent, s.Skipped)
		}
	})
}

func TestNewRouteStartsWhereItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "all", "new"))
		defer r.end()
		r.publish(oneTopic("a"), 1, 5)
		r.start(Config{Routes: []RouteConfig{{Name: "r1", Topic: "all"}, {Name: "r2", Topic: "new", From: "end"}}})
		r.publish(oneTopic("a"), 1, 2)
		r.drained(time.Minute)
		if all, late := len(r.consume("all")), len(r.consume("new")); all != 7 || late != 2 {
			t.Errorf("%d and %d records, want 7 and 2", all, late)
		}
	})
}
