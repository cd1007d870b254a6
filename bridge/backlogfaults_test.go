package bridge

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A lane that is held when the rest of its backlog is delivered still has its records when the route's filters have changed: its stretch
// is gone through again, and the backlog is not taken for delivered before that.
func TestABacklogThatIsGoneThroughAgainIsNotDeliveredBefore(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{2, 2}, "t.l0", "t.l1")
		defer p.end()
		route := RouteConfig{Topic: "t.${topic[1]}", Rate: 20 << 10}
		p.start(p.liveConfig(delivery, route))
		p.flow(levels(2), 8, time.Second)
		p.drained(time.Minute)
		for _, lane := range []string{"t.l1/0", "t.l1/1"} {
			if err := p.b.Pause(t.Context(), "all", lane); err != nil {
				t.Fatal(err)
			}
		}
		p.plant.down()
		p.flow(levels(2), 8, 30*time.Second)
		p.plant.up()
		p.until("the backlog is put aside, and only what is paused is left", time.Minute, func() bool {
			p.publish(levels(2), 8, 1)
			time.Sleep(100 * time.Millisecond)
			st := p.b.routes[0].stint.Load()
			if len(st.aside) == 0 {
				return false
			}
			for _, f := range st.aside[0].feeders {
				f.mu.Lock()
				done := f.committed >= f.until
				f.mu.Unlock()
				if !done {
					return false
				}
			}
			return true
		})
		p.stop()
		p.plant.down()
		route.Filters = []string{"site/#", "other"}
		p.start(p.liveConfig(delivery, route))
		time.Sleep(10 * time.Second)
		p.plant.up()
		for _, lane := range []string{"t.l1/0", "t.l1/1"} {
			if err := p.b.Resume(t.Context(), "all", lane); err != nil {
				t.Fatal(err)
			}
		}
		p.delivered(10 * time.Minute)
		if got, _ := p.split(p.consumeAt(p.plant, "t.l0", "t.l1")); got.missing != 0 {
			t.Errorf("records %+v, want none missing", got)
		}
	})
}

// What an earlier run has delivered beyond the cursor is not sent again by a split that comes before the tail has been there.
func TestASplitAfterACrashDoublesNothing(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{2, 2}, "t.l0", "t.l1")
		defer p.end()
		cfg := p.liveConfig(delivery, RouteConfig{Topic: "t.${topic[1]}"})
		p.start(cfg)
		p.flow(levels(2), 8, time.Second)
		p.drained(time.Minute)
		fault := p.plant.cluster.Fault(produceFault("t.l0", kerr.NotEnoughReplicas, -1))
		p.publish(levels(2), 8, 50)
		time.Sleep(700 * time.Millisecond)
		p.kill()
		fault.Remove()
		p.publish(levels(2), 8, 25)
		time.Sleep(time.Minute)
		cfg.Routes[0].RecordsPerSecond = 40
		p.start(cfg)
		p.until("the backlog is put aside", 5*time.Minute, func() bool {
			p.publish(levels(2), 2, 1)
			time.Sleep(300 * time.Millisecond)
			return p.b.Stats()[0].Splits > 0
		})
		p.delivered(10 * time.Minute)
		if got, old := p.split(p.consumeAt(p.plant, "t.l0", "t.l1")); got != (tally{}) || old == 0 {
			t.Errorf("records %+v, %d of backlogs", got, old)
		}
	})
}
