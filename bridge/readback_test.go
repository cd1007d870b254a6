package bridge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/spool"
)

// Crashes at random moments, with topics that are stuck, without rights, and records that Kafka refuses: whatever was durable
// then, every record is in Kafka once and in order.
func TestCrashesAtAnyMomentDoubleNothing(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				topics := []string{"t.l0", "t.l1", "t.l2"}
				r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(3, topics...))
				defer r.end()
				cfg := oneRoute(RouteConfig{Topic: "t.${topic[1]}"})
				cfg.DeadLetterStream = "dead"
				ms := func(n int) { time.Sleep(time.Duration(rnd.IntN(n*1000)) * time.Microsecond) }
				found := uint64(0)
				for range 12 {
					r.start(cfg)
					var fault *kfake.FaultHandle
					switch rnd.IntN(3) {
					case 0:
						fault = r.cluster.Fault(produceFault(topics[rnd.IntN(3)], kerr.NotEnoughReplicas, -1))
					case 1:
						fault = r.cluster.Fault(produceFault(topics[rnd.IntN(3)], kerr.TopicAuthorizationFailed, -1))
					}
					for range 5 {
						r.publish(levels(3), 12, rnd.IntN(200))
						if rnd.IntN(4) == 0 {
							r.log.add("default", 1, spool.Record{Topic: "site/l1/x", ClientID: "c1", Payload: []byte(noise(1_200_000))})
						}
						ms(600)
					}
					before := r.log.clone()
					r.publish(levels(3), 12, rnd.IntN(100))
					ms(400)
					if fault != nil {
						fault.Remove()
					}
					found += r.b.Stats()[0].Found
					r.crash(before)
					if rnd.IntN(3) == 0 {
						time.Sleep(time.Hour) // nobody was there
					}
				}
				r.start(cfg)
				r.drained(5 * time.Minute)
				found += r.b.Stats()[0].Found
				if got := r.tally(r.consume(topics...)); got != (tally{}) {
					t.Errorf("records %+v, want every one once and in order", got)
				}
				if found == 0 {
					t.Error("nothing was found in kafka: the crashes cost nothing, and the test shows nothing")
				}
				t.Logf("%d records published, %d found in kafka after crashes", len(r.next)*r.next["c0"], found)
			})
		})
	}
}

// What was found in Kafka, and not met again before the next crash, is found by the run after that too: a route with a rate takes its time to
// meet it.
func TestCrashWhileWhatWasFoundIsMetDoublesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, "t"))
		defer r.end()
		fast, slow := oneRoute(RouteConfig{Topic: "t"}), oneRoute(RouteConfig{Topic: "t", Rate: 8 << 10})
		r.start(fast)
		r.publish(levels(1), 12, 10)
		r.drained(time.Minute)
		r.publish(levels(1), 12, 400)
		before := r.log.clone()
		r.drained(time.Minute)
		r.crash(before)
		for range 3 {
			r.start(slow)
			r.until("something is found", time.Minute, func() bool { return r.b.Stats()[0].Found > 0 })
			r.publish(levels(1), 12, 1)
			time.Sleep(2 * time.Second)
			left := r.b.Stats()[0].Lag
			r.crash(r.log.clone())
			if left < 500 {
				t.Fatalf("only %d records are left to be met", left)
			}
		}
		r.start(fast)
		r.drained(time.Minute)
		r.complete("t")
	})
}

// A partition that may not be read: nothing is lost, some comes twice, and that is said.
func TestReadingBackWithoutTheRightIsSaid(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets} {
		t.Run(key.Name(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(2, "telemetry"))
				defer r.end()
				r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
				r.publish(oneTopic("a"), 8, 10)
				time.Sleep(time.Second)
				before := r.log.clone()
				r.publish(oneTopic("a"), 8, 10)
				r.drained(time.Minute)
				r.crash(before)
				fault := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: kerr.TopicAuthorizationFailed, Count: -1})
				r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
				r.drained(time.Minute)
				s, h := r.b.Stats()[0], r.b.Health()[0]
				if s.ReadBack["refused"] != 2 || s.ReadBack["done"] != 0 || !strings.Contains(h.Warning, "ACL READ") || h.State != Idle {
					t.Errorf("stats %+v, health %+v", s, h)
				}
				fault.Remove()
				if got := r.tally(r.consume("telemetry")); got != (tally{doubled: 80}) {
					t.Errorf("records %+v, want 80 doubled", got)
				}
			})
		})
	}
}

// A clean stop leaves nothing to be read back.
func TestCleanStopNeedsNoReadingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, "telemetry"))
		defer r.end()
		for range 3 {
			r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
			r.publish(oneTopic("a"), 8, 100)
			time.Sleep(time.Millisecond)
			r.stop()
			if n := r.log.stored(runningSpace); n != 0 {
				t.Errorf("%d routes are said to run", n)
			}
		}
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.drained(time.Minute)
		if s := r.b.Stats()[0]; s.ReadBack["done"] != 0 {
			t.Errorf("%+v", s)
		}
		r.complete("telemetry")
	})
}

