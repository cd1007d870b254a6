package mqtt_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 3.3.1-3 and 4.3.2-5: a publisher's DUP goes no further, and after PUBACK the identifier is that of a new message.
func TestDupIsNotSentOn(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		sub := s.connect(t, mqtttest.Connect{ID: "sub", Version: version})
		sub.Subscribe("t", 2)
		pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: version})
		for i := range 3 {
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, ID: 5, Dup: true, Payload: msg(i)})
			sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(i)})
		}
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 6, Dup: true, Payload: "new"})
		sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "new"})
	})
}

// MQTT 5, 4.3.3-9: a QoS 2 publish that was refused is over, and its identifier is free.
func TestRefusedQoS2PublishIsForgotten(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 2)
	pub := s.connect(t, keep("pub"))
	bad := mqtttest.Publish{Topic: "t", QoS: 2, ID: 9, Payload: "\xff", Properties: `01 01`}
	pub.SendPublish(bad)
	pub.ExpectAck(packets.Pubrec, 9, 0x99)
	pub.SendAck(packets.Pubrel, 9)
	pub.ExpectAck(packets.Pubcomp, 9, 0x92)
	pub.SendPublish(bad)
	pub.ExpectAck(packets.Pubrec, 9, 0x99)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 9, Payload: "good"})
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "good"})
	sub.Ping()
}

// MQTT 5, 4.3.3-13: the acknowledgement of a message that has expired meanwhile goes on.
func TestExpiryDoesNotBreakPublishesInFlight(t *testing.T) {
	s := start(t)
	pub := s.connect(t, keep("pub"))
	p := mqtttest.Publish{Topic: "t", QoS: 2, ID: 9, Payload: "x", Properties: `02 00000001`}
	pub.SendPublish(p)
	pub.ExpectAck(packets.Pubrec, 9, 0)
	s.pass(time.Minute)
	p.Dup = true
	pub.SendPublish(p)
	pub.ExpectAck(packets.Pubrec, 9, 0)
	pub.SendAck(packets.Pubrel, 9)
	pub.ExpectAck(packets.Pubcomp, 9, 0)
}

// MQTT 5, 4.4.0-1 and 4.3.3-6: on a connection nothing is sent twice, whatever the time, and after a PUBREL the PUBLISH
// is not sent again even on the next one.
func TestNothingIsResentOnTheSameConnection(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for i := range 2 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(i)})
	}
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(2)})
	first := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(0)}).PacketID
	second := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(1)}).PacketID
	third := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(2)}).PacketID
	sub.SendAck(packets.Pubrec, first)
	sub.ExpectAck(packets.Pubrel, first, 0)
	s.pass(30 * time.Minute) // less than the session expiry
	sub.Ping()
	pub.Publish(mqtttest.Publish{Topic: "other", QoS: 1})
	sub.Ping()
	sub.Close()

	sub = s.resume(t, keep("sub"))
	seen := map[string]int{}
	for range 3 {
		switch pk := sub.Next(); {
		case pk.FixedHeader.Type == packets.Pubrel && pk.PacketID == first:
			seen["pubrel"]++
		case pk.FixedHeader.Type == packets.Publish && pk.FixedHeader.Dup && (pk.PacketID == second || pk.PacketID == third):
			seen[string(pk.Payload)]++
		default:
			t.Errorf("unexpected %+v", pk)
		}
	}
	if len(seen) != 3 {
		t.Errorf("resumed with %v", seen)
	}
	sub.Ping()
}

// MQTT 5, 4.4.0-2: what the client refused is acknowledged, and comes on no other connection.
func TestRefusedDeliveryIsNotSentAgain(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for qos := byte(1); qos <= 2; qos++ {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(int(qos))})
		id := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(int(qos))}).PacketID
		sub.Send(map[byte]string{1: `40`, 2: `50`}[qos] + ` 03 ` + hex16(id) + ` 83`)
	}
	sub.Ping()
	sub.Close()
	sub = s.resume(t, keep("sub"))
	sub.Ping()
	sub.Close()
	s.restart(t)
	s.resume(t, keep("sub")).Ping()
}

// MQTT 5, 3.10.4-3: what had begun when UNSUBSCRIBE came is brought to its end, on the next connection too.
func TestUnsubscribeCompletesDeliveries(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"})
	released := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"}).PacketID
	sent := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"}).PacketID
	if reason := sub.Unsubscribe("t"); reason != 0 {
		t.Errorf("unsubscribe: 0x%02x", reason)
	}
	sub.SendAck(packets.Pubrec, released)
	sub.ExpectAck(packets.Pubrel, released, 0)
	sub.Close()
	sub = s.resume(t, keep("sub"))
	sub.ExpectAck(packets.Pubrel, released, 0)
	sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: sent, Dup: true, Payload: "sent"})
	sub.SendAck(packets.Pubcomp, released)
	sub.Finish(2, sent)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "after"})
	sub.Ping()
}

// MQTT 5, 3.8.4-4: a subscription may be replaced while messages flow, and none is lost or doubled.
func TestReplacingASubscriptionLosesNothing(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		sub := s.connect(t, mqtttest.Connect{ID: "sub", Version: version})
		sub.Subscribe("t/#", 1)
		pub := s.connect(t, mqtttest.Connect{ID: "pub"})
		const n = 500
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range n {
				pub.SendPublish(mqtttest.Publish{Topic: "t/x", QoS: 1, Payload: msg(i)})
			}
		}()
		defer func() { <-done }()
		for i := 0; i < n; {
			if i%10 == 0 {
				sub.SendSubscribe("t/#", byte(1+i/10%2))
			}
			pk := sub.Next()
			if pk.FixedHeader.Type == packets.Suback {
				continue
			}
			if string(pk.Payload) != msg(i) || pk.FixedHeader.Dup {
				t.Fatalf("got %q, want %q", pk.Payload, msg(i))
			}
			sub.SendAck(packets.Puback, pk.PacketID)
			i++
		}
		sub.Close()
	})
}

