package bridge

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func TestTopicIsMadeOnceAndIsNoStalledLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.end()
		var log lines
		r.handler = slog.NewTextHandler(&log, nil)
		// A broker that learns late of new topics.
		until := time.Now().Add(2 * time.Second)
		r.cluster.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			m, ok := req.(*kmsg.MetadataRequest)
			if !ok || time.Now().After(until) || len(m.Topics) == 0 {
				return nil, nil, false
			}
			res := m.ResponseKind().(*kmsg.MetadataResponse)
			for _, topic := range m.Topics {
				rt := kmsg.NewMetadataResponseTopic()
				rt.Topic, rt.ErrorCode = topic.Topic, kerr.UnknownTopicOrPartition.Code
				res.Topics = append(res.Topics, rt)
			}
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID, b.Host, b.Port = 0, "127.0.0.1", 9001
			res.Brokers = append(res.Brokers, b)
			return res, nil, true
		})
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 2}}))
		r.publish(levels(3), 12, 100)
		r.drained(time.Minute)
		r.complete("t.l0", "t.l1", "t.l2")
		if n := log.count("topic made"); n != 3 {
			t.Errorf("%d topics made, want 3\n%s", n, log.b.String())
		}
		if s := r.b.Stats()[0]; s.Detaches != 0 {
			t.Errorf("%d lanes detached, want none", s.Detaches)
		}
	})
}

func TestRecordsThatExpireInADetachedLaneAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "t.l0", "t.l1"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(2), 2, 10)
		r.drained(time.Minute)
		fault := r.cluster.Fault(produceFault("t.l1", kerr.TopicAuthorizationFailed, -1))
		for i := range 100 {
			r.log.add("default", 0, spool.Record{
				Topic: "site/l1", ClientID: "c1", Payload: []byte("12345678"), ExpiresAt: time.Now().Add(10*time.Second).UnixNano() * int64(i%2),
			})
		}
		r.until("held", time.Minute, func() bool { return r.b.Stats()[0].HeldLanes == 1 })
		time.Sleep(20 * time.Second)
		fault.Remove()
		r.drained(2 * time.Minute)
		r.until("attached", time.Minute, func() bool { return r.b.Stats()[0].DetachedLanes == 0 })
		if s := r.b.Stats()[0]; s.Expired != 50 || s.Sent != 70 {
			t.Errorf("%d expired, %d sent, want 50 and 70", s.Expired, s.Sent)
		}
	})
}

// What a lane has in memory while the upstream is away expires there, and is counted like what expires in the spool.
func TestRecordsThatExpireOnTheirWayAreCounted(t *testing.T) {
	for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "t.l0"))
				defer r.end()
				r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}", Delivery: delivery}))
				r.publish(levels(1), 2, 10)
				r.drained(time.Minute)
				fault := r.cluster.Fault(produceFault("t.l0", kerr.NotEnoughReplicas, -1))
				r.publish(levels(1), 2, 5) // in the air
				time.Sleep(50 * time.Millisecond)
				for i := range 100 {
					r.log.add("default", 0, spool.Record{
						Topic: "site/l0", ClientID: "c1", Payload: []byte("12345678"), ExpiresAt: time.Now().Add(10*time.Second).UnixNano() * int64(i%2),
					})
				}
				time.Sleep(20 * time.Second)
				fault.Remove()
				r.drained(2 * time.Minute)
				if s := r.b.Stats()[0]; s.Expired != 50 || s.Sent != 80 {
					t.Errorf("%d expired, %d sent, want 50 and 80", s.Expired, s.Sent)
				}
			})
		})
	}
}

func TestIdleTopicsOfATemplateAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 2}}))
		var topics []string
		for i := range 30 {
			r.publish(oneTopic(fmt.Sprintf("site/x%d", i)), 4, 1)
			topics = append(topics, fmt.Sprintf("t.x%d", i))
		}
		r.drained(time.Minute)
		before := r.b.Stats()[0].Lanes
		for range 12 {
			time.Sleep(time.Minute)
			r.publish(oneTopic("site/x0"), 4, 1)
		}
		r.drained(time.Minute)
		if s := r.b.Stats()[0]; before < 30 || s.Lanes > 8 || s.Lanes < 1 {
			t.Errorf("%d lanes, %d before, want those of one topic", s.Lanes, before)
		}
		if n := r.b.upstreams[0].Topics(); n != 1 {
			t.Errorf("the client keeps %d topics, want 1", n)
		}
		r.publish(oneTopic("site/x7"), 4, 1)
		r.drained(time.Minute)
		got := r.tally(r.consume(topics...))
		if got.missing != 0 || got.doubled != 0 { // other topics, no order between them
			t.Errorf("records %+v, want every one once", got)
		}
	})
}
