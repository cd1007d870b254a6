package mqtt_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt"
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

// A take-over that is refused leaves the connection that it found as it was, on every kind of listener: that one is held only while
// the take-over is decided, also in the middle of a packet.
func TestRefusedTakeOverLeavesTheConnection(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		c.MaxSessionsSize, c.TakeOverInterval = 16<<10, 0
		c.Listeners = append(c.Listeners, mqtt.ListenerConfig{Name: "unix", Type: mqtt.ListenerUnix, Address: filepath.Join(t.TempDir(), "s")})
	})
	dial := func(listener string) *mqtttest.Client {
		switch listener {
		case "tcp", "unix":
			return mqtttest.Dial(t, s.srv.Addr(listener))
		case "ws":
			return mqtttest.DialWebSocket(t, s.srv.Addr("ws"), "/mqtt")
		}
		return s.dial(listener, s.config())
	}
	for _, listener := range []string{"tcp", "unix", "ws", "tls", "wss"} {
		t.Run(listener, func(t *testing.T) {
			old := dial(listener)
			old.Connect(mqtttest.Connect{ID: listener, Properties: forAnHour})
			for range 3 {
				old.Send(`3005 0001`) // the begin of a QoS 0 publish
				other := dial("tcp")
				other.SendConnect(mqtttest.Connect{
					ID: listener, Will: &mqtttest.Publish{Topic: "w", Payload: strings.Repeat("x", 20<<10)}, Properties: forAnHour,
				})
				other.ExpectConnack(0x97)
				old.Send(`74 0061`)
				old.Ping()
			}
			next := dial(listener)
			next.Connect(mqtttest.Connect{ID: listener, Resume: true, Properties: forAnHour})
			old.ExpectDisconnect(0x8E)
			next.Ping()
		})
	}
}
