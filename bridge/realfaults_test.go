package bridge

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
	"github.com/forebay-gateway/forebay/spool"
)

// What an administrator of the cluster has set, and changes: rights, quotas, and what topics take.
func TestKafkaAdministrator(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{Set: map[string]string{
		"authorizer.class.name":                "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found":       "true", // and so are brokers and controllers, which are ANONYMOUS too
		"quota.window.num":                     "3",
		"quota.window.size.seconds":            "1",
		"log.message.timestamp.type":           "CreateTime",
		"transactional.id.expiration.ms":       "60000",
		"controller.quota.window.size.seconds": "1",
	}})

	t.Run("no right to write holds only that topic", func(t *testing.T) {
		for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
			t.Run(delivery, func(t *testing.T) {
				r := newRealRig(t, c, RouteConfig{Topic: delivery + ".${topic[1]}", Delivery: delivery})
				topics := []string{delivery + ".l0", delivery + ".l1"}
				r.create(topics[0], 2, nil)
				r.create(topics[1], 2, nil)
				r.publish(levels(2), 8, 50)
				r.drained(30 * time.Second)
				allow := r.deny(kadm.NewACLs().Topics(topics[1]), kadm.OpWrite)
				r.publish(levels(2), 8, 50)
				r.until("held with the reason, the other one delivered", 30*time.Second, func() bool {
					h := r.b.Health()[0]
					return h.State == Stuck && h.Reason == "topic_authorization" && r.b.Stats()[0].Sent == 8*50+4*50
				})
				allow()
				r.drained(40 * time.Second) // it probes
				if got := r.tally(r.read(topics...)); got != (tally{}) {
					t.Errorf("records %+v, want every one once and in order", got)
				}
			})
		}
	})

	t.Run("no right to the transactional ID", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "txn", Delivery: ExactlyOnce, CreateTopics: &kafka.Create{Partitions: 2}})
		r.publish(oneTopic("a"), 8, 50)
		r.drained(30 * time.Second)
		allow := r.deny(kadm.NewACLs().TransactionalIDs("forebay/gw1/").ResourcePatternType(kadm.ACLPatternPrefixed), kadm.OpWrite)
		r.publish(oneTopic("a"), 8, 50)
		r.until("stuck with the reason", 60*time.Second, func() bool {
			h := r.b.Health()[0]
			return h.State == Stuck && h.Reason == "transaction_authorization"
		})
		allow()
		r.drained(60 * time.Second)
		if got := r.tally(r.read("txn")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
	})

	t.Run("a quota slows down and shows", func(t *testing.T) {
		for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
			t.Run(delivery, func(t *testing.T) {
				r := newRealRig(t, c, RouteConfig{Topic: "quota." + delivery, Delivery: delivery, CreateTopics: &kafka.Create{Partitions: 2}})
				r.quota("producer_byte_rate", 200_000)
				for i := range 40 {
					r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "big", Payload: []byte(noiseOf(byte(i), 20_000))})
				}
				r.until("throttled", 30*time.Second, func() bool { return r.b.upstreams[0].Status().Throttled > 100*time.Millisecond })
				r.until("delivered", time.Minute, func() bool { return r.b.Stats()[0].Sent == 40 })
				if h := r.b.Health()[0]; h.State == Stuck {
					t.Errorf("health %+v, want slow and not stuck", h)
				}
			})
		}
	})

	t.Run("the broker refuses a time that the gateway takes for good enough", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "time"})
		second := "1000"
		r.create("time", 2, map[string]*string{"message.timestamp.before.max.ms": &second})
		for range 3 {
			r.publish(oneTopic("a"), 4, 50)
			r.log.add("default", 1, spool.Record{Topic: "a", ClientID: "c1", Payload: []byte("late"), ReceivedAt: time.Now().Add(-30 * time.Second).UnixNano()})
		}
		r.drained(30 * time.Second)
		r.publish(oneTopic("a"), 4, 50)
		r.drained(30 * time.Second)
		if got := r.deadReasons(); !slices.Equal(got, []string{"invalid_timestamp", "invalid_timestamp", "invalid_timestamp"}) {
			t.Errorf("dead letters %v, want the three that are late", got)
		}
		if got := r.tally(r.read("time")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
	})

	t.Run("without a key for a compacted topic", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "compacted.${topic}", Key: KeyNone})
		compact := "compact"
		r.create("compacted.yes", 2, map[string]*string{"cleanup.policy": &compact})
		r.create("compacted.no", 2, nil)
		for range 20 {
			r.log.add("default", 0, spool.Record{Topic: "yes", ClientID: "c", Payload: []byte("v")})
			r.log.add("default", 0, spool.Record{Topic: "no", ClientID: "c", Payload: []byte("v")})
		}
		r.drained(30 * time.Second)
		if s := r.b.Stats()[0]; s.Sent != 20 || s.DeadLettered != 20 {
			t.Errorf("%d sent, %d dead letters, want 20 and 20", s.Sent, s.DeadLettered)
		}
		// Learnt too late: the broker says it.
		r.alter("compacted.no", "cleanup.policy", "compact")
		for range 3 {
			r.log.add("default", 0, spool.Record{Topic: "no", ClientID: "c", Payload: []byte("v")})
		}
		r.drained(30 * time.Second)
		if got := r.deadReasons()[20:]; !slices.Equal(got, []string{"invalid_record", "invalid_record", "invalid_record"}) {
			t.Errorf("dead letters %v, want three that the broker refused", got)
		}
	})
}

// deny takes a right away from the gateway, until the returned function gives it back.
func (r *realRig) deny(on *kadm.ACLBuilder, op kadm.ACLOperation) (allow func()) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	acl := on.Deny("User:ANONYMOUS").DenyHosts().Operations(op)
	if err := acl.ValidateCreate(); err != nil {
		r.t.Fatal(err)
	}
	done, err := r.admin.CreateACLs(ctx, acl)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range done {
		if d.Err != nil {
			r.t.Fatal(d.Err)
		}
	}
	return func() {
		r.t.Helper()
		ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
		defer cancel()
		if _, err := r.admin.DeleteACLs(ctx, acl); err != nil {
			r.t.Fatal(err)
		}
	}
}

// quota gives every client of the cluster the same quota, until the test ends.
func (r *realRig) quota(key string, value float64) {
	r.t.Helper()
	set := func(remove bool) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		done, err := r.admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
			Entity: kadm.ClientQuotaEntity{{Type: "client-id"}}, // nil is the default
			Ops:    []kadm.AlterClientQuotaOp{{Key: key, Value: value, Remove: remove}},
		}})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, d := range done {
			if d.Err != nil {
				r.t.Fatal(d.Err)
			}
		}
	}
	set(false)
	r.t.Cleanup(func() { set(true) })
}

// alter changes a topic's configuration.
func (r *realRig) alter(topic, key, value string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	done, err := r.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
	if err != nil || done[0].Err != nil {
		r.t.Fatal(err, done)
	}
	time.Sleep(time.Second) // until the broker has it
}

// alterBrokers changes a setting of all brokers.
func (r *realRig) alterBrokers(key, value string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	done, err := r.admin.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}})
	if err != nil || done[0].Err != nil {
		r.t.Fatal(err, done)
	}
}
