package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// liveConfig is a route that sends what is new first, to plant alone unless it may fail over.
func (p *pair) liveConfig(delivery string, route RouteConfig) Config {
	route.Delivery, route.Drain, route.LiveAfter = delivery, LiveFirst, unit.Duration(10*time.Second)
	cfg := p.config(route)
	cfg.Routes[0].Failover = Failover{}
	return cfg
}

// split is the tally of records in two parts, those of backlogs and the others: each device's are in order within each of them.
func (r *rig) split(records []*kgo.Record) (all tally, backlog int) {
	var parts [2][]*kgo.Record
	for _, rec := range records {
		i := 0
		if slices.ContainsFunc(rec.Headers, func(h kgo.RecordHeader) bool { return h.Key == headerBacklog && string(h.Value) == "true" }) {
			i = 1
		}
		parts[i] = append(parts[i], rec)
	}
	all = r.tally(records)
	all.reordered = r.tally(parts[0]).reordered + r.tally(parts[1]).reordered
	return all, len(parts[1])
}

func (r *rig) backlog() uint64 { return r.b.Stats()[0].Backlog }

// delivered waits until everything is, and the spool has nothing of a backlog any more.
func (r *rig) delivered(limit time.Duration) {
	r.t.Helper()
	r.drained(limit)
	r.until("no backlog is left", time.Minute, func() bool {
		r.log.mu.Lock()
		left := len(r.log.state[backlogSpace("all")])
		r.log.mu.Unlock()
		return len(r.b.routes[0].backlogged()) == 0 && left == 0 && len(r.log.Cursors()) == 3
	})
}

func eachDelivery(t *testing.T, f func(t *testing.T, delivery string)) {
	for _, delivery := range []string{AtLeastOnce} {
		t.Run(delivery, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, delivery) })
		})
	}
}

// After an outage new records go out at once while what has waited drains at its rate.
func TestLiveFirstSendsNewRecordsBesideTheBacklog(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{3, 3}, "t")
		defer p.end()
		size := wireSize(&spool.Record{Topic: "a", ClientID: "c1", Payload: make([]byte, 8)})
		p.start(p.liveConfig(delivery, RouteConfig{Topic: "t", Rate: unit.Rate(500 * size), BacklogRate: unit.Rate(100 * size)}))
		p.flow(oneTopic("a"), 8, 5*time.Second)
		p.drained(time.Minute)
		p.plant.down()
		p.flow(oneTopic("a"), 8, time.Minute)
		p.plant.up()
		p.until("the backlog is put aside", time.Minute, func() bool { p.publish(oneTopic("a"), 8, 1); return p.backlog() > 0 })
		begun := p.backlog()
		if begun < 3000 {
			t.Errorf("a backlog of %d records, want about 4000", begun)
		}
		worst := time.Duration(0)
		for range 50 {
			p.publish(oneTopic("a"), 8, 1)
			time.Sleep(200 * time.Millisecond)
			s := p.b.Stats()[0]
			worst = max(worst, s.LiveLagAge)
			if s.Backlog == 0 || s.LagAge < 30*time.Second {
				t.Fatalf("stats %+v: the backlog is delivered already", s)
			}
		}
		if worst > 5*time.Second {
			t.Errorf("new records waited up to %v beside the backlog", worst)
		}
		if left := p.backlog(); left > begun-500 || left < begun-2500 {
			t.Errorf("%d of %d records are left of the backlog after about 10 s at 100 a second", left, begun)
		}
		if h := p.b.Health()[0]; h.State != OK || h.Backlog == nil || h.Backlog.Lag == 0 || len(h.Backlog.Backlogs) != 1 {
			t.Errorf("health %+v", h)
		}
		info, err := p.b.Route("all")
		if err != nil || !slices.ContainsFunc(info.LaneList, func(l LaneInfo) bool { return l.Backlog }) {
			t.Errorf("no lane of the backlog in %+v, %v", info.LaneList, err)
		}
		p.delivered(5 * time.Minute)
		got, old := p.split(p.consumeAt(p.plant, "t"))
		if got != (tally{}) || old < 3000 {
			t.Errorf("records %+v, %d of backlogs", got, old)
		}
		if s := p.b.Stats()[0]; s.Splits != 1 || p.b.Health()[0].Backlog != nil {
			t.Errorf("%d splits, health %+v", s.Splits, p.b.Health()[0])
		}
	})
}

