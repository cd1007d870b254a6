package mqtt

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// The log shows the record of a retained message before its completion gives the message to the store. Who subscribes in between
// begins behind the record: SUBACK waits for the store, whether or not the session is durable, and the message follows.
func TestSubscribeWaitsForARetainedMessageOnItsWay(t *testing.T) {
	f := func(what string, o mqtttest.Connect, publish mqtttest.Publish, want ...string) {
		t.Run(what, func(t *testing.T) {
			srv, log := faulty(t, nil)
			sub, pub := join(t, srv, o), join(t, srv, mqtttest.Connect{ID: "pub"})
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Retain: true, Payload: "old"})
			seen, gate := make(chan struct{}), make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			defer open()
			look := sync.OnceFunc(func() { close(seen); <-gate })
			log.set(func() {
				log.shown = func(group []spool.Entry) {
					if slices.ContainsFunc(group, func(e spool.Entry) bool { return e.Record != nil }) {
						look()
					}
				}
			})
			pub.SendPublish(publish)
			<-seen
			lane, deadline := srv.lanes.list[0], time.Now().Add(time.Minute)
			eventually := func(what string, yes func() bool) {
				t.Helper()
				for !yes() {
					if time.Now().After(deadline) {
						t.Fatal(what)
					}
					time.Sleep(time.Millisecond)
				}
			}
			eventually("the record is not offered", func() bool { return lane.position() == 2 })
			id := sub.SendSubscribe("t", 1)
			eventually("SUBSCRIBE does not wait", func() bool {
				srv.writer.mu.Lock()
				defer srv.writer.mu.Unlock()
				return srv.writer.pending > 0
			})
			open()
			if reason := sub.ExpectSuback(id); reason != 1 {
				t.Errorf("SUBACK %#x", reason)
			}
			for _, payload := range want {
				sub.Receive(mqtttest.Publish{Topic: "t", QoS: min(publish.QoS, 1), Retain: true, Payload: payload})
			}
			sub.ExpectNothing(20 * time.Millisecond)
			if srv.retained.behind() {
				t.Error("a publish is counted for ever")
			}
		})
	}
	clean, kept := mqtttest.Connect{ID: "sub"}, mqtttest.Connect{ID: "sub", Resume: true, Properties: hour}
	f("clean", clean, mqtttest.Publish{Topic: "t", QoS: 1, Retain: true, Payload: "new"}, "new")
	f("clean, QoS 0", clean, mqtttest.Publish{Topic: "t", Retain: true, Payload: "new"}, "new")
	f("clean, QoS 2", clean, mqtttest.Publish{Topic: "t", QoS: 2, Retain: true, Payload: "new"}, "new")
	f("clean, removed", clean, mqtttest.Publish{Topic: "t", QoS: 1, Retain: true})
	f("durable", kept, mqtttest.Publish{Topic: "t", QoS: 1, Retain: true, Payload: "new"}, "new")
}
