package mqtt_test

import (
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What is kept under a key that the log would refuse is refused before anything depends on it, and alone.
func TestNamesThatCannotBeKeptAreRefused(t *testing.T) {
	s := start(t)
	long := strings.Repeat("i", 8<<10)
	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: long + "i", Properties: forAnHour})
	c.ExpectConnack(0x85)
	c = s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: strings.Repeat("t", 32<<10+1), Retain: true}})
	c.ExpectConnack(0x90)

	c = s.connect(t, mqtttest.Connect{ID: long, Properties: forAnHour})
	longest := strings.Repeat("f", 32<<10-len(long)-1)
	c.Subscribe(longest, 2)
	if got := c.ExpectSuback(c.SendSubscribe(longest+"f", 2)); got != 0x8F {
		t.Errorf("reason 0x%02x, want 0x8f", got)
	}
	topic := strings.Repeat("t", 32<<10)
	c.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: "x"})
	id := c.SendPublish(mqtttest.Publish{Topic: topic + "t", QoS: 1, Retain: true, Payload: "x"})
	c.ExpectAck(packets.Puback, id, 0x90)
	c.Publish(mqtttest.Publish{Topic: topic + "t", QoS: 1, Payload: "x"})
	c.Publish(mqtttest.Publish{Topic: longest, QoS: 1, Payload: "x"})
	c.Receive(mqtttest.Publish{Topic: longest, QoS: 1, Payload: "x"})
	c.Ping()
}

// The end of a session is written however much there is to delete.
func TestLargeSessionEndsForGood(t *testing.T) {
	s := start(t)
	id := strings.Repeat("i", 8<<10)
	c := s.connect(t, mqtttest.Connect{ID: id, Properties: forAnHour})
	for range 500 { // 4 MiB of keys, the journal has files of 1 MiB
		pid := c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2})
		c.ExpectAck(packets.Pubrec, pid, 0)
	}
	c.Disconnect()
	c = s.connect(t, mqtttest.Connect{ID: id})
	c.Disconnect()
	s.restart(t)
	c = s.dial(t)
	if pk := c.Connect(mqtttest.Connect{ID: id, Resume: true}); pk.SessionPresent {
		t.Error("the session is back after a restart")
	}
}