// consumeAt reads what is committed at one site.
func (p *pair) consumeAt(s *site, topics ...string) []*kgo.Record {
	r := *p.rig
	r.cluster, r.brokers = s.cluster, s.brokers
	return r.consumeCommitted(topics...)
}

// kill ends the gateway as kill -9 does: what it had in the air does not come back.
func (p *pair) kill() {
	cut := p.plant.cut
	after := p.log.clone()
	p.plant.down()
	p.cloud.down()
	p.stop()
	p.log = after
	p.cloud.up()
	if !cut {
		p.plant.up()
	}
}

// Whatever happens in whatever order, each record comes once, and each device's in order within the backlogs and without.
func TestLiveFirstModel(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		for range killRounds(1, 20) {
			seed := rand.Uint64()
			if !liveModel(t, delivery, rand.New(rand.NewPCG(seed, 0))) {
				t.Fatalf("seed %d", seed)
			}
		}
	})
}

func liveModel(t *testing.T, delivery string, rnd *rand.Rand) bool {
	topics := []string{"t.l0", "t.l1"}
	p := newPair(t, [2]int32{2, 2}, topics...)
	route := RouteConfig{Topic: "t.${topic[1]}"}
	route.Rate = unit.Rate(rnd.IntN(100)+20) << 10
	if rnd.IntN(2) == 0 {
		route.BacklogRate = 5 << 10
	}
	cfg := p.liveConfig(delivery, route)
	p.start(cfg)
	var steps []string
	for range killRounds(10, 30) {
		step := ""
		switch rnd.IntN(8) {
		case 0, 1:
			step = "down"
			p.plant.down()
		case 2, 3:
			step = "up"
			p.plant.up()
		case 4:
			step = "kill"
			p.kill()
			p.start(cfg)
		case 5:
			step = "stop"
			p.stop()
			p.start(cfg)
		case 6:
			lane := []string{"", "t.l0/0", "t.l1/1"}[rnd.IntN(3)]
			step = "pause " + lane
			if err := p.b.Pause(t.Context(), "all", lane); err != nil {
				t.Fatal(err)
			}
		case 7:
			step = "resume"
			for _, lane := range []string{"", "t.l0/0", "t.l1/1"} {
				if err := p.b.Resume(t.Context(), "all", lane); err != nil {
					t.Fatal(err)
				}
			}
		}
		d := time.Duration(rnd.IntN(25_000)) * time.Millisecond
		steps = append(steps, fmt.Sprint(step, " ", d.Round(time.Second)))
		p.flow(levels(2), 6, d)
	}
	p.plant.up()
	for _, lane := range []string{"", "t.l0/0", "t.l1/1"} {
		if err := p.b.Resume(t.Context(), "all", lane); err != nil {
			t.Fatal(err)
		}
	}
	p.delivered(20 * time.Minute)
	splits := p.b.Stats()[0].Splits
	got, old := p.split(p.consumeAt(p.plant, topics...))
	t.Logf("%+v, %d of backlogs, %d splits since the last start", got, old, splits)
	p.end()
	if got != (tally{}) {
		t.Errorf("records %+v, want every one once and in order; steps %s", got, strings.Join(steps, ", "))
		return false
	}
	return true
}

// A topic that is stuck, with something in the air, holds neither the split nor the others, and nothing of it comes twice.
func TestLiveFirstWithAStuckTopic(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{2, 2}, "t.l0", "t.l1")
		defer p.end()
		p.start(p.liveConfig(delivery, RouteConfig{Topic: "t.${topic[1]}", Rate: 100 << 10, BacklogRate: 20 << 10}))
		p.flow(levels(2), 8, 2*time.Second)
		p.drained(time.Minute)
		fault := p.plant.cluster.Fault(produceFault("t.l1", kerr.NotEnoughReplicas, -1))
		p.flow(levels(2), 8, 3*time.Second)
		p.plant.down()
		p.flow(levels(2), 8, time.Minute)
		p.plant.up()
		p.until("the backlog is put aside", time.Minute, func() bool { p.publish(levels(2), 8, 1); time.Sleep(100 * time.Millisecond); return p.backlog() > 0 })
		sent := p.b.Stats()[0].Sent
		p.publish(levels(2), 8, 10)
		p.until("new records of the other topic are delivered", 10*time.Second, func() bool { return p.b.Stats()[0].Sent >= sent+40 })
		fault.Remove()
		p.delivered(10 * time.Minute)
		if got, old := p.split(p.consumeAt(p.plant, "t.l0", "t.l1")); got != (tally{}) || old == 0 {
			t.Errorf("records %+v, %d of backlogs", got, old)
		}
	})
}

