package bridge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

func produceFault(topic string, err *kerr.Error, count int) kfake.Fault {
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: err, Count: count}
}

// levels makes the topics of n lanes out of the publisher's number.
func levels(n int) func(int) string {
	return func(c int) string { return fmt.Sprintf("site/l%d/x", c%n) }
}

func TestUpstreamDownForLongLosesNothingAndKeepsMemoryFlat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := kfake.DataDir(t.TempDir())
		r := newRig(t, newMemLog(map[string]int{"default": 2}), dir)
		r.start(Config{
			Upstreams: []kafka.Config{{Name: "main", Brokers: r.brokers, Compression: "snappy", MaxBuffered: 1 << 20}},
			Routes:    []RouteConfig{{Name: "all", Topic: "telemetry", CreateTopics: &kafka.Create{Partitions: 3}}},
		})
		r.publish(oneTopic("a/b"), 20, 100)
		r.drained(time.Minute)

		r.cluster.Close()
		peak := int64(0)
		for range 60 {
			r.publish(oneTopic("a/b"), 20, 50)
			time.Sleep(10 * time.Second)
			peak = max(peak, r.b.Stats()[0].BufferedBytes)
		}
		if peak > 1<<20 {
			t.Errorf("%d bytes buffered while the upstream was away, max_buffered is 1 MiB", peak)
		}
		h := r.b.Health()[0]
		if h.State != Stuck || h.Reason == "" || !strings.Contains(h.Where, "upstream main") {
			t.Errorf("health %+v, want stuck at upstream main", h)
		}
		if n := r.b.upstreams[0].Status().ConnErrors; sum(n) > 2000 {
			t.Errorf("%v attempts to connect in 10 minutes: a busy loop", n)
		}

		r.startCluster(dir)
		r.drained(time.Minute)
		r.complete("telemetry")
		if h := r.b.Health()[0]; h.State != Idle {
			t.Errorf("health %+v, want idle", h)
		}
		r.end()
	})
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

func TestUpstreamNeverThereThenThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}))
		r.cluster.Close()
		r.publish(oneTopic("a"), 3, 1000)
		r.start(oneRoute(RouteConfig{Topic: "telemetry", CreateTopics: &kafka.Create{Partitions: 1}}))
		time.Sleep(5 * time.Minute)
		if h := r.b.Health()[0]; h.State != Stuck || h.Lag != 3000 {
			t.Errorf("health %+v, want stuck with a lag of 3000", h)
		}
		r.startCluster()
		r.drained(time.Minute)
		r.complete("telemetry")
		r.end()
	})
}

func TestStuckTopicIsDetachedAndCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2", "t.l3", "t.l4"}
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, topics...))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(5), 40, 10)
		r.drained(time.Minute)

		fault := r.cluster.Fault(produceFault("t.l3", kerr.NotEnoughReplicas, -1))
		worst := time.Duration(0)
		for range 25 {
			r.publish(levels(5), 40, 50)
			start := time.Now()
			want := 4 * 8 * r.next["c0"] // records of the healthy topics
			r.until("healthy topics delivered", time.Minute, func() bool {
				return int(r.b.Stats()[0].Sent) >= want
			})
			worst = max(worst, time.Since(start))
			time.Sleep(20 * time.Millisecond)
		}
		if worst > time.Second {
			t.Errorf("healthy topics waited %v for the stuck one", worst)
		}
		s := r.b.Stats()[0]
		if s.DetachedLanes == 0 || s.DetachedLanes > 4 { // two Kafka partitions, two spool partitions
			t.Errorf("%d lanes detached, want only those of the stuck topic", s.DetachedLanes)
		}
		r.until("health says where", time.Minute, func() bool {
			h := r.b.Health()[0]
			return h.State == Stuck && strings.Contains(h.Where, "topic t.l3 ")
		})

		fault.Remove()
		r.drained(time.Minute)
		r.complete(topics...)
		r.until("attached again and nothing stored", time.Minute, func() bool { return r.log.stored("bridge/all") == 0 })
		if s := r.b.Stats()[0]; s.DetachedLanes != 0 || s.BufferedRecords != 0 {
			t.Errorf("stats %+v, want no detached lane", s)
		}
	})
}

func TestUnauthorizedTopicIsHeldAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2"}
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(2, topics...))
		defer r.end()
		fault := r.cluster.Fault(produceFault("t.l1", kerr.TopicAuthorizationFailed, -1))
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		for range 20 {
			r.publish(levels(3), 12, 100)
			time.Sleep(100 * time.Millisecond)
		}
		r.until("the others delivered", time.Minute, func() bool { return r.b.Stats()[0].Sent == 16_000 })
		h := r.b.Health()[0]
		if h.State != Stuck || h.Reason != "topic_authorization" || !strings.Contains(h.Where, "topic t.l1 ") || h.Hint == "" {
			t.Errorf("health %+v, want stuck at t.l1 for topic_authorization", h)
		}
		if s := r.b.Stats()[0]; s.HeldLanes != 2 || s.BufferedRecords > 0 {
			t.Errorf("%d lanes held with %d records in memory, want 2 and none", s.HeldLanes, s.BufferedRecords)
		}
		probes := fault.Hits()
		time.Sleep(10 * time.Minute)
		if n := fault.Hits() - probes; n < 10 || n > 120 {
			t.Errorf("%d probes in 10 minutes, want one every 15 to 30 s for each lane", n)
		}
		fault.Remove()
		r.drained(time.Minute)
		r.complete(topics...)
	})
}

func TestMissingTopicIsHeldUntilItIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(2, "t.l0"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(2), 4, 100)
		r.until("the other delivered", time.Minute, func() bool { return r.b.Stats()[0].Sent == 200 })
		r.until("health says how to make it", time.Minute, func() bool {
			h := r.b.Health()[0]
			return h.State == Stuck && h.Reason == "topic_missing" && strings.Contains(h.Hint, "--create --topic t.l1")
		})
		// A restart keeps the position of what waits.
		r.stop()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(2), 4, 100)
		time.Sleep(30 * time.Second)
		if err := r.cluster.CreateTopic("t.l1", 3, nil); err != nil {
			t.Fatal(err)
		}
		r.drained(time.Minute)
		r.complete("t.l0", "t.l1")
	})
}

func TestPoisonHoldsItsLaneWithoutDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(4, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.publish(oneTopic("a"), 8, 100)
		r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "c0", Payload: []byte(noise(2 << 20))})
		r.publish(oneTopic("a"), 8, 100)
		r.until("held", time.Minute, func() bool { return r.b.Stats()[0].HeldLanes == 1 })
		r.until("the others delivered", time.Minute, func() bool { return r.b.Stats()[0].Sent >= 1200 })
		h := r.b.Health()[0]
		if h.State != Stuck || h.Reason != "too_large" || !strings.Contains(h.Where, "offset 800") || !strings.Contains(h.Hint, "max.message.bytes") {
			t.Errorf("health %+v, want stuck at offset 800 for too_large", h)
		}
	})
}

func TestPoisonBecomesADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(4, "telemetry"))
		defer r.end()
		cfg := oneRoute(RouteConfig{Topic: "telemetry"})
		cfg.DeadLetterStream = "dead"
		r.start(cfg)
		for range 5 {
			r.publish(oneTopic("a"), 16, 100)
			r.log.add("default", 1, spool.Record{
				Topic: "a", ClientID: "c1", Payload: []byte(noise(2 << 20)),
				Properties: &spool.Properties{User: []spool.UserProperty{{Name: "x", Value: "y"}}},
			})
		}
		r.publish(oneTopic("a"), 16, 100)
		start := time.Now()
		r.drained(time.Minute)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		r.complete("telemetry")
		dead := r.log.streams["dead"][0].records
		if len(dead) != 5 || r.b.Stats()[0].DeadLettered != 5 {
			t.Fatalf("%d dead letters, want 5", len(dead))
		}
		rec, meta, err := splitDead(&dead[0])
		if err != nil || rec.Topic != "a" || rec.Offset != 800 || fmt.Sprint(rec.Properties.User) != "[{x y}]" {
			t.Errorf("%+v, %v, want the record as it was", rec, err)
		}
		if meta.Route != "all" || meta.Reason != "too_large" || meta.KafkaTopic != "telemetry" || meta.ID != "gw1/default/1/800" || meta.Attempts != 1 {
			t.Errorf("dead letter says %+v", meta)
		}
		if h := r.b.Health()[0]; h.State != Idle {
			t.Errorf("health %+v, want idle", h)
		}
	})
}

func TestRejectedBatchesIsolateThePoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(2, "telemetry"))
		defer r.end()
		// The broker refuses every batch that holds a poisoned record. One fault for each partition: a fault fails all the
		// partitions that it selects in a request.
		for p := range int32(2) {
			r.cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{p}, Err: kerr.InvalidRecord, Count: -1,
				When: func(req kmsg.Request) bool {
					for _, rt := range req.(*kmsg.ProduceRequest).Topics {
						for _, rp := range rt.Partitions {
							if rp.Partition == p && strings.Contains(string(rp.Records), "poison") {
								return true
							}
						}
					}
					return false
				},
			})
		}
		cfg := Config{
			Upstreams:        []kafka.Config{{Name: "main", Brokers: r.brokers, Compression: "none"}},
			Routes:           []RouteConfig{{Name: "all", Topic: "telemetry"}},
			DeadLetterStream: "dead",
		}
		for range 4 {
			r.publish(oneTopic("a"), 10, 300)
			r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "c1", Payload: []byte("poison.......")})
		}
		r.publish(oneTopic("a"), 10, 300)
		start := time.Now()
		r.start(cfg)
		r.drained(time.Minute)
		t.Logf("4 poisoned among 15000 isolated in %v", time.Since(start))
		r.complete("telemetry")
		if n := len(r.log.streams["dead"][0].records); n != 4 {
			t.Errorf("%d dead letters, want 4", n)
		}
	})
}

func TestRestartResumesBehindTheAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2"}
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, topics...))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		for i := range 10 {
			var fault *kfake.FaultHandle
			if i%3 == 1 {
				fault = r.cluster.Fault(produceFault("t.l1", kerr.TopicAuthorizationFailed, -1))
			}
			r.publish(levels(3), 12, 200)
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
			r.stop()
			if fault != nil {
				fault.Remove()
			}
			r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		}
		r.drained(time.Minute)
		r.complete(topics...)
	})
}

// crash replaces the log by one with older positions, as a process finds it that was killed: records were durable.
func (r *rig) crash(before *memLog) {
	r.stop()
	for i, p := range r.log.streams["default"] {
		before.streams["default"][i].records = p.records
	}
	r.log = before
}

// After kill -9 positions are behind by what was acknowledged since they were last durable. What Kafka has is not sent again;
// a route that is told not to look sends it twice, in order, and nothing is lost.
func TestCrashDoublesNothingThatCanBeReadBack(t *testing.T) {
	f := func(after string, want func(tally) bool) {
		t.Run(after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topics := []string{"t.l0", "t.l1", "t.l2"}
				r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, topics...))
				defer r.end()
				route := oneRoute(RouteConfig{Topic: "t.${topic[1]}", AfterCrash: after})
				r.start(route)
				fault := r.cluster.Fault(produceFault("t.l1", kerr.NotEnoughReplicas, -1))
				r.publish(levels(3), 12, 2000)
				r.until("t.l1 detached, the others done", time.Minute, func() bool { return r.b.Stats()[0].Sent == 16_000 })
				time.Sleep(time.Second)
				before := r.log.clone() // what is durable
				fault.Remove()
				r.drained(time.Minute)
				r.publish(levels(3), 12, 10)
				r.drained(time.Minute)
				r.crash(before)
				r.start(route)
				r.drained(time.Minute)
				if got := r.tally(r.consume(topics...)); !want(got) {
					t.Errorf("%+v, %+v", got, r.b.Stats()[0])
				}
			})
		})
	}
	f(ReadBack, func(got tally) bool { return got == tally{} })
	f(Resend, func(got tally) bool {
		return got.missing == 0 && got.reordered == 0 && got.doubled > 0 && got.doubled <= 8000+12*10
	})
}

func TestChaosOfLeadersAndConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2", "t.l3"}
		r := newRig(t, newMemLog(map[string]int{"default": 3}), kfake.SeedTopics(3, topics...))
		defer r.end()
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		t.Logf("seed %d", seed)
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		for range 100 {
			r.publish(levels(4), 24, 20)
			switch rng.IntN(5) {
			case 0:
				r.cluster.ShufflePartitionLeaders()
			case 1: // connections die under a request
				for range 1 + rng.IntN(3) {
					r.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
						return nil, errors.New("killed"), true
					})
				}
			case 2:
				r.cluster.Fault(produceFault(topics[rng.IntN(4)], kerr.NotLeaderForPartition, 1+rng.IntN(3)))
			case 3:
				r.cluster.Fault(produceFault(topics[rng.IntN(4)], kerr.InvalidRecord, 1)) // once: a retry succeeds
			}
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		}
		r.drained(5 * time.Minute)
		r.complete(topics...)
		if s := r.b.upstreams[0].Status(); s.Torn != 0 {
			t.Errorf("%d torn records", s.Torn)
		}
	})
}

func TestPartitionGrowthKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		for i := range 100 {
			r.publish(oneTopic("a"), 20, 10)
			time.Sleep(time.Second)
			if i == 30 {
				req := kmsg.NewPtrCreatePartitionsRequest()
				rt := kmsg.NewCreatePartitionsRequestTopic()
				rt.Topic, rt.Count = "telemetry", 5
				req.Topics = append(req.Topics, rt)
				r.request(req)
			}
		}
		r.drained(time.Minute)
		used := 0
		for _, p := range r.cluster.PartitionInfos("telemetry") {
			if p.HighWatermark > 0 {
				used++
			}
		}
		if used < 4 {
			t.Errorf("%d partitions used, want the new ones too", used)
		}
		// Order across partitions of one client: what went to its old partition was acknowledged before.
		r.completeByTime("telemetry")
	})
}

func TestTopicMadeAnewIsTakenUp(t *testing.T) {
	for _, partitions := range []int32{3, 2, 6} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(3, "telemetry"))
				defer r.end()
				r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
				r.publish(oneTopic("a"), 20, 10)
				r.drained(time.Minute)
				before := r.next["c0"]
				if err := r.cluster.DeleteTopic("telemetry"); err != nil {
					t.Fatal(err)
				}
				r.publish(oneTopic("a"), 20, 10)
				time.Sleep(20 * time.Second)
				if err := r.cluster.CreateTopic("telemetry", partitions, nil); err != nil {
					t.Fatal(err)
				}
				r.publish(oneTopic("a"), 20, 10)
				r.drained(5 * time.Minute)
				got := r.tally(r.consume("telemetry"))
				if got.missing != 20*before || got.reordered != 0 {
					t.Errorf("%+v, want missing only the %d of the deleted topic", got, 20*before)
				}
			})
		})
	}
}

// Positions of one topic that were counted over different numbers of partitions cannot be used one by one.
func TestPositionsThatDisagreeStartFromTheLowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(3, "telemetry"))
		defer r.end()
		r.publish(oneTopic("a"), 10, 10)
		r.log.state["bridge/all"] = map[string][]byte{
			"0/telemetry/0": []byte("1 90 2"), "0/telemetry/1": []byte("1 50 3"), "0/telemetry/2": []byte("1 70 3"),
		}
		r.log.cursors["route/all"] = &memCursor{l: r.log, p: r.log.streams["default"], pos: []spool.Offset{95}}
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.drained(time.Minute)
		if got := r.tally(r.consume("telemetry")); got != (tally{missing: 50}) { // those below the lowest position
			t.Errorf("records %+v, want all from offset 50 on, once", got)
		}
		r.until("nothing stored", time.Minute, func() bool { return r.log.stored("bridge/all") == 0 })
	})
}

func TestDamagedPositionsAreRefused(t *testing.T) {
	f := func(key, value, want string) {
		t.Helper()
		l := newMemLog(map[string]int{"default": 1})
		l.state["bridge/all"] = map[string][]byte{key: []byte(value)}
		cfg := oneRoute(RouteConfig{Topic: "telemetry"})
		cfg.Upstreams = []kafka.Config{{Name: "main", Brokers: []string{"127.0.0.1:1"}}}
		if _, err := New(t.Context(), cfg, Options{Log: l, GatewayID: "gw"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q=%q: %v, want %q in it", key, value, err, want)
		}
	}
	f("0/t/0", "4 5 3", spool.ErrUnsupported.Error())
	f("0/t/0", "1 5", "is damaged")
	f("0", "1 5 3", "is damaged")
	f("0/t/x", "1 5 3", "invalid syntax")
	f("0/t/0", "1 -5 3", "invalid syntax")
	f("0/t/3", "1 5 3", "is damaged")
	f("0/t/0", "1 5 2000000000", "is damaged")
}

func TestSpoolReadErrorIsToldAndPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.publish(oneTopic("a"), 1, 10)
		r.log.fail = fmt.Errorf("input/output error")
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.until("health tells", time.Minute, func() bool {
			h := r.b.Health()[0]
			return h.State == Stuck && h.Reason == "spool" && h.Error == "input/output error"
		})
		r.log.mu.Lock()
		r.log.fail = nil
		r.log.mu.Unlock()
		r.drained(time.Minute)
		r.complete("telemetry")
	})
}

func TestGapIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.publish(oneTopic("a"), 1, 10)
		r.drained(time.Minute)
		r.stop()
		r.publish(oneTopic("a"), 1, 10)
		r.log.streams["default"][0].start = 15
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.drained(time.Minute)
		if got := r.b.Stats()[0].Gaps[spool.GapRetention]; got != 5 {
			t.Errorf("gap of %d offsets, want 5", got)
		}
		if got := r.tally(r.consume("telemetry")); got != (tally{missing: 5}) {
			t.Errorf("%+v, want 5 missing", got)
		}
	})
}

func TestCloseWaitsForWhatIsInTheAir(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.cluster.Close()
		slow := r.cluster.Fault(produceFault("telemetry", kerr.NotEnoughReplicas, 3)) // some retries, each after a backoff
		r.publish(oneTopic("a"), 1, 10)                                               // before the start: all in one flight
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.until("in the air", time.Minute, func() bool { return slow.Hits() > 0 })
		r.stop()
		if got := r.log.cursors["route/all"].Position(0); got != 10 {
			t.Errorf("cursor at %d after a clean stop, want 10", got)
		}
		if r.b.Close(t.Context()) != nil {
			t.Error("second Close fails")
		}
	})
}

// A lane that has little to do never is full. It must not hold the cursor: what others deliver above it would be doubled by
// a crash, and retention could not give it back.
func TestSlowLaneThatIsNotFullDoesNotHoldTheCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "t.l0", "t.l1"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		fault := r.cluster.Fault(produceFault("t.l1", kerr.NotEnoughReplicas, -1))
		r.publish(levels(2), 2, 1)
		r.publish(oneTopic("site/l0/x"), 1, 500)
		cursor := r.log.cursors["route/all"]
		r.until("the cursor passed the slow lane", 10*time.Second, func() bool { return cursor.Position(0) == 502 })
		if got := r.log.cursors["route/all/keep"].Position(0); got != 1 {
			t.Errorf("retention may go to %d, but 1 is not delivered", got)
		}
		if s := r.b.Stats()[0]; s.Lag != 501 || s.LagAge < time.Second {
			t.Errorf("lag %d, age %v: the slow lane's record is not counted", s.Lag, s.LagAge)
		}
		fault.Remove()
		r.drained(time.Minute)
		r.complete("t.l0", "t.l1")
		r.until("retention may go on", time.Minute, func() bool { return r.log.cursors["route/all/keep"].Position(0) == 502 })
	})
}

// One stuck topic costs the others no more than the wait before it is detached.
func TestHeadOfLineWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "t.l0", "t.l1"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(2), 2, 1)
		r.drained(time.Minute)
		fault := r.cluster.Fault(produceFault("t.l1", kerr.NotEnoughReplicas, -1))
		for range 4 * kafka.MaxFlightRecords {
			r.log.add("default", 0, spool.Record{Topic: "site/l1/x", ClientID: "stuck", Payload: make([]byte, 8)})
		}
		r.publish(oneTopic("site/l0/x"), 1, 1)
		start := time.Now()
		r.until("the other topic's record delivered", 10*time.Second, func() bool {
			return r.cluster.PartitionInfo("t.l0", 0).HighWatermark == 2
		})
		if d := time.Since(start); d > 250*time.Millisecond {
			t.Errorf("waited %v for the stuck topic", d)
		}
		fault.Remove()
		start = time.Now()
		r.until("attached again", 10*time.Second, func() bool { return r.b.Stats()[0].DetachedLanes == 0 && r.b.Stats()[0].Lag == 0 })
		if d := time.Since(start); d > 6*time.Second { // the producer's own backoff is up to 5 s
			t.Errorf("attached again after %v", d)
		}
	})
}
