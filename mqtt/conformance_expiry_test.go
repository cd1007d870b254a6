package mqtt_test

import (
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 3.3.2-5 and 3.3.2-6: what is left of the expiry is told, it is never told where none was given, and what has
// expired does not come.
func TestMessageExpiry(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 1)
	sub.Disconnect()
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	publish := func(payload, properties string) {
		t.Helper()
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload, Properties: properties})
	}
	publish("short", `02 00000005`)
	publish("long", `02 00000064`)
	publish("for ever", ``)
	publish("at once", `02 00000000`)
	publish("the longest", `02 ffffffff`)
	s.pass(20 * time.Second)
	publish("last", `02 00000064`)

	sub = s.resume(t, keep("sub"))
	expect := func(payload string, low, high uint32) {
		t.Helper()
		pk := sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload})
		if left := pk.Properties.MessageExpiryInterval; left < low || left > high {
			t.Errorf("%s: %d seconds left, want %d to %d", payload, left, low, high)
		}
	}
	expect("long", 70, 80)
	expect("for ever", 0, 0)
	expect("the longest", 1<<32-1-30, 1<<32-1-20)
	expect("last", 90, 100)
	publish("live", `02 00000064`)
	expect("live", 90, 100)
	sub.Ping()
}

// A QoS 2 delivery that has begun is brought to its end after its expiry, and what follows is not held up by it.
func TestExpiryDoesNotBreakDeliveriesInFlight(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub", `21 0002`))
	sub.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for _, payload := range []string{"released", "sent"} {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: payload, Properties: `02 00000005`})
	}
	released := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"}).PacketID
	sent := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"}).PacketID
	sub.SendAck(packets.Pubrec, released)
	sub.ExpectAck(packets.Pubrel, released, 0)
	sub.Close()
	s.pass(time.Minute)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "later"})

	sub = s.resume(t, keep("sub", `21 0002`))
	sub.ExpectAck(packets.Pubrel, released, 0)
	sub.SendAck(packets.Pubcomp, released)
	// The delivery of the other one has begun, too: it is sent again with the least expiry there is, or, when the log does
	// not give it any more, only brought to its end (a client that does not have it answers 0x92).
	switch pk := sub.Next(); {
	case pk.FixedHeader.Type == packets.Publish && pk.FixedHeader.Dup && pk.PacketID == sent && pk.Properties.MessageExpiryInterval == 1:
		sub.Finish(2, sent)
	case pk.FixedHeader.Type == packets.Pubrel && pk.PacketID == sent:
		sub.Send(`70 03 ` + hex16(sent) + ` 92`)
	default:
		t.Errorf("resumed with %+v", pk)
	}
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "later"})
	sub.Ping()
}

// The expiry of a retained message is counted down too, and ends it (MQTT 5, 3.3.1.3).
func TestRetainedMessagesExpire(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "r/1", QoS: 1, Retain: true, Payload: "short", Properties: `02 0000000a`})
	pub.Publish(mqtttest.Publish{Topic: "r/2", QoS: 1, Retain: true, Payload: "long", Properties: `02 00000064`})
	s.pass(20 * time.Second)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("r/#", 1)
	pk := sub.Receive(mqtttest.Publish{Topic: "r/2", QoS: 1, Retain: true, Payload: "long"})
	if left := pk.Properties.MessageExpiryInterval; left < 70 || left > 80 {
		t.Errorf("%d seconds left, want 80", left)
	}
	sub.Ping()
}
