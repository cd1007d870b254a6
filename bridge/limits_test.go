package bridge

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/spool"
)

func (r *rig) setMaxMessage(topic, bytes string) { r.setTopic(topic, "max.message.bytes", bytes) }

func (r *rig) setTopic(topic, key, value string) {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = key, &value
	res.Configs = append(res.Configs, c)
	req.Resources = append(req.Resources, res)
	r.request(req)
}

// A producer that is told to forget a topic begins again with sequence number 0 under the same producer ID, and the broker
// takes what it sends for a repetition: acknowledged and not written. Nothing may make ours forget a topic that still is.
func TestChangedLimitLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		for _, limit := range []string{"100000", "200000", "50000", "2000000", "1000"} {
			r.publish(oneTopic("a"), 1, 1)
			r.drained(time.Minute)
			r.setMaxMessage("telemetry", limit)
			time.Sleep(2 * time.Minute)
		}
		r.publish(oneTopic("a"), 1, 100)
		r.drained(time.Minute)
		r.complete("telemetry")
	})
}

// deadReasons are the reasons of the dead letters, in order.
func (r *rig) deadReasons() (out []string) {
	r.t.Helper()
	page, err := r.b.DeadLetters().List(r.t.Context(), DeadLetterQuery{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range page.Letters {
		out = append(out, l.Reason)
	}
	return out
}

// The broker of these tests takes everything: what is kept from it was known before it was sent.
func TestWhatTheTopicRefusesIsKnownBeforeItIsSent(t *testing.T) {
	hour := time.Hour.Nanoseconds()
	for _, c := range []struct {
		name, key, config, value string
		bad                      func(now int64) spool.Record
		reason                   string
	}{
		{"too old", KeyClientID, "message.timestamp.before.max.ms", "3600000", func(now int64) spool.Record {
			return spool.Record{Topic: "a", ClientID: "c0", Payload: []byte("12345678"), ReceivedAt: now - 2*hour}
		}, "invalid_timestamp"},
		{"of the future", KeyClientID, "message.timestamp.after.max.ms", "3600000", func(now int64) spool.Record {
			return spool.Record{Topic: "a", ClientID: "c0", Payload: []byte("12345678"), ReceivedAt: now + 2*hour}
		}, "invalid_timestamp"},
		{"either, in older clusters", KeyClientID, "message.timestamp.difference.max.ms", "3600000", func(now int64) spool.Record {
			return spool.Record{Topic: "a", ClientID: "c0", Payload: []byte("12345678"), ReceivedAt: now - 2*hour}
		}, "invalid_timestamp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(1, "t"))
				defer r.end()
				r.setTopic("t", c.config, c.value)
				cfg := oneRoute(RouteConfig{Topic: "t", Key: c.key})
				cfg.DeadLetterStream = "dead"
				r.start(cfg)
				for range 3 {
					r.publish(oneTopic("a"), 2, 50)
					r.log.add("default", 0, c.bad(time.Now().UnixNano()))
				}
				r.publish(oneTopic("a"), 2, 50)
				r.drained(10 * time.Second)
				r.complete("t")
				if got := r.deadReasons(); !slices.Equal(got, []string{c.reason, c.reason, c.reason}) {
					t.Errorf("dead letters %v, want three of %s", got, c.reason)
				}
				// The topic's own time makes the record's one of no account, and is learnt without a restart.
				r.setTopic("t", "message.timestamp.type", "LogAppendTime")
				time.Sleep(2 * time.Minute)
				r.log.add("default", 0, c.bad(time.Now().UnixNano()))
				r.drained(10 * time.Second)
				if got := len(r.deadReasons()); got != 3 {
					t.Errorf("%d dead letters, want none more", got)
				}
			})
		})
	}
}

func TestRecordWithoutKeyForACompactedTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(2, "t.plain", "t.compacted"))
		defer r.end()
		r.setTopic("t.compacted", "cleanup.policy", "compact,delete")
		cfg := oneRoute(RouteConfig{Topic: "t.${topic}", Key: KeyNone})
		cfg.DeadLetterStream = "dead"
		r.start(cfg)
		for i := range 100 {
			for _, topic := range []string{"plain", "compacted"} {
				r.log.add("default", 0, spool.Record{Topic: topic, ClientID: "c", Payload: []byte{byte(i)}})
			}
		}
		r.drained(10 * time.Second)
		if s := r.b.Stats()[0]; s.Sent != 100 || s.DeadLettered != 100 || s.Retried != 0 {
			t.Errorf("%d sent, %d dead letters, %d retried, want 100, 100 and none", s.Sent, s.DeadLettered, s.Retried)
		}
		if got := strings.Join(r.deadReasons()[:2], " "); got != "null_key null_key" {
			t.Errorf("reasons %s", got)
		}
	})
}

// The producer retries by itself for ever when replicas are missing, and says nothing. The metadata tell.
func TestMissingReplicasAreToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "t.l0", "t.l1"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(2), 4, 50)
		r.drained(time.Minute)
		r.setTopic("t.l1", "min.insync.replicas", "4") // the cluster has three brokers
		fault := r.cluster.Fault(produceFault("t.l1", kerr.NotEnoughReplicas, -1))
		r.publish(levels(2), 4, 50)
		r.until("the lane says why", 10*time.Second, func() bool {
			info, err := r.b.Route("all")
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range info.LaneList {
				if l.Lane == "t.l1/0" && l.Reason == "min_isr" && l.Hint != "" {
					return true
				}
			}
			return false
		})
		r.until("the route says where, since when and why", time.Minute, func() bool {
			h := r.b.Health()[0]
			return h.State == Stuck && h.Reason == "min_isr" && strings.Contains(h.Where, "t.l1") && time.Since(h.Since) >= 30*time.Second
		})
		fault.Remove()
		r.drained(time.Minute)
		r.complete("t.l0", "t.l1")
	})
}
