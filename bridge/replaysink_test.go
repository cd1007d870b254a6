package bridge

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/spool"
)

// memPast is a log in memory as replays read it.
type memPast struct{ *memLog }

func (p memPast) NewReader(stream string, partition int, from spool.Offset, _ spool.Match) (replay.Reader, error) {
	return p.memLog.NewReader(stream, partition, from)
}

func (memPast) Outside(string, int, time.Time, time.Time) ([]replay.Range, error) { return nil, nil }

// replays is an engine on the rig's bridge.
func (r *rig) replays() *replay.Engine {
	r.t.Helper()
	cfg := replay.DefaultConfig()
	cfg.RecordsPerSecond = 0
	e, err := replay.New(cfg, replay.Options{Log: r.log, Source: memPast{r.log}, Sinks: r.b.Replays(), GatewayID: "gw1", Logger: r.logger()})
	if err != nil {
		r.t.Fatal(err)
	}
	e.Begin()
	return e
}

func (r *rig) replayed(e *replay.Engine, req replay.Request) replay.Status {
	r.t.Helper()
	s, err := e.Start(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.replayIs(e, s.ID, replay.Done)
}

func (r *rig) replayIs(e *replay.Engine, id string, state replay.State) (s replay.Status) {
	r.t.Helper()
	r.until("replay is "+string(state), 5*time.Minute, func() bool {
		s, _ = e.Show(id)
		return s.State == state
	})
	return s
}

var skipFaults = mapping.Policy{MissingField: mapping.Skip, InvalidJSON: mapping.Skip, ConditionError: mapping.Skip}

// again are the records that a replay has sent: their number by their forebay.id.
func again(records []*kgo.Record, id string) map[string]int {
	out := make(map[string]int)
	for _, rec := range records {
		if h := headers(rec); h["forebay.replay"] == id {
			out[h["forebay.id"]]++
		}
	}
	return out
}

func closed(t *testing.T, e *replay.Engine) {
	t.Helper()
	if err := e.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestReplayGoesThroughTheRouteAsItIsNowAndMovesNoCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.cluster.Close()
		live := RouteConfig{Name: "all", Topic: "telemetry", CreateTopics: &kafka.Create{Partitions: 4}}
		r.start(oneRoute(live))
		r.publish(func(c int) string { return "plant/" + strconv.Itoa(c) }, 10, 200)
		r.drained(time.Minute)
		r.stop()
		edited := RouteConfig{
			Name: "all", Topic: "edited.${topic[1]}", Condition: `levels[1] != "3"`, Filters: []string{"plant/+"}, CreateTopics: &kafka.Create{Partitions: 2},
			OnFault: skipFaults,
		}
		r.start(oneRoute(edited))
		e := r.replays()
		before := r.b.Stats()[0]
		s := r.replayed(e, replay.Request{Route: "all", Filters: []string{"plant/2", "plant/3", "plant/4"}})
		if s.Sent != 400 || s.LeftOut != 200 || s.Refused != 0 || s.Lost != 0 {
			t.Errorf("%+v", s)
		}
		if after := r.b.Stats()[0]; after.Sent != before.Sent || after.Lag != before.Lag {
			t.Errorf("route has moved: %+v before, %+v after", before, after)
		}
		records := r.consume("edited.2", "edited.4")
		if got := again(records, s.ID); len(records) != 400 || len(got) != 400 {
			t.Errorf("%d records with %d identities, want 400", len(records), len(got))
		}
		next := make(map[string]uint64)
		for _, rec := range records { // by partition, in order
			n := uint64(rec.Value[7]) | uint64(rec.Value[6])<<8
			if client := string(rec.Key); n != next[client] {
				t.Errorf("client %s: record %d, want %d", client, n, next[client])
			} else {
				next[client]++
			}
		}
		closed(t, e)
		r.stop()
	})
}

func TestReplayToAnUpstreamNeedsNoRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.end()
		r.start(oneRoute(RouteConfig{Name: "none", Topic: "x", From: "end", Filters: []string{"elsewhere"}}))
		r.publish(func(c int) string { return "plant/" + strconv.Itoa(c) }, 4, 50)
		r.newTopic("again", 3, nil)
		e := r.replays()
		defer closed(t, e)
		s := r.replayed(e, replay.Request{Upstream: "main", Topic: "again", ClientID: "c1"})
		if got := again(r.consume("again"), s.ID); s.Sent != 50 || len(got) != 50 {
			t.Errorf("sent %d, %d in Kafka, want 50", s.Sent, len(got))
		}
		_, err := e.Start(t.Context(), replay.Request{Upstream: "other"})
		if want := `replay: upstream "other": no such upstream; there are: main`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		_, err = e.Start(t.Context(), replay.Request{Route: "other"})
		if want := `replay: route "other": no such route; there are: none`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err = e.Start(t.Context(), replay.Request{Upstream: "main", Topic: "${nothing}"}); err == nil {
			t.Error("took a topic with a field that there is not")
		}
	})
}

func TestReplayWaitsForATopicAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.end()
		r.start(oneRoute(RouteConfig{Name: "none", Topic: "x", From: "end", Filters: []string{"elsewhere"}}))
		r.publish(oneTopic("a"), 2, 10)
		e := r.replays()
		defer closed(t, e)
		s, err := e.Start(t.Context(), replay.Request{Upstream: "main", Topic: "later"})
		if err != nil {
			t.Fatal(err)
		}
		r.until("it says what it waits for", time.Minute, func() bool {
			now, _ := e.Show(s.ID)
			return now.Problem != nil && now.Problem.Reason == "topic_missing" && strings.HasSuffix(now.Problem.Hint, "--create --topic later --partitions 6") // and no route is named: there is none
		})
		r.newTopic("later", 1, nil)
		if s = r.replayIs(e, s.ID, replay.Done); s.Sent != 20 || s.Problem != nil {
			t.Errorf("%+v", s)
		}
	})
}

func TestReplayIsCancelledWhileTheUpstreamIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		r.start(oneRoute(RouteConfig{Name: "all", Topic: "telemetry", From: "end", CreateTopics: &kafka.Create{Partitions: 2}}))
		r.publish(oneTopic("a"), 10, 100)
		r.cluster.Close()
		e := r.replays()
		s, err := e.Start(t.Context(), replay.Request{Route: "all"})
		if err != nil {
			t.Fatal(err)
		}
		r.until("it says that nobody is there", time.Minute, func() bool {
			now, _ := e.Show(s.ID)
			return now.Problem != nil
		})
		began := time.Now()
		if s, err = e.Cancel(t.Context(), s.ID); err != nil || s.State != replay.Cancelled || s.Sent != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("cancelled after %v of virtual time", took)
		}
		r.startCluster()
		defer r.end()
		if _, err := e.Resume(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if s = r.replayIs(e, s.ID, replay.Done); s.Sent != 1000 {
			t.Errorf("%+v", s)
		}
		if got := again(r.consume("telemetry"), s.ID); len(got) != 1000 {
			t.Errorf("%d identities in Kafka, want 1000", len(got))
		}
		closed(t, e)
	})
}

func TestReplayPassesWhatKafkaWillNeverTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.end()
		r.start(oneRoute(RouteConfig{Name: "all", Topic: "telemetry", From: "end"}))
		limit := "20000"
		r.newTopic("telemetry", 2, map[string]*string{"max.message.bytes": &limit})
		for range 3 {
			r.publish(oneTopic("a"), 4, 50)
			r.log.add("default", 1, spool.Record{Topic: "big", ClientID: "c1", Payload: []byte(noise(60_000))})
		}
		r.publish(oneTopic("a"), 4, 50)
		e := r.replays()
		defer closed(t, e)
		s := r.replayed(e, replay.Request{Route: "all"})
		if s.Sent != 800 || s.Refused != 3 || len(s.Refusals) != 3 || s.Refusals[0].Topic != "big" || s.Refusals[0].Reason != "too_large" {
			t.Errorf("%+v", s)
		}
		if got := again(r.consume("telemetry"), s.ID); len(got) != 800 {
			t.Errorf("%d identities in Kafka, want 800", len(got))
		}
	})
}

func TestDryRunOfARouteShowsWhereRecordsWouldGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.end()
		r.start(oneRoute(RouteConfig{Name: "all", Topic: "t.${topic[1]}", Condition: `levels[1] != "3"`, From: "end", OnFault: skipFaults}))
		r.publish(func(c int) string { return fmt.Sprintf("plant/%d", c) }, 4, 25)
		e := r.replays()
		defer closed(t, e)
		s := r.replayed(e, replay.Request{Route: "all", DryRun: true})
		if s.Sent != 75 || s.LeftOut != 25 || s.Preview == nil || len(s.Preview.Destinations) != 3 || len(s.Preview.Samples) != 3 {
			t.Fatalf("%+v %+v", s, s.Preview)
		}
		x := s.Preview.Samples[0]
		if x.Key != x.ClientID || x.Topic != "t."+x.MQTTTopic[len("plant/"):] || len(x.Headers) != 6 {
			t.Errorf("%+v", x)
		}
		if got := r.consume("t.0", "t.1", "t.2"); len(got) != 0 {
			t.Errorf("%d records were sent", len(got))
		}
	})
}

// newTopic makes a topic, and returns when it is there.
func (r *rig) newTopic(name string, partitions int32, configs map[string]*string) {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.Dialer(r.net.DialContext))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, -1, configs, name); err != nil {
		r.t.Fatal(err)
	}
}