// MQTT 5, 3.1.2-25: what is too large for the client counts as delivered, on whatever way it would have come.
func TestTooLargeForTheClient(t *testing.T) {
	s := start(t)
	small := `27 00000040 21 0002`
	large := strings.Repeat("x", 100)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "r/1", QoS: 1, Retain: true, Payload: large})
	pub.Publish(mqtttest.Publish{Topic: "r/2", QoS: 1, Retain: true, Payload: "small"})
	sub := s.connect(t, keep("sub", small))
	sub.Subscribe("r/#", 2)
	sub.Receive(mqtttest.Publish{Topic: "r/2", QoS: 1, Retain: true, Payload: "small"})
	sub.Subscribe("t", 2)
	burst := func() {
		for i := range 12 { // more than the window
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), Payload: large})
		}
		pub.Publish(mqtttest.Publish{Topic: "t", Payload: large})
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "small"})
	}
	burst()
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "small"})
	sub.Ping()
	sub.Disconnect()
	burst()
	sub = s.resume(t, keep("sub", small))
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "small"})
	sub.Ping()

	// A client that comes back with less room does not get what was in flight.
	sub = s.resume(t, keep("sub"))
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: large})
	sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: large})
	sub.Close()
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "after"})
	sub = s.resume(t, keep("sub", small))
	for {
		pk := sub.Next()
		if pk.FixedHeader.Type == packets.Pubrel { // of the one in flight: it may be brought to its end without the message
			sub.Send(`70 03 ` + hex16(pk.PacketID) + ` 92`)
			continue
		}
		if string(pk.Payload) != "after" {
			t.Errorf("got %d bytes in a packet, want less than 64", len(pk.Payload))
		}
		break
	}
}

// MQTT 5, 4.1.0-1: the expiry runs only while nobody is connected.
func TestSessionLastsAsLongAsItsConnection(t *testing.T) {
	s := start(t)
	o := mqtttest.Connect{ID: "c", Resume: true, Properties: `11 0000000a`}
	c := s.connect(t, o)
	c.Subscribe("t", 1)
	s.pass(time.Hour)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "x"})
	c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "x"})
	c.Ping()
	c.Close()
	s.resume(t, o)
	s.pass(time.Hour)
	c = s.resume(t, o) // by take-over
	c.Disconnect()
	eventually(t, "connection does not end", func() bool { return s.stats().Connections == 1 })
	s.pass(11 * time.Second)
	if s.dial(t).Connect(o).SessionPresent {
		t.Error("a session has outlived its expiry")
	}
}

// MQTT 5, 3.1.2-22: any packet keeps a connection, not only PINGREQ; and a keep alive of 0 asks for none.
func TestAnyPacketKeepsTheConnection(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *mqtt.Config) { c.MaxKeepAlive = unit.Duration(0) })
	busy := s.connect(t, mqtttest.Connect{ID: "busy", KeepAlive: 2})
	idle := s.connect(t, mqtttest.Connect{ID: "idle"})
	busy.Subscribe("never", 0)
	for range 8 {
		busy.SendPublish(mqtttest.Publish{Topic: "t"})
		busy.ExpectNothing(500 * time.Millisecond) // in all more than one and a half keep alives
	}
	busy.Ping()
	idle.Ping()
}

// MQTT 3.1.1, 3.1.2-7: a retained message belongs to no session.
func TestRetainedMessagesOutliveSessions(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: version})
		pub.Publish(mqtttest.Publish{Topic: "r", QoS: 1, Retain: true, Payload: "kept"})
		pub.Disconnect()
		s.connect(t, mqtttest.Connect{ID: "pub", Version: version}).Close()
		sub := s.connect(t, mqtttest.Connect{ID: "sub", Version: version})
		sub.Subscribe("r", 1)
		sub.Receive(mqtttest.Publish{Topic: "r", QoS: 1, Retain: true, Payload: "kept"})
	})
}

// MQTT 5, 3.1.2-12 of 3.1.1: nothing is published for a client without a will; 3.14.4-1: nothing follows a DISCONNECT.
func TestNothingFollowsADisconnect(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("#", 0)
	both(t, func(t *testing.T, version byte) {
		c := s.connect(t, mqtttest.Connect{ID: "c", Version: version})
		if version == 5 {
			c.Send(`e000 30 len s"late" 00`)
		} else {
			c.Send(`e000 30 len s"late"`)
		}
		c.ExpectClosed()
		s.connect(t, mqtttest.Connect{ID: "c", Version: version}).Close()
	})
	sub.SendPublish(mqtttest.Publish{Topic: "end"})
	sub.ExpectPublish(mqtttest.Publish{Topic: "end"})
}

// MQTT 5, 4.6.0-4: PUBRELs leave in the order of the PUBRECs, also when that is not the order of the PUBLISHes.
func TestPubrelsLeaveInOrder(t *testing.T) {
	s := start(t)
	for _, o := range []mqtttest.Connect{{ID: "c"}, keep("c")} { // the second waits for the disk in between
		sub := s.connect(t, o)
		sub.Subscribe("t", 2)
		pub := s.connect(t, mqtttest.Connect{ID: "pub"})
		var ids []uint16
		for i := range 20 {
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(i)})
			ids = append(ids, sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(i)}).PacketID)
		}
		for i := range ids {
			sub.SendAck(packets.Pubrec, ids[(i*7)%len(ids)])
		}
		for i := range ids {
			sub.ExpectAck(packets.Pubrel, ids[(i*7)%len(ids)], 0)
		}
		sub.Disconnect()
	}
}