// deafConn never hears what a broker answers once it is told so.
type deafConn struct {
	net.Conn
	deaf func() bool
	gone chan struct{}
	once sync.Once
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf() {
		<-c.gone
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// A producer is replaced while a broker has written a flight whose acknowledgement never came.
func TestReplacedProducerDoublesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "t.l0", "t.l1"))
		defer r.end()
		if err := r.cluster.MoveTopicPartition("t.l0", 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := r.cluster.MoveTopicPartition("t.l1", 0, 1); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		deaf := false
		isDeaf := func() bool { mu.Lock(); defer mu.Unlock(); return deaf }
		r.dial = func(ctx context.Context, network, host string) (net.Conn, error) {
			c, err := r.net.DialContext(ctx, network, host)
			if err == nil && strings.HasSuffix(host, ":9001") {
				c = &deafConn{Conn: c, deaf: isDeaf, gone: make(chan struct{})}
			}
			return c, err
		}
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(2), 4, 100)
		r.drained(time.Minute)
		mu.Lock()
		deaf = true
		mu.Unlock()
		before := r.cluster.PartitionInfos("t.l0")[0].HighWatermark
		r.publish(func(int) string { return "site/l0/x" }, 4, 100)
		r.until("written and not acknowledged", time.Minute, func() bool {
			return r.cluster.PartitionInfos("t.l0")[0].HighWatermark > before
		})
		r.cluster.Fault(produceFault("t.l1", kerr.ProducerFenced, 1))
		r.publish(func(int) string { return "site/l1/x" }, 4, 100)
		r.until("producer replaced", time.Minute, func() bool { return r.b.upstreams[0].Status().Rebuilds == 1 })
		mu.Lock()
		deaf = false
		mu.Unlock()
		r.drained(5 * time.Minute)
		s := r.b.Stats()[0]
		if got := r.tally(r.consume("t.l0", "t.l1")); got.missing != 0 || got.doubled != 0 {
			t.Errorf("records %+v, want every one once; %+v", got, s)
		}
		if s.Found == 0 {
			t.Errorf("nothing was found: the test shows nothing; %+v", s)
		}
	})
}

// A key that means other lanes than before: positions of the old ones say nothing, and nothing is left out.
func TestChangedKeyLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(3, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		if err := r.b.Pause(t.Context(), "all", "telemetry/1"); err != nil {
			t.Fatal(err)
		}
		r.publish(func(c int) string { return fmt.Sprint("x", c) }, 12, 100)
		time.Sleep(time.Minute)
		r.stop()
		r.start(oneRoute(RouteConfig{Topic: "telemetry", Key: "topic"}))
		if err := r.b.Resume(t.Context(), "all", "telemetry/1"); err != nil {
			t.Fatal(err)
		}
		r.drained(time.Minute)
		got := make(map[string]map[string]bool)
		for _, rec := range r.consume("telemetry") {
			h := headers(rec)
			if got[h["mqtt.client_id"]] == nil {
				got[h["mqtt.client_id"]] = make(map[string]bool)
			}
			got[h["mqtt.client_id"]][string(rec.Value)] = true
		}
		for client, n := range r.next {
			if len(got[client]) != n {
				t.Errorf("%s: %d of %d records", client, len(got[client]), n)
			}
		}
	})
}

// The lanes of the old key are gone with the first save of the new one. A restart before the tail has been where they were must still
// go there.
func TestChangedKeyLosesNothingThroughAnotherRestart(t *testing.T) {
	for _, again := range []string{"topic", "client_id"} { // what the key is at the end
		t.Run(again, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(3, "telemetry"))
				defer r.end()
				r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
				if err := r.b.Pause(t.Context(), "all", "telemetry/1"); err != nil {
					t.Fatal(err)
				}
				r.publish(func(c int) string { return fmt.Sprint("x", c) }, 12, 100)
				time.Sleep(time.Minute)
				if err := errors.Join(r.b.Pause(t.Context(), "all", ""), r.b.Resume(t.Context(), "all", "telemetry/1")); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					r.stop()
					r.start(oneRoute(RouteConfig{Topic: "telemetry", Key: "topic"}))
					time.Sleep(time.Minute) // positions are stored
				}
				r.stop()
				r.start(oneRoute(RouteConfig{Topic: "telemetry", Key: again}))
				if err := r.b.Resume(t.Context(), "all", ""); err != nil {
					t.Fatal(err)
				}
				r.drained(time.Minute)
				got := make(map[string]bool)
				for _, rec := range r.consume("telemetry") {
					got[headers(rec)["mqtt.client_id"]+string(rec.Value)] = true
				}
				want := 0
				for _, n := range r.next {
					want += n
				}
				if len(got) != want {
					t.Errorf("%d of %d records", len(got), want)
				}
				time.Sleep(time.Minute)
				if err := r.log.Load(space("all"), func(key string, value []byte) error {
					if strings.HasSuffix(key, "/"+rewindName) {
						t.Errorf("%s = %s stays", key, value)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
