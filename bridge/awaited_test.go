package bridge

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// waiter is an Awaiter that notes what it is told, and when.
type waiter struct {
	mu     sync.Mutex
	told   bool
	twice  bool
	reason string
	at     time.Time
	gaveUp bool

	patient bool // does not give up for a doubt
	doubt   string
}

func (w *waiter) Settled(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.twice = w.twice || w.told
	w.told, w.reason, w.at = true, reason, time.Now()
}

// Doubt gives up, as a publisher does that can be told.
func (w *waiter) Doubt(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.patient {
		w.doubt = reason
		return
	}
	if !w.told {
		w.told, w.reason, w.at, w.gaveUp = true, reason, time.Now(), true
	}
}

func (w *waiter) Over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gaveUp
}

func (w *waiter) get() (reason string, told bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reason, w.told
}

const patience = 15 * time.Second

func awaitAll() map[string]Await { return map[string]Await{"default": {Timeout: patience}} }

// wait publishes a record and waits for it.
func (r *rig) wait(topic, client string, partition int) *waiter {
	r.t.Helper()
	r.log.add("default", partition, spool.Record{Topic: topic, ClientID: client, QoS: 1, Payload: []byte(strconv.Itoa(r.next[client]))})
	r.next[client]++
	_, end := r.log.Bounds("default", partition)
	w := &waiter{}
	r.b.Await("default", partition, end-1, w)
	return w
}

// A doubt is not the end: who waits on is told when the record arrives.
func TestDoubtIsNotTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.told(r.wait("a", "c", 0), "", time.Minute)
		if err := r.b.Pause(t.Context(), "all", ""); err != nil {
			t.Fatal(err)
		}
		r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "c", QoS: 1})
		w := &waiter{patient: true}
		r.b.Await("default", 0, 1, w)
		r.silent(w, time.Minute)
		w.mu.Lock()
		if w.doubt != string(Paused) {
			t.Errorf("doubt %q, want paused", w.doubt)
		}
		w.mu.Unlock()
		if err := r.b.Resume(t.Context(), "all", ""); err != nil {
			t.Fatal(err)
		}
		r.told(w, "", time.Minute)
	})
}

// told fails the test unless w is told in time.
func (r *rig) told(w *waiter, want string, limit time.Duration) {
	r.t.Helper()
	r.until("told "+want, limit, func() bool { _, told := w.get(); return told })
	if got, _ := w.get(); got != want {
		r.t.Errorf("told %q, want %q", got, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.twice {
		r.t.Error("told twice")
	}
}

func (r *rig) silent(w *waiter, d time.Duration) {
	r.t.Helper()
	time.Sleep(d)
	if reason, told := w.get(); told {
		r.t.Errorf("told %q after %v, want nothing", reason, d)
	}
}

// stored is how many records a topic has.
func (r *rig) stored(topic string) (n int64) {
	for _, p := range r.cluster.PartitionInfos(topic) {
		n += p.HighWatermark
	}
	return n
}

func awaiting(t *testing.T, await map[string]Await, cfg Config, opts ...kfake.Opt) *rig {
	r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), opts...)
	r.await = await
	r.start(cfg)
	return r
}

func TestAwaitIsToldWhenKafkaHasTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry", Filters: []string{"a/#"}}), kfake.SeedTopics(3, "telemetry"))
		defer r.end()
		var list []*waiter
		for i := range 500 {
			list = append(list, r.wait("a/b", "c"+strconv.Itoa(i%7), i%2))
		}
		for _, w := range list {
			r.told(w, "", time.Minute)
		}
		if n := r.stored("telemetry"); n < 500 {
			t.Errorf("all told, and kafka has %d records of 500", n)
		}
		r.told(r.wait("other", "x", 0), Unrouted, time.Minute)
		// What the tail has left behind long ago is known too.
		late := &waiter{}
		r.b.Await("default", 0, 3, late)
		r.told(late, "", time.Minute)
	})
}

func TestAwaitIsNotToldBeforeKafkaHasTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.told(r.wait("a", "c", 0), "", time.Minute)
		release := make(chan struct{})
		r.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			<-release
			return nil, nil, false
		})
		first, second := r.wait("a", "c", 0), r.wait("a", "c", 0)
		r.silent(first, 2*time.Second)
		r.silent(second, time.Second)
		close(release)
		r.told(first, "", time.Minute)
		r.told(second, "", time.Minute)
	})
}

