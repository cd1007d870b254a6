package bridge

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
	"github.com/forebay-gateway/forebay/spool"
)

// realRig is a bridge between a log in memory and a real Apache Kafka, in real time.
type realRig struct {
	*rig
	admin *kadm.Client
}

func newRealRig(t *testing.T, c *kafkatest.Cluster, route RouteConfig) *realRig {
	t.Helper()
	return newRealRigOf(t, kafka.Config{Name: "main", Brokers: c.Brokers()}, route)
}

func newRealRigOf(t *testing.T, upstream kafka.Config, route RouteConfig) *realRig {
	t.Helper()
	r := &realRig{rig: &rig{t: t, log: newMemLog(map[string]int{"default": 2, "dead": 1}), next: make(map[string]int)}}
	r.brokers = upstream.Brokers
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	r.admin = kadm.NewClient(cl)
	route.Name = "all"
	cfg := Config{
		Upstreams: []kafka.Config{upstream}, Routes: []RouteConfig{route}, DeadLetterStream: "dead",
	}
	b, err := New(t.Context(), cfg, Options{Log: r.log, GatewayID: "gw1", Logger: r.logger()})
	if err != nil {
		t.Fatal(err)
	}
	r.b, r.ran = b, make(chan struct{})
	go func() {
		defer close(r.ran)
		if err := b.Run(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(r.stop)
	return r
}

// read returns every committed record that the topics have.
func (r *realRig) read(topics ...string) []*kgo.Record {
	r.t.Helper()
	return readCommitted(r.t, r.brokers, topics...)
}

func (r *realRig) create(topic string, partitions int32, configs map[string]*string) {
	r.t.Helper()
	r.createWith(topic, partitions, 1, configs)
}

// createReplicated makes a topic with the cluster's own number of replicas.
func (r *realRig) createReplicated(topic string, partitions int32, configs map[string]*string) {
	r.t.Helper()
	r.createWith(topic, partitions, -1, configs)
}

func (r *realRig) createWith(topic string, partitions int32, replicas int16, configs map[string]*string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	if _, err := r.admin.CreateTopic(ctx, partitions, replicas, configs, topic); err != nil {
		r.t.Fatal(err)
	}
}

// load has some clients publish, a record each in 10 ms, until stop is called.
func (r *realRig) load(topic func(int) string, clients int) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
				r.publish(topic, clients, 1)
			}
		}
	}()
	return func() {
		close(quit)
		<-gone
	}
}

func TestKafkaOneNode(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})

	t.Run("killed, paused and stopped under load", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "load.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 3}})
		stop := r.load(levels(3), 30)
		r.until("delivers", 30*time.Second, func() bool { return r.b.Stats()[0].Sent > 1000 })
		for _, fault := range []func() error{
			func() error { c.Node(0).Kill(); return c.Node(0).Start() },
			func() error { c.Node(0).Pause(); time.Sleep(6 * time.Second); c.Node(0).Resume(); return nil },
			func() error { c.Node(0).Stop(); return c.Node(0).Start() },
		} {
			if err := fault(); err != nil {
				t.Fatal(err)
			}
			sent := r.b.Stats()[0].Sent
			r.until("delivers again", time.Minute, func() bool { return r.b.Stats()[0].Sent > sent+2000 })
		}
		stop()
		r.drained(time.Minute)
		if got := r.tally(r.read("load.l0", "load.l1", "load.l2")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
		if s := r.b.upstreams[0].Status(); s.Torn != 0 {
			t.Errorf("%d torn", s.Torn)
		}
	})

	t.Run("poison is isolated", func(t *testing.T) {
		limit := "20000"
		r := newRealRig(t, c, RouteConfig{Topic: "poison"})
		r.create("poison", 2, map[string]*string{"max.message.bytes": &limit})
		for range 5 {
			r.publish(oneTopic("a"), 20, 100)
			r.log.add("default", 1, spool.Record{Topic: "a", ClientID: "c1", Payload: []byte(noise(30_000))})
		}
		r.publish(oneTopic("a"), 20, 100)
		start := time.Now()
		r.drained(30 * time.Second)
		t.Logf("5 records too large among 12000 set aside in %v", time.Since(start))
		if got := r.tally(r.read("poison")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
		if n := r.b.Stats()[0].DeadLettered; n != 5 {
			t.Errorf("%d dead letters, want 5", n)
		}
	})

	t.Run("missing topic waits, deleted topic is made anew", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "anew"})
		r.publish(oneTopic("a"), 20, 10)
		r.until("held", 30*time.Second, func() bool { h := r.b.Health()[0]; return h.State == Stuck && h.Reason == "topic_missing" })
		r.create("anew", 3, nil)
		r.drained(30 * time.Second)
		before := r.next["c0"]
		if _, err := r.admin.DeleteTopic(t.Context(), "anew"); err != nil {
			t.Fatal(err)
		}
		// The controller has answered; until the broker has followed it takes records still, and deletes them after.
		r.until("deleted by the broker", 30*time.Second, func() bool {
			topics, err := r.admin.ListTopics(t.Context(), "anew")
			return err == nil && errors.Is(topics["anew"].Err, kerr.UnknownTopicOrPartition)
		})
		time.Sleep(time.Second)
		r.publish(oneTopic("a"), 20, 10)
		time.Sleep(3 * time.Second)
		r.create("anew", 3, nil)
		r.drained(time.Minute)
		if got := r.tally(r.read("anew")); got != (tally{missing: 20 * before}) {
			t.Errorf("records %+v, want only those of the deleted topic missing", got)
		}
	})

	t.Run("names and null keys as Kafka wants them", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "names.${topic}", Key: "none", CreateTopics: &kafka.Create{Partitions: 1}})
		for _, topic := range []string{"a/b", "a_b", "a.b", "a b", "é", strings.Repeat("x", 300), "a//b", "$x"} {
			r.log.add("default", 0, spool.Record{Topic: topic, ClientID: "c", Payload: []byte("v")})
		}
		r.until("delivered", 30*time.Second, func() bool { return r.b.Stats()[0].Sent == 7 }) // $x is not matched by #
	})
}
