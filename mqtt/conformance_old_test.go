package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What MQTT 3.1.1 says in other words, or of sessions that have no expiry.

// MQTT 3.1.1, 3.3.5-1.
func TestOverlappingSubscriptionsOfOldClients(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c", Version: 4})
	c.Subscribe("a/#", 0)
	c.Subscribe("a/+", 2)
	c.Subscribe("a/b", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: 4})
	for qos := range byte(3) {
		pub.Publish(mqtttest.Publish{Topic: "a/b", QoS: qos, Payload: msg(int(qos))})
		c.Receive(mqtttest.Publish{Topic: "a/b", QoS: qos, Payload: msg(int(qos))})
	}
	c.Ping()
}

// MQTT 3.1.1, 3.8.4-3: retained messages are sent again when a subscription is replaced.
func TestOldClientsReplaceSubscriptions(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: 4})
	pub.Publish(mqtttest.Publish{Topic: "r", QoS: 2, Retain: true, Payload: "kept"})
	pub.Publish(mqtttest.Publish{Topic: "r", QoS: 2, Retain: true, Payload: "last"})
	c := s.connect(t, mqtttest.Connect{ID: "c", Version: 4})
	for _, qos := range []byte{2, 1, 0, 2} {
		c.Subscribe("r", qos)
		c.Receive(mqtttest.Publish{Topic: "r", QoS: qos, Retain: true, Payload: "last"})
		c.Ping()
		pub.Publish(mqtttest.Publish{Topic: "r", QoS: 2, Payload: "live"})
		c.Receive(mqtttest.Publish{Topic: "r", QoS: qos, Payload: "live"})
	}
}

// MQTT 3.1.1, 4.4.0-1 and 4.6.0-1: identifiers, order and PUBRELs, over a lost connection and a restart.
func TestOldClientsGetDeliveriesAgain(t *testing.T) {
	s := start(t)
	o := mqtttest.Connect{ID: "c", Version: 4, Resume: true}
	c := s.connect(t, o)
	c.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: 4})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"})
	released := c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"}).PacketID
	c.SendAck(packets.Pubrec, released)
	c.ExpectAck(packets.Pubrel, released, 0)
	var ids []uint16
	for i := range 6 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), Payload: msg(i)})
		ids = append(ids, c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), Payload: msg(i)}).PacketID)
	}
	again := func() {
		t.Helper()
		c = s.resume(t, o)
		c.ExpectAck(packets.Pubrel, released, 0)
		for i, id := range ids {
			c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), ID: id, Dup: true, Payload: msg(i)})
		}
		c.Ping()
		c.Close()
	}
	c.Close()
	again()
	s.restart(t)
	again()
}
