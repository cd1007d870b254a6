package bridge

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/spool"
)

// A replay through a route with failover goes where the route is, also when its first upstream is away for long.
func TestReplayGoesToTheUpstreamThatTheRouteIsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "telemetry")
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "telemetry"}))
		p.publish(oneTopic("a"), 4, 10)
		p.drained(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.b.Failover(ctx, "all", "cloud"); err != nil {
			t.Fatal(err)
		}
		p.plant.down()
		e := p.replays()
		defer closed(t, e)
		s := p.replayed(e, replay.Request{Route: "all"})
		p.cluster, p.brokers = p.cloud.cluster, p.cloud.brokers
		if got := again(p.consume("telemetry"), s.ID); s.Sent != 40 || len(got) != 40 || s.Upstream != "cloud" {
			t.Errorf("sent %d, %d in cloud, to %s, want 40 to cloud", s.Sent, len(got), s.Upstream)
		}
	})
}

// A replay whose route has gone elsewhere says so, and what to do about it.
func TestReplayTellsThatItsRouteHasGoneElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "telemetry")
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "telemetry"}))
		p.publish(oneTopic("a"), 4, 10)
		p.drained(time.Minute)
		p.plant.down()
		e := p.replays()
		defer closed(t, e)
		s, err := e.Start(t.Context(), replay.Request{Route: "all"})
		if err != nil {
			t.Fatal(err)
		}
		p.publish(oneTopic("a"), 4, 1)
		p.arrives("cloud", 2*time.Minute)
		want := "route all is on upstream cloud now: cancel the replay and resume it, and it goes there too"
		p.until("it says where the route is", time.Minute, func() bool {
			now, _ := e.Show(s.ID)
			return now.Problem != nil && now.Problem.Hint == want
		})
		if _, err := e.Cancel(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Resume(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if s = p.replayIs(e, s.ID, replay.Done); s.Sent != 40 || s.Upstream != "cloud" {
			t.Errorf("sent %d to %s, want 40 to cloud", s.Sent, s.Upstream)
		}
	})
}

// What came by a downlink goes up by a replay where a route would send it, and where somebody asks for just that.
func TestReplayLeavesOutWhatCameByADownlink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "up", "all", "again"))
		defer r.end()
		cfg := oneRoute(RouteConfig{Name: "up", Topic: "up"})
		cfg.Routes = append(cfg.Routes, RouteConfig{Name: "all", Topic: "all", Downlinks: true})
		r.start(cfg)
		r.publish(oneTopic("a"), 1, 3)
		client := downlink.ClientPrefix + "down/commands/0"
		for range 5 {
			r.log.add("default", 0, spool.Record{Topic: "a", ClientID: client, QoS: 1, Payload: []byte("on")})
		}
		e := r.replays()
		defer closed(t, e)
		for _, c := range []struct {
			req           replay.Request
			sent, leftOut uint64
		}{
			{replay.Request{Route: "up"}, 3, 5},
			{replay.Request{Route: "all"}, 8, 0},
			{replay.Request{Upstream: "main", Topic: "again"}, 3, 5},
			{replay.Request{Upstream: "main", Topic: "again", ClientID: client}, 5, 0},
		} {
			if s := r.replayed(e, c.req); s.Sent != c.sent || s.LeftOut != c.leftOut {
				t.Errorf("%s %s: sent %d, left out %d, want %d and %d", s.Target, c.req.ClientID, s.Sent, s.LeftOut, c.sent, c.leftOut)
			}
		}
	})
}

// A dead letter of what came by a downlink goes up again only while its route sends such records.
func TestRedriveLeavesOutWhatCameByADownlink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		cfg := oneRoute(RouteConfig{Topic: "telemetry", Downlinks: true})
		cfg.DeadLetterStream = "dead"
		r.start(cfg)
		r.log.add("default", 0, spool.Record{Topic: "a", ClientID: downlink.ClientPrefix + "down/commands/0", QoS: 1, Payload: []byte(noise(1_500_000))})
		r.drained(time.Minute)
		r.setMaxMessage("telemetry", "3000000")
		r.stop()
		cfg.Routes[0].Downlinks = false
		r.start(cfg)
		r.publish(oneTopic("a"), 1, 1)
		r.drained(time.Minute) // the upstream is there
		w, err := r.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{}, false)
		if err != nil || w.Done != 0 || len(w.Failed) != 1 || w.Failed[0].Error != "route all leaves it out now: downlink" {
			t.Errorf("%+v, %v", w, err)
		}
	})
}

