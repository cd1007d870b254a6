package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// A backlog that an outage has left drains at the route's rate, in order, and no lane is taken for stalled.
func TestBacklogDrainsAtTheRoutesRate(t *testing.T) {
	f := func(name string, route RouteConfig, want time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(3, "telemetry"))
				defer r.end()
				r.publish(oneTopic("a"), 8, 1000)
				start := time.Now()
				route.Topic = "telemetry"
				r.start(oneRoute(route))
				r.drained(10 * time.Minute)
				if took := time.Since(start); took < want*9/10 || took > want*12/10 {
					t.Errorf("took %v, want about %v", took, want)
				}
				r.complete("telemetry")
				if s := r.b.Stats()[0]; s.Detaches != 0 || s.RateLimited < want/2 {
					t.Errorf("%d lanes detached, limited for %v", s.Detaches, s.RateLimited)
				}
			})
		})
	}
	size := wireSize(&spool.Record{Topic: "a", ClientID: "c1", Payload: make([]byte, 8)})
	f("records", RouteConfig{RecordsPerSecond: 200}, 40*time.Second)
	f("bytes", RouteConfig{Rate: unit.Rate(size * 100)}, 80*time.Second)
	f("both", RouteConfig{Rate: unit.Rate(size * 1000), RecordsPerSecond: 100}, 80*time.Second)
}

// Detached lanes take their share of the rate, and the tail goes on beside them.
func TestCatchUpKeepsToTheRoutesRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(2, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry", RecordsPerSecond: 100}))
		if err := r.b.Pause(t.Context(), "all", "telemetry/0"); err != nil {
			t.Fatal(err)
		}
		r.publish(oneTopic("a"), 8, 500)
		time.Sleep(time.Minute)
		sent := r.b.Stats()[0].Sent
		if sent == 0 || sent == 4000 {
			t.Fatalf("%d sent while one of two lanes is paused", sent)
		}
		start := time.Now()
		if err := r.b.Resume(t.Context(), "all", "telemetry/0"); err != nil {
			t.Fatal(err)
		}
		r.drained(10 * time.Minute)
		want := time.Duration(4000-sent) * 10 * time.Millisecond
		if took := time.Since(start); took < want*9/10 || took > want*12/10 {
			t.Errorf("%d records took %v, want about %v", 4000-sent, took, want)
		}
		r.complete("telemetry")
	})
}
