package bridge

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// at has the rig's helpers work on a site.
func (p *pair) at(s *site) *rig {
	p.cluster, p.brokers = s.cluster, s.brokers
	return p.rig
}

// redriven are the records of a topic that were dead letters.
func (p *pair) redriven(s *site) (topics []string) {
	for _, rec := range p.at(s).consume("telemetry") {
		if h := headers(rec); h["forebay.redrive"] != "" {
			topics = append(topics, h["mqtt.topic"])
		}
	}
	return topics
}

// A redrive that is in the air to a cluster which has died ends when the route has gone to another one, and says so; the next one goes there.
func TestRedriveGivesUpWhenTheRouteHasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{1, 1}, "telemetry")
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "telemetry"}))
		p.publish(oneTopic("a"), 2, 1)
		for i := range 3 {
			p.log.add("default", i%2, spool.Record{Topic: fmt.Sprintf("big/%d", i), ClientID: "c", Payload: []byte(noise(1_500_000)), ReceivedAt: time.Now().UnixNano()})
		}
		p.drained(time.Minute)
		p.until("dead letters", time.Minute, func() bool { return p.b.DeadLetters().Waiting() == 3 })
		p.at(p.plant).setMaxMessage("telemetry", "3000000")
		p.at(p.cloud).setMaxMessage("telemetry", "3000000")
		time.Sleep(2 * time.Minute) // the limits are known

		p.plant.down()
		w, err := p.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{}, false)
		if err == nil || !strings.Contains(err.Error(), "goes on") {
			t.Fatalf("%+v, %v, want that it goes on", w, err)
		}
		p.flow(oneTopic("a"), 2, time.Second)
		p.arrives("cloud", 5*time.Minute)
		p.until("the redrive is over", time.Minute, func() bool {
			w, err = p.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{}, false)
			return err == nil
		})
		if w.Done != 3 || len(w.Failed) != 0 || p.b.DeadLetters().Waiting() != 0 {
			t.Errorf("%+v, %d left, want all 3 redriven", w, p.b.DeadLetters().Waiting())
		}
		time.Sleep(time.Minute) // the old producer is gone
		p.plant.up()
		time.Sleep(5 * time.Minute)
		if got := p.redriven(p.cloud); len(got) != 3 {
			t.Errorf("cloud has %v, want the three", got)
		}
		if got := p.redriven(p.plant); len(got) != 0 {
			t.Errorf("plant has %v: nobody waited for them any more", got)
		}
	})
}

// Who asks is told when the route moves while he waits.
func TestRedriveTellsThatTheRouteHasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{1, 1}, "telemetry")
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "telemetry"}))
		p.log.add("default", 0, spool.Record{Topic: "big", ClientID: "c", Payload: []byte(noise(1_500_000)), ReceivedAt: time.Now().UnixNano()})
		p.until("dead letter", time.Minute, func() bool { return p.b.DeadLetters().Waiting() == 1 })
		p.at(p.plant).setMaxMessage("telemetry", "3000000")
		time.Sleep(2 * time.Minute)
		p.plant.down()
		go func() {
			time.Sleep(2 * time.Second)
			if err := p.b.Failover(t.Context(), "all", "cloud"); err != nil {
				t.Error(err)
			}
		}()
		w, err := p.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{}, false)
		if err != nil || w.Done != 0 || len(w.Failed) != 1 || w.Failed[0].Reason != "moved" || !strings.Contains(w.Failed[0].Error, "redriven again it goes to cloud") {
			t.Errorf("%+v, %v, want that the route has moved", w, err)
		}
		if n := p.b.DeadLetters().Waiting(); n != 1 {
			t.Errorf("%d dead letters, want the one", n)
		}
	})
}

// A dead letter that lands after it was given up, while others are still in the air, is told once: as done.
func TestRedriveTellsOnceOfWhatLandsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{1, 1}, "telemetry", "u")
		defer p.end()
		cfg := p.config(RouteConfig{Topic: "telemetry", Filters: []string{"a"}})
		other := cfg.Routes[0]
		other.Name, other.Topic, other.Failover, other.Filters = "other", "u", Failover{}, []string{"b"}
		cfg.Routes = append(cfg.Routes, other)
		p.start(cfg)
		for _, topic := range []string{"a", "b"} {
			p.log.add("default", 0, spool.Record{Topic: topic, ClientID: "c", Payload: []byte(noise(1_500_000)), ReceivedAt: time.Now().UnixNano()})
		}
		p.until("dead letters", time.Minute, func() bool { return p.b.DeadLetters().Waiting() == 2 })
		p.at(p.plant).setMaxMessage("telemetry", "3000000")
		p.at(p.plant).setMaxMessage("u", "3000000")
		time.Sleep(2 * time.Minute)
		late := p.plant.cluster.Fault(produceFault("telemetry", kerr.NotEnoughReplicas, -1))
		last := p.plant.cluster.Fault(produceFault("u", kerr.NotEnoughReplicas, -1))
		go func() {
			time.Sleep(time.Second)
			if err := p.b.Failover(t.Context(), "all", "cloud"); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second) // it is given up
			late.Remove()
			time.Sleep(5 * time.Second) // it has landed
			last.Remove()
		}()
		w, err := p.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{}, false)
		if err != nil || w.Done != 2 || len(w.Failed) != 0 {
			t.Errorf("%+v, %v, want both done, and none failed", w, err)
		}
		if n := p.b.DeadLetters().Waiting(); n != 0 {
			t.Errorf("%d dead letters are left", n)
		}
	})
}