// noRoom is a front without room.
type noRoom struct{}

func (noRoom) Publish(ctx context.Context, _ spool.Entry) error {
	<-ctx.Done()
	return ctx.Err()
}

// A stop does not wait for each dead letter of a redrive that gets nowhere.
func TestRedriveEndsWithTheBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.cluster.Close()
		cfg := oneRoute(RouteConfig{Topic: "telemetry"})
		cfg.DeadLetterStream = "dead"
		cfg.Downlinks = []downlink.Config{{Name: "down", Topics: []string{"commands"}, Topic: "a"}}
		r.start(cfg)
		if _, err := r.b.NewDownlinks(noRoom{}, "gw1"); err != nil {
			t.Fatal(err)
		}
		for i := range int64(100) {
			rec, err := r.b.buryIncoming(downlink.Letter{Downlink: "down", Upstream: "main", Record: &kafka.Incoming{Topic: "commands", Offset: i, Value: []byte("on")}})
			if err != nil {
				t.Fatal(err)
			}
			r.log.add("dead", 0, *rec)
		}
		if w, err := r.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{}, false); err == nil {
			t.Fatalf("%+v, want that it goes on", w)
		}
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the stop took %v of virtual time", took)
		}
	})
}

// Publishers that wait for Kafka are refused while the upstream is away, and nothing of theirs is in the spool. The route goes elsewhere for
// them all the same.
func TestRouteGoesElsewhereForThoseItCannotLetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "telemetry")
		p.await = awaitAll()
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "telemetry"}))
		p.told(p.wait("a", "c", 0), "", time.Minute)
		p.plant.down()
		time.Sleep(10 * time.Minute)
		if on := p.on(); on != "plant" {
			t.Errorf("on %s with nothing to send", on)
		}
		if reason := p.b.Away("default", 0); reason != Unreachable {
			t.Errorf("away %q, want unreachable", reason)
		}
		p.arrives("cloud", 2*testAfter)
		if reason := p.b.Away("default", 0); reason != "" {
			t.Errorf("away %q on the standby", reason)
		}
		p.told(p.wait("a", "c", 0), "", time.Minute)
	})
}

// Who waits when the upstream goes away is told when the other one has the record.
func TestWhoWaitsIsToldByTheStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "telemetry")
		p.await = map[string]Await{"default": {Timeout: time.Hour}}
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "telemetry"}))
		p.told(p.wait("a", "c", 0), "", time.Minute)
		p.plant.down()
		w := p.wait("a", "c", 0)
		p.silent(w, testAfter/2)
		p.told(w, "", 5*testAfter)
		p.cluster, p.brokers = p.cloud.cluster, p.cloud.brokers
		if n := p.stored("telemetry"); p.on() != "cloud" || n != 1 {
			t.Errorf("on %s, which has %d records, want 1 in cloud", p.on(), n)
		}
	})
}

// What a replay has put into a topic is not what the route has sent: after a crash the route sends its own records all the same.
func TestReadingBackDoesNotTakeReplayedRecordsForTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		cfg := oneRoute(RouteConfig{Topic: "telemetry"})
		r.start(cfg)
		if err := r.b.Pause(t.Context(), "all", ""); err != nil {
			t.Fatal(err)
		}
		r.publish(oneTopic("a"), 1, 50)
		e := r.replays()
		s := r.replayed(e, replay.Request{Upstream: "main", Topic: "telemetry"})
		closed(t, e)
		r.crash(r.log.clone())
		r.start(cfg)
		if err := r.b.Resume(t.Context(), "all", ""); err != nil {
			t.Fatal(err)
		}
		r.drained(time.Minute)
		ids := make(map[string]int)
		for _, rec := range r.consume("telemetry") {
			if h := headers(rec); h["forebay.replay"] == "" {
				ids[h["forebay.id"]]++
			}
		}
		if len(ids) != 50 || s.Sent != 50 {
			t.Errorf("the route has sent %d records beside the replay's %d, want 50", len(ids), s.Sent)
		}
		for id, n := range ids {
			if n != 1 {
				t.Error(fmt.Sprint(id, " came ", n, " times"))
			}
		}
	})
}