// The first moments of an outage are no backlog: records are older than live_after then, and the last acknowledgement is not long ago.
func TestTheBeginningOfAnOutageIsNoBacklog(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		cfg := p.liveConfig(delivery, RouteConfig{Topic: "t", Rate: 100 << 10, BacklogRate: 4 << 10})
		cfg.Routes[0].LiveAfter = unit.Duration(time.Second)
		p.start(cfg)
		p.flow(oneTopic("a"), 8, 5*time.Second)
		p.plant.down()
		p.flow(oneTopic("a"), 8, 20*time.Second)
		if s := p.b.Stats()[0]; s.Splits != 0 {
			t.Errorf("%d splits while nothing is acknowledged", s.Splits)
		}
		p.plant.up()
		p.delivered(5 * time.Minute)
		if got, _ := p.split(p.consumeAt(p.plant, "t")); got != (tally{}) {
			t.Errorf("records %+v", got)
		}
	})
}

// Outage upon outage: backlogs are queued, their number is bounded, and all of them are delivered.
func TestLiveFirstQueuesBacklogs(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		p.start(p.liveConfig(delivery, RouteConfig{Topic: "t", Rate: 40 << 10, BacklogRate: 2 << 10}))
		p.publish(oneTopic("a"), 8, 1)
		p.drained(time.Minute)
		for i := range maxBacklogs + 1 {
			p.plant.down()
			p.flow(oneTopic("a"), 8, 40*time.Second)
			p.plant.up()
			p.until("the backlogs are put aside", time.Minute, func() bool {
				p.flow(oneTopic("a"), 8, time.Second)
				h := p.b.Health()[0]
				return h.Backlog != nil && len(h.Backlog.Backlogs) == min(i+1, maxBacklogs) && h.State == OK
			})
			p.flow(oneTopic("a"), 8, 5*time.Second)
			if n := len(p.b.routes[0].backlogged()); n > maxBacklogs {
				t.Fatalf("%d backlogs", n)
			}
		}
		if !slices.IsSortedFunc(p.b.Health()[0].Backlog.Backlogs, func(a, b BacklogPart) int { return a.Since.Compare(b.Since) }) {
			t.Errorf("backlogs %+v are not in order", p.b.Health()[0].Backlog)
		}
		time.Sleep(time.Minute)
		if h := p.b.Health()[0]; h.State != OK {
			t.Errorf("health %+v while backlogs drain", h)
		}
		p.stop()
		cfg := p.liveConfig(delivery, RouteConfig{Topic: "t"})
		cfg.Routes[0].Drain, cfg.Routes[0].LiveAfter = OldestFirst, 0 // what is put aside is delivered all the same
		p.start(cfg)
		p.delivered(10 * time.Minute)
		if got, _ := p.split(p.consumeAt(p.plant, "t")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
	})
}

// A backlog that is there when a route is changed to exactly once is delivered in transactions of its own, over kills too.
func TestABacklogIsDeliveredExactlyOnceAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t", Rate: 40 << 10, BacklogRate: 2 << 10}))
		p.publish(oneTopic("a"), 8, 1)
		p.drained(time.Minute)
		p.plant.down()
		p.flow(oneTopic("a"), 8, 40*time.Second)
		p.plant.up()
		p.until("the backlog is put aside", time.Minute, func() bool { p.flow(oneTopic("a"), 8, time.Second); return p.backlog() > 0 })
		p.stop()
		cfg := p.liveConfig(ExactlyOnce, RouteConfig{Topic: "t", Rate: 20 << 10})
		cfg.Routes[0].Drain, cfg.Routes[0].LiveAfter = OldestFirst, 0
		for round := range 4 {
			p.start(cfg)
			left := p.backlog()
			if left == 0 {
				t.Fatalf("round %d: no backlog is left: that was no test", round)
			}
			p.until("some of it delivered", time.Minute, func() bool { p.flow(oneTopic("a"), 8, time.Second); return p.backlog() < left-100 })
			p.kill()
		}
		p.start(cfg)
		p.delivered(10 * time.Minute)
		if got, _ := p.split(p.consumeAt(p.plant, "t")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
	})
}