// takes is a front that keeps what is published.
type takes struct{ records []spool.Record }

func (f *takes) Publish(_ context.Context, e spool.Entry) error {
	if e.Changes != nil {
		panic("a redrive has no position")
	}
	f.records = append(f.records, *e.Record)
	e.Done.Durable(e.Record, nil)
	return nil
}

func TestRedriveOfADownlinkPublishesOrSaysWhyNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		cfg := oneRoute(RouteConfig{Topic: "telemetry"})
		cfg.DeadLetterStream = "dead"
		cfg.Downlinks = []downlink.Config{
			{Name: "down", Topics: []string{"commands"}, Topic: "cmd/${key}/${header.site}", QoS: "2", NullValue: downlink.NullClear, Expiry: "${header.ttl|0}"},
			{Name: "drop", Topics: []string{"commands"}, Topic: "drop/${key}"},
		}
		r.start(cfg)
		n := 0
		letter := func(of string, in kafka.Incoming, cut bool) (id string) {
			t.Helper()
			in.Topic, in.Partition, in.Offset, in.Timestamp = "commands", 3, int64(n), time.Now()
			rec, err := r.b.buryIncoming(downlink.Letter{Downlink: of, Upstream: "main", Record: &in, Cut: cut})
			if err != nil {
				t.Fatal(err)
			}
			r.log.add("dead", 0, *rec)
			n++
			return fmt.Sprintf("0:%d", n-1)
		}
		d := r.b.DeadLetters()
		refused := func(id, want string) {
			t.Helper()
			w, err := d.Redrive(t.Context(), DeadLetterQuery{ID: id}, false)
			if err != nil || w.Done != 0 || len(w.Failed) != 1 || w.Failed[0].Reason != "downlink" || !strings.Contains(w.Failed[0].Error, want) {
				t.Errorf("%+v, %v, want %q", w, err, want)
			}
		}
		site := []kafka.Header{{Name: "site", Value: []byte("n")}}
		good := letter("down", kafka.Incoming{Key: []byte("k"), Value: []byte("on"), Headers: site}, false)
		refused(good, "no downlink runs")
		front := new(takes)
		e, err := r.b.NewDownlinks(front, "gw1")
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Pause(t.Context(), "down"); err != nil {
			t.Fatal(err)
		}
		refused(good, "downlink down is paused")
		if err := e.Resume(t.Context(), "down"); err != nil {
			t.Fatal(err)
		}
		null := letter("down", kafka.Incoming{Key: []byte("k"), Headers: site}, false)
		for _, id := range []string{good, null} {
			if w, err := d.Redrive(t.Context(), DeadLetterQuery{ID: id}, false); err != nil || w.Done != 1 || len(w.Failed) != 0 {
				t.Errorf("%+v, %v, want it redriven", w, err)
			}
		}
		if len(front.records) != 2 {
			t.Fatalf("%d records, want 2", len(front.records))
		}
		on, clear := front.records[0], front.records[1]
		if on.Topic != "cmd/k/n" || string(on.Payload) != "on" || on.QoS != 2 || on.ClientID != "$forebay/downlink/down/commands/3" || on.Properties.User[0].Name != "site" {
			t.Errorf("published %+v %+v", on, on.Properties)
		}
		if clear.Topic != "cmd/k/n" || len(clear.Payload) > 0 || !clear.Retain {
			t.Errorf("a null value was published as %+v, want what clears the retained message", clear)
		}
		refused(letter("down", kafka.Incoming{Key: []byte("a/b"), Value: []byte("x"), Headers: site}, false), "several levels")
		refused(letter("down", kafka.Incoming{Key: []byte("k"), Value: []byte("x")}, false), `header["site"] is missing`)
		refused(letter("down", kafka.Incoming{Key: []byte("k"), Value: make([]byte, 2<<20), Headers: site}, true), "write offset 4 of topic commands partition 3 to its topic again")
		refused(letter("down", kafka.Incoming{Key: []byte("k"), Value: []byte("x"), Headers: append(site, kafka.Header{Name: "big", Value: make([]byte, 30<<10)})}, false), "it is not kept as a whole")
		refused(letter("down", kafka.Incoming{Key: []byte("k"), Value: []byte("x"), Headers: append(site, kafka.Header{Name: "forebay.id", Value: []byte("gw1/default/0/1")})}, false), "own_records is drop")
		refused(letter("drop", kafka.Incoming{Key: []byte("k")}, false), "null_value is drop")
		refused(letter("gone", kafka.Incoming{Key: []byte("k"), Value: []byte("x")}, false), `"gone": no such downlink`)
		late := letter("down", kafka.Incoming{Key: []byte("k"), Value: []byte("x"), Headers: append(site, kafka.Header{Name: "ttl", Value: []byte("5")})}, false)
		time.Sleep(time.Minute)
		refused(late, "its time is over")
		if len(front.records) != 2 || d.Waiting() != 8 {
			t.Errorf("%d records, %d left, want 2 and 8", len(front.records), d.Waiting())
		}
	})
}
