package mqtt_test

import (
	"fmt"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What a client sent on one connection counts before what it does on the next, however little time there is between them: its
// DISCONNECT drops the will (MQTT 5, 3.14.4-3), and its QoS 0 messages are not lost.
func TestWhatWasSaidBeforeATakeOverCounts(t *testing.T) {
	both(t, func(t *testing.T, version byte) {
		s := start(t)
		watch := s.connect(t, mqtttest.Connect{ID: "watch"})
		watch.Subscribe("w/#", 1)
		connect := mqtttest.Connect{
			ID: "c", Version: version, Resume: true, Will: &mqtttest.Publish{Topic: "w/will", Payload: "gone"},
		}
		if version == 5 {
			connect.Properties = forAnHour
		}
		const rounds, messages = 50, 20
		for range rounds {
			c := s.connect(t, connect)
			for i := range messages {
				c.SendPublish(mqtttest.Publish{Topic: "w/data", Payload: fmt.Sprint(i)})
			}
			c.Send(`e000`)
			c.Close()
		}
		s.connect(t, connect).Disconnect()
		for range rounds {
			for i := range messages {
				watch.Receive(mqtttest.Publish{Topic: "w/data", Payload: fmt.Sprint(i)})
			}
		}
		watch.ExpectNothing(0)
		watch.Ping()
	})
}

// A connection that is silent, or one whose client does not stop, does not hold up its take-over.
func TestTakeOverDoesNotWaitForALongSpeech(t *testing.T) {
	s := start(t)
	old := s.connect(t, mqtttest.Connect{ID: "c"})
	talking := make(chan struct{})
	go func() {
		defer close(talking)
		for {
			if _, err := old.Conn().Write([]byte{0x30, 3, 0, 1, 't'}); err != nil {
				return
			}
		}
	}()
	s.connect(t, mqtttest.Connect{ID: "c"}).Ping()
	<-talking
	s.connect(t, mqtttest.Connect{ID: "c"}).Ping()
}

// A subscription begins behind what its own client published before it, acknowledged or not, and finds the retained messages
// among that.
func TestSubscriptionBeginsBehindOwnPublishes(t *testing.T) {
	both(t, func(t *testing.T, version byte) {
		s := start(t)
		for qos := range byte(3) {
			for i := range 30 {
				topic := fmt.Sprintf("own/%d/%d", qos, i)
				c := s.connect(t, mqtttest.Connect{ID: "c", Version: version})
				c.SendPublish(mqtttest.Publish{Topic: topic + "/a", QoS: qos, Payload: "before"})
				c.SendPublish(mqtttest.Publish{Topic: topic + "/b", QoS: qos, Payload: "retained", Retain: true})
				id := c.SendSubscribe(topic+"/+", 0)
				for range min(qos, 1) * 2 { // PUBACK or PUBREC
					c.Next()
				}
				if got := c.ExpectSuback(id); got != 0 {
					t.Fatalf("granted 0x%02X", got)
				}
				c.Receive(mqtttest.Publish{Topic: topic + "/b", Payload: "retained", Retain: true})
				c.SendPublish(mqtttest.Publish{Topic: topic + "/c", Payload: "after"})
				c.Receive(mqtttest.Publish{Topic: topic + "/c", Payload: "after"})
				c.Close()
			}
		}
	})
}
