package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// One stream goes to two clusters by two routes. Whatever happens to one of them, the other gets everything at the pace at which it
// comes; the one that was away gets the rest afterwards, in order and once.
func TestKafkaFanOutToTwoClusters(t *testing.T) {
	near, far := kafkatest.Start(t, kafkatest.Options{}), kafkatest.Start(t, kafkatest.Options{})
	r := &realRig{rig: &rig{t: t, log: newMemLog(map[string]int{"default": 2, "dead": 1}), next: make(map[string]int)}}
	for _, c := range []*kafkatest.Cluster{near, far} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers()...))
		if err != nil {
			t.Fatal(err)
		}
		r.admin = kadm.NewClient(cl)
		r.create("copy", 3, nil)
		cl.Close()
	}
	var err error
	r.b, err = New(t.Context(), Config{
		Upstreams: []kafka.Config{{Name: "near", Brokers: near.Brokers()}, {Name: "far", Brokers: far.Brokers()}},
		Routes:    []RouteConfig{{Name: "near", Upstream: "near", Topic: "copy"}, {Name: "far", Upstream: "far", Topic: "copy"}}, DeadLetterStream: "dead",
	}, Options{Log: r.log, GatewayID: "gw1", Logger: r.logger()})
	if err != nil {
		t.Fatal(err)
	}
	r.ran = make(chan struct{})
	go func() {
		defer close(r.ran)
		if err := r.b.Run(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(r.stop)

	stop := r.load(oneTopic("a/b"), 10)
	sent := func(route int) uint64 { return r.b.Stats()[route].Sent }
	more := func(route int, what string) {
		t.Helper()
		before := sent(route)
		r.until(what, 30*time.Second, func() bool { return sent(route) > before+1000 })
	}
	more(0, "near delivers")
	more(1, "far delivers")

	for _, away := range []struct {
		what       string
		begin, end func()
	}{
		{"killed", far.Node(0).Kill, func() {
			if err := far.Node(0).Start(); err != nil {
				t.Fatal(err)
			}
		}},
		{"silent", far.Node(0).Pause, far.Node(0).Resume},
	} {
		away.begin()
		r.until("far is known to be away", 20*time.Second, func() bool {
			for _, u := range r.b.Upstreams() {
				if u.Upstream == "far" && !u.Down.IsZero() {
					return true
				}
			}
			return false
		})
		stuck := sent(1)
		worst := uint64(0)
		for before := sent(0); sent(0) < before+5000; time.Sleep(10 * time.Millisecond) {
			worst = max(worst, r.b.Stats()[0].Lag)
		}
		t.Logf("far is %s: near has a lag of %d records at most, far one of %d", away.what, worst, r.b.Stats()[1].Lag)
		if worst > 1500 {
			t.Errorf("far is %s, and near has a lag of %d records", away.what, worst)
		}
		if sent(1) != stuck || r.b.Stats()[1].Lag < 4000 {
			t.Errorf("far is %s, and its route sent %d records and has a lag of %d", away.what, sent(1)-stuck, r.b.Stats()[1].Lag)
		}
		for _, u := range r.b.Upstreams() {
			if u.Upstream == "near" && !u.Down.IsZero() {
				t.Errorf("near is down: %+v", u)
			}
		}
		away.end()
		more(1, "far catches up")
	}
	stop()
	r.drained(30 * time.Second)
	for name, c := range map[string]*kafkatest.Cluster{"near": near, "far": far} {
		if got := r.tally(readCommitted(t, c.Brokers(), "copy")); got != (tally{}) {
			t.Errorf("%s: records %+v, want every one once and in order", name, got)
		}
	}
}