func TestAwaitWaitsForAllRoutesOrTheNamedOnes(t *testing.T) {
	f := func(routes []string, want string) {
		synctest.Test(t, func(t *testing.T) {
			cfg := Config{Routes: []RouteConfig{{Name: "one", Topic: "one"}, {Name: "two", Topic: "two", Filters: []string{"two/#"}}}}
			r := awaiting(t, map[string]Await{"default": {Routes: routes, Timeout: patience}}, cfg, kfake.SeedTopics(1, "one", "two"))
			defer r.end()
			if err := r.b.Pause(t.Context(), "two", ""); err != nil {
				t.Fatal(err)
			}
			r.told(r.wait("two/x", "c", 0), want, time.Minute)
		})
	}
	f(nil, string(Paused))
	f([]string{"one"}, "")
	f([]string{"two"}, string(Paused))
}

func TestHeldLaneIsToldOfAtOnceAndHoldsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "t.${topic[1]}"}), kfake.SeedTopics(1, "t.good"))
		defer r.end()
		r.told(r.wait("a/good", "c", 0), "", time.Minute)
		r.told(r.wait("a/bad", "c", 0), Held, patience+time.Second) // there is no such topic, and it is not made
		for range 20 {
			began := time.Now()
			r.told(r.wait("a/bad", "c", 0), Held, time.Minute)
			r.told(r.wait("a/good", "c", 0), "", time.Minute)
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("took %v: a burst waits for each other", d)
			}
		}
	})
}

func TestPausedRouteAndLaneAreToldOfAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.told(r.wait("a", "c", 0), "", time.Minute)
		for _, lane := range []string{"telemetry/0", ""} {
			if err := r.b.Pause(t.Context(), "all", lane); err != nil {
				t.Fatal(err)
			}
			w := r.wait("a", "c", 0)
			r.told(w, string(Paused), time.Second)
			if away := r.b.Away("default", 0); (away == string(Paused)) != (lane == "") {
				t.Errorf("lane %q paused: away %q", lane, away)
			}
			if err := r.b.Resume(t.Context(), "all", lane); err != nil {
				t.Fatal(err)
			}
			r.drained(time.Minute)
			r.told(r.wait("a", "c", 0), "", time.Minute)
		}
	})
}

// While an upstream is away those who come in the first seconds wait: it may be back in time. Once it has been away for as long as
// they may wait, nobody waits any more.
func TestDeadUpstreamIsToldOfAtOnceAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.stop()
		r.told(r.wait("a", "c", 0), "", time.Minute)
		r.cluster.Close()
		early := r.wait("a", "c", 0)
		r.silent(early, patience/2)
		r.until("away", time.Minute, func() bool { return r.b.Away("default", 0) == Unreachable })
		for range 100 {
			w, began := r.wait("a", "c", 1), time.Now()
			r.until("told", time.Minute, func() bool { _, told := w.get(); return told })
			w.mu.Lock()
			d := w.at.Sub(began)
			w.mu.Unlock()
			if d > time.Second {
				t.Fatalf("told after %v, want at once", d)
			}
		}
		r.startCluster(kfake.SeedTopics(1, "telemetry"))
		defer r.cluster.Close()
		r.drained(time.Minute)
		if away := r.b.Away("default", 0); away != "" {
			t.Errorf("away %q", away)
		}
		r.told(r.wait("a", "c", 0), "", time.Minute)
	})
}

func TestThoseWhoGaveUpAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		await := map[string]Await{"default": {Timeout: time.Hour}}
		r := awaiting(t, await, oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.stop()
		r.told(r.wait("a", "c", 0), "", time.Minute)
		r.cluster.Close()
		for range 1000 {
			w := r.wait("a", "c", 0)
			w.mu.Lock()
			w.gaveUp = true
			w.mu.Unlock()
		}
		time.Sleep(time.Second)
		w := r.b.watched["default"][0][0]
		f := w.owner.Load()
		f.mu.Lock()
		defer f.mu.Unlock()
		n := len(w.ahead) + len(w.slow)
		for _, l := range f.lanes {
			n += len(l.awaited)
		}
		if n > 0 {
			t.Errorf("%d of those who gave up are kept", n)
		}
	})
}

func TestRecordThatIsAheadOfItsTimeIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Ten records in a second, and 1000 wait.
		r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.await = awaitAll()
		r.publish(oneTopic("a"), 1, 1000)
		r.start(oneRoute(RouteConfig{Topic: "telemetry", RecordsPerSecond: 10}))
		time.Sleep(patience + time.Second)
		r.told(r.wait("a", "c0", 0), Behind, time.Second)
		r.drained(3 * time.Minute)
		r.told(r.wait("a", "c0", 0), "", time.Minute)
	})
}

func TestDeadLettersAndExpiredRecordsAreDealtWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := oneRoute(RouteConfig{Topic: "telemetry", Partition: "${json.p}"})
		cfg.DeadLetterStream = "dead"
		r := awaiting(t, awaitAll(), cfg, kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.told(r.wait("a", "c", 0), "", time.Minute) // its payload has no p
		if n := len(r.log.streams["dead"][0].records); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
		r.log.add("default", 1, spool.Record{Topic: "a", ClientID: "c", ExpiresAt: 1})
		w := &waiter{}
		r.b.Await("default", 1, 0, w)
		r.told(w, "", time.Minute)
	})
}

func TestAwaitEarlierWaitsForWhatAnEarlierRunHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.await = awaitAll()
		r.publish(oneTopic("a"), 4, 100)
		release := make(chan struct{})
		r.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			<-release
			return nil, nil, false
		})
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		w := &waiter{}
		r.b.AwaitEarlier("default", w)
		r.silent(w, 2*time.Second)
		close(release)
		r.told(w, "", time.Minute)
		if n := r.stored("telemetry"); n != 400 {
			t.Errorf("told, and kafka has %d of 400", n)
		}
	})
}

func TestAwaitOverATopicThatIsMadeAndGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "t.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 3}}))
		defer r.end()
		var list []*waiter
		for i := range 300 {
			list = append(list, r.wait("a/"+strconv.Itoa(i%10), "c"+strconv.Itoa(i%5), i%2))
		}
		for _, w := range list {
			r.told(w, "", time.Minute)
		}
	})
}

// With exactly_once the record has to be in a transaction that is committed.
func TestAwaitOfTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry", Delivery: ExactlyOnce}), kfake.SeedTopics(3, "telemetry"))
		defer r.end()
		for i := range 50 {
			r.told(r.wait("a", "c"+strconv.Itoa(i), i%2), "", time.Minute)
			if n := r.stored("telemetry"); n < 2*int64(i+1) { // each with the mark of its commit
				t.Fatalf("told of %d records, and kafka has %d records and marks", i+1, n)
			}
		}
	})
}

// The tail's memory of lanes is a ring; whoever comes later than it reaches waits for all lanes, and not for ever.
func TestPlacedRecordsWrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.publish(oneTopic("a"), 2, 3*placedRecords)
		r.drained(time.Minute)
		for _, at := range []spool.Offset{0, 1, placedRecords, 2*placedRecords - 1, 2 * placedRecords, 3*placedRecords - 1} {
			w := &waiter{}
			r.b.Await("default", 0, at, w)
			r.told(w, "", time.Second)
		}
		r.told(r.wait("a", "c0", 0), "", time.Minute)
	})
}

// When a route's records are carried by another feeder from now on, those who wait for the first wait for the next.
func TestThoseWhoWaitGoWithTheirRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := awaiting(t, awaitAll(), oneRoute(RouteConfig{Topic: "telemetry"}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		if err := r.b.Pause(t.Context(), "all", "telemetry/0"); err != nil {
			t.Fatal(err)
		}
		var list []*waiter
		for at := range spool.Offset(5) {
			r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "c", QoS: 1})
			list = append(list, &waiter{patient: true})
			r.b.Await("default", 0, at, list[at])
		}
		r.silent(list[0], time.Second)
		w := r.b.watched["default"][0][0]
		old := w.owner.Load()
		next := newFeeder(r.b, old.r, old.up, 0, nil)
		w.mu.Lock()
		n := len(w.fresh)
		for i, ticket := range w.fresh {
			if ticket.at != spool.Offset(i) {
				t.Errorf("%d. waits for %d", i, ticket.at)
			}
		}
		w.mu.Unlock()
		old.mu.Lock()
		if n != 5 || old.watch != nil || next.watch != w || w.owner.Load() != next {
			t.Errorf("%d wait with the next feeder, want 5", n)
		}
		old.mu.Unlock()
	})
}