// Retention that passes a backlog is a gap, which is told of, and the rest is delivered.
func TestLiveFirstTellsOfAGapInTheBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t", Rate: 20 << 10, BacklogRate: 2 << 10}))
		p.publish(oneTopic("a"), 2, 1)
		p.drained(time.Minute)
		p.plant.down()
		p.flow(oneTopic("a"), 2, time.Minute)
		p.plant.up()
		p.until("the backlog is put aside", time.Minute, func() bool {
			p.publish(oneTopic("a"), 2, 1)
			time.Sleep(100 * time.Millisecond)
			return p.backlog() > 0
		})
		p.drainedButBacklog()
		p.stop()
		lost := 0
		p.log.mu.Lock()
		for _, f := range p.b.routes[0].stint.Load().aside[0].feeders {
			f.mu.Lock()
			at := f.pos
			for _, l := range f.lanes {
				at = min(at, l.unacked())
			}
			to := at + (f.until-at)/2
			f.mu.Unlock()
			p.log.streams["default"][f.partition].start = to
			lost += int(to - at)
		}
		p.log.mu.Unlock()
		var told strings.Builder
		p.handler = slog.NewTextHandler(&told, nil)
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t"}))
		p.delivered(time.Minute)
		if got, _ := p.split(p.consumeAt(p.plant, "t")); lost == 0 || got != (tally{missing: lost}) {
			t.Errorf("records %+v, want %d missing", got, lost)
		}
		p.stop()
		if !strings.Contains(told.String(), "records are gone") {
			t.Errorf("nobody tells of it: %s", told.String())
		}
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t"}))
	})
}

// drainedButBacklog waits until only the backlog is left.
func (r *rig) drainedButBacklog() {
	r.t.Helper()
	r.until("new records delivered", time.Minute, func() bool { s := r.b.Stats()[0]; return s.Lag == s.Backlog })
}

// A route that fails over takes its backlog along.
func TestLiveFirstFailsOverWithItsBacklog(t *testing.T) {
	eachDelivery(t, func(t *testing.T, delivery string) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		cfg := p.config(RouteConfig{Topic: "t", Delivery: delivery, Drain: LiveFirst, LiveAfter: unit.Duration(5 * time.Second), Rate: 100 << 10, BacklogRate: 4 << 10})
		p.start(cfg)
		p.flow(oneTopic("a"), 8, 2*time.Second)
		p.drained(time.Minute)
		p.plant.down()
		p.cloud.down()
		p.flow(oneTopic("a"), 8, time.Minute)
		p.plant.up()
		p.until("the backlog is put aside", time.Minute, func() bool {
			p.publish(oneTopic("a"), 8, 1)
			time.Sleep(100 * time.Millisecond)
			return p.backlog() > 0
		})
		p.flow(oneTopic("a"), 8, 10*time.Second)
		p.cloud.up()
		p.plant.down()
		p.arrives("cloud", time.Minute)
		p.flow(oneTopic("a"), 8, 10*time.Second)
		p.plant.up()
		p.arrives("plant", 5*time.Minute)
		p.delivered(10 * time.Minute)
		both := append(p.consumeAt(p.plant, "t"), p.consumeAt(p.cloud, "t")...)
		got, old := p.split(both)
		if got.reordered = 0; got.missing != 0 || old == 0 {
			t.Errorf("records %+v over both, %d of backlogs", got, old)
		}
		t.Logf("%+v over both, %d of backlogs", got, old)
		for _, s := range []*site{p.plant, p.cloud} {
			if got, _ := p.split(p.consumeAt(s, "t")); got.doubled != 0 || got.reordered != 0 {
				t.Errorf("%s: records %+v, want none doubled or out of order", s.name, got)
			}
		}
	})
}

