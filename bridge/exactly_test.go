package bridge

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/spool"
)

func exactRoute() Config {
	cfg := oneRoute(RouteConfig{Topic: "t.${topic[1]}", Delivery: ExactlyOnce})
	cfg.DeadLetterStream = "dead"
	return cfg
}

// committed fails the test unless every record is committed once and in order.
func (r *rig) committed(topics ...string) {
	r.t.Helper()
	if got := r.tally(r.consumeCommitted(topics...)); got != (tally{}) {
		r.t.Errorf("records %+v, want every one once and in order", got)
	}
}

func TestExactlyOnceDeliversInTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2"}
		r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(2, topics...))
		defer r.end()
		for range 3 {
			r.start(exactRoute())
			r.publish(levels(3), 12, 500)
			r.drained(time.Minute)
			r.stop()
		}
		r.start(exactRoute())
		r.committed(topics...)
	})
}

// A topic that is stuck, and one without rights, hold no other.
func TestExactlyOnceStuckTopicHoldsNoOther(t *testing.T) {
	for _, err := range []*kerr.Error{kerr.NotEnoughReplicas, kerr.TopicAuthorizationFailed} {
		t.Run(err.Message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topics := []string{"t.l0", "t.l1", "t.l2"}
				r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(2, topics...))
				defer r.end()
				r.start(exactRoute())
				fault := r.cluster.Fault(produceFault("t.l1", err, -1))
				start := time.Now()
				r.publish(levels(3), 12, 500)
				r.until("the others delivered", 20*time.Second, func() bool { return r.b.Stats()[0].Sent == 4000 })
				t.Logf("4000 records of healthy topics in %v", time.Since(start))
				time.Sleep(10 * time.Second)
				fault.Remove()
				r.drained(2 * time.Minute)
				r.committed(topics...)
			})
		})
	}
}

func TestExactlyOnceIsolatesPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2"}
		r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(2, topics...))
		defer r.end()
		r.start(exactRoute())
		for range 3 {
			r.publish(levels(3), 12, 200)
			r.log.add("default", 1, spool.Record{Topic: "site/l1/x", ClientID: "c1", Payload: []byte(noise(1_200_000))})
		}
		r.publish(levels(3), 12, 200)
		r.drained(2 * time.Minute)
		r.committed(topics...)
		if n := len(r.log.streams["dead"][0].records); n != 3 {
			t.Errorf("%d dead letters, want 3", n)
		}
		for _, rec := range r.log.streams["dead"][0].records { // it flies alone: by the main producer, and by the side one
			if _, meta, err := splitDead(&rec); err != nil || meta.Attempts > 2 {
				t.Errorf("%+v, %v, want it to be known after two attempts: each is a new producer", meta, err)
			}
		}
	})
}

// A second gateway of the same name takes over; the first one sends nothing any more, and says so.
func TestExactlyOnceFencesASecondGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(2, "t.l0"))
		defer r.end()
		r.start(exactRoute())
		r.publish(func(int) string { return "site/l0/x" }, 4, 100)
		r.drained(time.Minute)
		first, firstRan, firstLog := r.b, r.ran, r.log
		r.log = r.log.clone() // the zombie's is another copy
		r.start(exactRoute())
		r.publish(func(int) string { return "site/l0/x" }, 4, 100)
		r.drained(time.Minute)
		for i := range 20 { // the first one wakes, and has the same numbers to send
			firstLog.add("default", 0, spool.Record{
				Topic: "site/l0/x", ClientID: "c0", QoS: 1, Payload: binary.BigEndian.AppendUint64(nil, uint64(100+i)),
			})
		}
		r.until("the first one knows that it is replaced", time.Minute, func() bool {
			h := first.Health()[0]
			return h.State == Stuck && h.Reason == "fenced" && h.Hint != ""
		})
		time.Sleep(2 * time.Minute) // it does not come back
		r.publish(func(int) string { return "site/l0/x" }, 4, 100)
		r.drained(10 * time.Second)
		if h := first.Health()[0]; h.State != Stuck || h.Reason != "fenced" {
			t.Errorf("the first one is %+v, want stuck because it is fenced", h)
		}
		if err := first.Close(t.Context()); err != nil {
			t.Log(err)
		}
		<-firstRan
		r.committed("t.l0")
	})
}

func TestExactlyOnceIsNotForTheEmbeddedUpstream(t *testing.T) {
	cfg := exactRoute()
	cfg.Embedded.Enabled = true
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "routes[0].delivery") {
		t.Error(fmt.Sprint(err))
	}
}

// eagerLog moves cursors before anything is acknowledged.
type eagerLog struct{ *memLog }

type eagerCursor struct{ *memCursor }

func (l eagerLog) OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (Cursor, error) {
	c, err := l.memLog.OpenCursor(ctx, name, stream, o)
	if err != nil {
		return nil, err
	}
	return eagerCursor{c.(*memCursor)}, nil
}

func (c eagerCursor) Commit(partition int, _ spool.Offset) {
	c.l.mu.Lock()
	end := spool.Offset(len(c.p[partition].records))
	c.l.mu.Unlock()
	c.memCursor.Commit(partition, end)
}

// The control of every crash test: a cursor that moves before the acknowledgement loses, and the tests would see it.
func TestCursorBeforeAcknowledgementLoses(t *testing.T) {
	for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 1, "dead": 1}), kfake.SeedTopics(1, "t.l0", "t.l1"))
				defer r.end()
				cfg := oneRoute(RouteConfig{Topic: "t.${topic[1]}", Delivery: delivery})
				r.source = func() Log { return eagerLog{r.log} }
				r.start(cfg)
				r.publish(levels(2), 4, 10)
				r.drained(time.Minute)
				fault := r.cluster.Fault(produceFault("t.l1", kerr.NotEnoughReplicas, -1))
				r.publish(levels(2), 4, 100)
				r.until("the other topic delivered", time.Minute, func() bool { return r.b.Stats()[0].Sent >= 40+200 })
				before := r.log.clone()
				for space := range before.state {
					if strings.HasPrefix(space, "bridge/") {
						delete(before.state, space) // positions of lanes would save it
					}
				}
				r.stop()
				r.log = before
				fault.Remove()
				r.start(cfg)
				r.drained(time.Minute)
				if got := r.tally(r.consumeCommitted("t.l0", "t.l1")); got.missing == 0 {
					t.Errorf("records %+v, want some missing: otherwise the crash tests show nothing", got)
				}
			})
		})
	}
}