// Whoever waits for Kafka with everything before him waits for the backlog too.
func TestAwaitedRecordsOfABacklogAreNotDoneBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		p.await = map[string]Await{"default": {Timeout: time.Hour}}
		defer p.end()
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t", Rate: 20 << 10, BacklogRate: 2 << 10}))
		p.publish(oneTopic("a"), 1, 10)
		p.drained(time.Minute)
		p.plant.down()
		p.flow(oneTopic("a"), 1, time.Minute)
		last := spool.Offset(len(p.log.streams["default"][0].records) - 1)
		w := &waiter{patient: true}
		p.b.Await("default", 0, last, w)
		p.plant.up()
		p.until("the backlog is put aside", time.Minute, func() bool {
			p.publish(oneTopic("a"), 1, 1)
			time.Sleep(100 * time.Millisecond)
			return p.backlog() > 0
		})
		p.drainedButBacklog()
		p.silent(w, time.Second)
		if p.backlog() == 0 {
			t.Fatal("the backlog is delivered already")
		}
		p.delivered(10 * time.Minute)
		p.until("told", time.Minute, func() bool { _, told := w.get(); return told })
	})
}

// What a crash leaves of a split that was not valid yet is cleared away; what it leaves of the old positions behind one is not taken up.
func TestLiveFirstClearsAwayHalfASplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMemLog(map[string]int{"default": 2, "dead": 1})
		put := func(in, key, value string) {
			if err := l.Append(context.Background(), spool.Entry{Changes: []spool.Change{{Space: in, Key: key, Value: []byte(value)}}}); err != nil {
				t.Fatal(err)
			}
		}
		put(backlogSpace("all"), "half/0/t/0", "2 d 0 2 -1 x")
		for _, name := range []string{"", "/keep"} {
			if _, err := l.OpenCursor(t.Context(), backlogCursor("all", "half")+name, "default", spool.CursorOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		p := newPair(t, [2]int32{2, 2}, "t")
		p.log = l
		defer p.end()
		p.publish(oneTopic("a"), 2, 100)
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t"}))
		p.delivered(time.Minute)
		mapping := p.b.routes[0].mapping()
		p.stop()
		p.publish(oneTopic("a"), 2, 100)
		put(backlogSpace("all"), "whole", "1 5 0:100-150")
		put(space("all"), "0/t/0", "3 d 100 2 -1 "+mapping+" plant")
		put(space("all"), "0/t/1", "3 d 100 2 -1 "+mapping+" plant")
		p.start(p.liveConfig(AtLeastOnce, RouteConfig{Topic: "t"}))
		p.delivered(time.Minute)
		if got, old := p.split(p.consumeAt(p.plant, "t")); got != (tally{}) || old != 50 {
			t.Errorf("records %+v, %d of backlogs", got, old)
		}
	})
}

func TestBacklogEntryIsReadAsItWasWritten(t *testing.T) {
	bl := newBacklog(time.Unix(1, 5))
	bl.parts[3], bl.parts[0] = span{7, 9}, span{0, 1 << 40}
	got, err := parseBacklog(bl.id, string(bl.value()))
	if err != nil || got.offsets() != bl.offsets() || !got.since.Equal(bl.since) || len(got.parts) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "1 5", "2 5 0:1-2", "1 x 0:1-2", "1 5 0:3-2", "1 5 -1:1-2", "1 5 0:1", "1 5 0"} {
		if _, err := parseBacklog("x", bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestDrainIsValidated(t *testing.T) {
	f := func(want string, set func(*RouteConfig)) {
		t.Helper()
		rc := RouteConfig{Name: "a", Topic: "t"}
		set(&rc)
		cfg := oneRoute(rc)
		cfg.Upstreams = []kafka.Config{{Name: "main", Brokers: []string{"localhost:9092"}}}
		err := cfg.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("", func(*RouteConfig) {})
	f("", func(rc *RouteConfig) { rc.Drain, rc.BacklogRate = LiveFirst, 1<<20 })
	f("routes[0].drain", func(rc *RouteConfig) { rc.Drain, rc.Delivery = LiveFirst, ExactlyOnce })
	f("routes[0].drain", func(rc *RouteConfig) { rc.Drain = "newest_first" })
	f("routes[0].live_after", func(rc *RouteConfig) { rc.Drain, rc.LiveAfter = LiveFirst, unit.Duration(time.Millisecond) })
	f("routes[0].live_after", func(rc *RouteConfig) { rc.LiveAfter = unit.Duration(time.Minute) })
	f("routes[0].backlog_rate", func(rc *RouteConfig) { rc.BacklogRate = 1 << 20 })
	f("routes[0].backlog_rate", func(rc *RouteConfig) { rc.Drain, rc.BacklogRate = LiveFirst, 5 })
}
