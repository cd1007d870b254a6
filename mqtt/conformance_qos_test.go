package mqtt_test

import (
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// forAnHour is the property of a session that outlives its connection.
const forAnHour = `11 00000e10`

func keep(id string, more ...string) mqtttest.Connect {
	o := mqtttest.Connect{ID: id, Resume: true, Properties: forAnHour}
	for _, p := range more {
		o.Properties += " " + p
	}
	return o
}

// resume connects again and expects the session.
func (s *server) resume(t testing.TB, o mqtttest.Connect) *mqtttest.Client {
	t.Helper()
	c := s.dial(t)
	if pk := c.Connect(o); !pk.SessionPresent {
		t.Fatalf("session of %s is gone", o.ID)
	}
	return c
}

func msg(i int) string { return fmt.Sprintf("message %d", i) }

// MQTT 5, 3.8.4-8: the QoS of a delivery is the lower one of the publish and of what was granted.
func TestDeliveryHasTheLowerQoS(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: version})
		for granted := range byte(3) {
			sub := s.connect(t, mqtttest.Connect{ID: "sub", Version: version})
			sub.Subscribe("t", granted)
			for sent := range byte(3) {
				pub.Publish(mqtttest.Publish{Topic: "t", QoS: sent, Payload: msg(int(sent))})
				sub.Receive(mqtttest.Publish{Topic: "t", QoS: min(sent, granted), Payload: msg(int(sent))})
			}
			sub.Disconnect()
		}
	})
}

// MQTT 5, 2.2.1: client and server assign packet identifiers independently of each other.
func TestPacketIdentifiersOfBothSidesAreSeparate(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for _, qos := range []byte{1, 2} {
		id := fmt.Sprintf("sub%d", qos)
		c := s.connect(t, keep(id))
		c.Subscribe(id, qos)
		pub.Publish(mqtttest.Publish{Topic: id, QoS: qos, Payload: "in flight"})
		out := c.ExpectPublish(mqtttest.Publish{Topic: id, QoS: qos, Payload: "in flight"}).PacketID

		for _, own := range []byte{1, 2} { // with the same identifier in the other direction
			c.Publish(mqtttest.Publish{Topic: "elsewhere", QoS: own, ID: out})
		}
		c.Close()
		c = s.resume(t, keep(id))
		c.Receive(mqtttest.Publish{Topic: id, QoS: qos, ID: out, Dup: true, Payload: "in flight"})
		c.Ping()
	}
}

// MQTT 5, 4.3.3-10 to 4.3.3-12: the same PUBLISH before its PUBREL is acknowledged again and stored once.
func TestRepeatedQoS2PublishIsOneMessage(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		sub := s.connect(t, mqtttest.Connect{ID: "sub"})
		sub.Subscribe("t", 2)
		o := mqtttest.Connect{ID: "pub", Version: version, Resume: true, Properties: forAnHour}
		pub := s.connect(t, o)
		p := mqtttest.Publish{Topic: "t", QoS: 2, ID: 9, Payload: "once"}
		pub.SendPublish(p)
		p.Dup = true
		pub.SendPublish(p) // before the PUBREC
		pub.ExpectAck(packets.Pubrec, 9, 0)
		pub.ExpectAck(packets.Pubrec, 9, 0)
		pub.SendPublish(p) // after it
		pub.ExpectAck(packets.Pubrec, 9, 0)
		pub.Close()

		pub = s.resume(t, o)
		pub.SendPublish(p) // on another connection
		pub.ExpectAck(packets.Pubrec, 9, 0)
		pub.SendAck(packets.Pubrel, 9)
		pub.ExpectAck(packets.Pubcomp, 9, 0)

		p.Payload, p.Dup = "new", false // the identifier is free again
		pub.Publish(p)
		pub.Disconnect()
		sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "once"})
		sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "new"})
	})
}

// The same over an orderly restart of the server.
func TestQoS2PublishIsOneMessageAcrossRestart(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 2)
	pub := s.connect(t, keep("pub"))
	p := mqtttest.Publish{Topic: "t", QoS: 2, ID: 9, Payload: "once"}
	pub.SendPublish(p)
	pub.ExpectAck(packets.Pubrec, 9, 0)
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "once"})
	sub.Ping()

	s.restart(t)
	sub = s.resume(t, keep("sub"))
	pub = s.resume(t, keep("pub"))
	p.Dup = true
	pub.SendPublish(p)
	pub.ExpectAck(packets.Pubrec, 9, 0)
	pub.SendAck(packets.Pubrel, 9)
	pub.ExpectAck(packets.Pubcomp, 9, 0)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "next"})
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "next"})
}

// MQTT 5, 3.7.2.1 and 4.3.3-13: an identifier that nobody knows is told as such, and is no error of the connection.
func TestUnknownPacketIdentifiers(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "a"})
	c.SendAck(packets.Pubrel, 77)
	c.ExpectAck(packets.Pubcomp, 77, 0x92)
	c.SendAck(packets.Pubrec, 78)
	c.ExpectAck(packets.Pubrel, 78, 0x92)
	c.SendAck(packets.Puback, 79)
	c.SendAck(packets.Pubcomp, 80)
	c.Ping()

	old := s.connect(t, mqtttest.Connect{ID: "b", Version: 4})
	old.SendAck(packets.Pubrel, 77)
	old.ExpectBytes(`70 02 004d`) // MQTT 3.1.1 has no reason codes
}

// MQTT 5, 1.2 and 4.13.1: an answer that a delivery cannot have ends the connection, and the message comes again on the next
// one. Passed over, it would hold a place in the window for ever.
func TestWrongAnswerEndsTheConnection(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		f := func(qos byte, answers ...byte) {
			t.Helper()
			o := keep(fmt.Sprintf("sub-%d-%d-%v", version, qos, answers))
			o.Version = version
			sub := s.connect(t, o)
			sub.Subscribe(o.ID, qos)
			pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: version})
			pub.Publish(mqtttest.Publish{Topic: o.ID, QoS: qos, Payload: "m"})
			pk := sub.ExpectPublish(mqtttest.Publish{Topic: o.ID, QoS: qos, Payload: "m"})
			dup := true
			for i, kind := range answers {
				sub.SendAck(kind, pk.PacketID)
				if kind == packets.Pubrec && qos == 2 && i < len(answers)-1 {
					sub.ExpectAck(packets.Pubrel, pk.PacketID, 0)
					dup = false
				}
			}
			sub.ExpectDisconnect(0x82)
			sub = s.resume(t, o)
			if dup {
				sub.Receive(mqtttest.Publish{Topic: o.ID, QoS: qos, Payload: "m", Dup: true, ID: pk.PacketID})
			} else {
				sub.ExpectAck(packets.Pubrel, pk.PacketID, 0)
				sub.SendAck(packets.Pubcomp, pk.PacketID)
			}
			pub.Publish(mqtttest.Publish{Topic: o.ID, QoS: qos, Payload: "next"})
			sub.Receive(mqtttest.Publish{Topic: o.ID, QoS: qos, Payload: "next"})
		}
		f(1, packets.Pubrec)
		f(1, packets.Pubcomp)
		f(2, packets.Puback)
		f(2, packets.Pubcomp)
		f(2, packets.Pubrec, packets.Puback)
	})
}

// MQTT 5, 4.4.0-1: an owed PUBREL is sent again when the client returns, and completes the delivery.
func TestPubrelIsSentAgain(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "one"})
	id := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "one"}).PacketID
	sub.SendAck(packets.Pubrec, id)
	sub.ExpectAck(packets.Pubrel, id, 0)
	sub.Close()

	sub = s.resume(t, keep("sub"))
	sub.ExpectAck(packets.Pubrel, id, 0)
	sub.Close()

	s.restart(t)
	sub = s.resume(t, keep("sub"))
	sub.ExpectAck(packets.Pubrel, id, 0)
	sub.SendAck(packets.Pubcomp, id)
	sub.Ping()
	sub.Close()

	sub = s.resume(t, keep("sub"))
	sub.Ping() // nothing is owed any more
}

// MQTT 5, 4.4.0-1, 4.6.0-1, 3.3.1-1 and 3.3.4-9: in the original order, DUP on what was sent before and on nothing else,
// and never more than the new Receive Maximum.
func TestResendKeepsOrderAndReceiveMaximum(t *testing.T) {
	s := start(t)
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			sub := s.connect(t, keep("sub", `21 0003`))
			sub.Subscribe("t", qos)
			pub := s.connect(t, mqtttest.Connect{ID: "pub"})
			for i := range 6 {
				pub.Publish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(i)})
			}
			var ids []uint16
			for i := range 3 {
				ids = append(ids, sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(i)}).PacketID)
			}
			sub.Ping()
			sub.Close()

			sub = s.resume(t, keep("sub", `21 0002`))
			sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: ids[0], Dup: true, Payload: msg(0)})
			sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: ids[1], Dup: true, Payload: msg(1)})
			sub.Ping()
			sub.Finish(qos, ids[0])
			sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: ids[2], Dup: true, Payload: msg(2)})
			sub.Ping()
			sub.Finish(qos, ids[1])
			for i := 3; i < 6; i++ {
				id := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(i)}).PacketID
				sub.Ping()
				sub.Finish(qos, ids[2])
				ids[2] = id
			}
			sub.Finish(qos, ids[2])
			sub.Ping()
			sub.Disconnect()
		})
	}
}

// MQTT 5, 4.9.0-1 to 4.9.0-3: the send quota comes back with PUBACK, PUBCOMP, an error PUBREC, and a new connection.
func TestSendQuotaIsRestored(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	sub := s.connect(t, keep("sub", `21 0001`))
	sub.Subscribe("t", 2)
	next := func(i int, qos byte) uint16 {
		t.Helper()
		id := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(i)}).PacketID
		sub.Ping() // and no more
		return id
	}
	for i := range 8 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), Payload: msg(i)})
	}
	sub.SendAck(packets.Puback, next(0, 1))
	sub.Finish(2, next(1, 2))
	sub.SendAck(packets.Puback, next(2, 1))
	sub.Send(`50 03 ` + hex16(next(3, 2)) + ` 80`)
	sub.Send(`40 03 ` + hex16(next(4, 1)) + ` 97`)
	id := next(5, 2)
	sub.SendAck(packets.Pubrec, id)
	sub.ExpectAck(packets.Pubrel, id, 0)
	sub.Ping() // PUBREC alone gives nothing back
	sub.Close()

	sub = s.resume(t, keep("sub", `21 0001`))
	sub.ExpectAck(packets.Pubrel, id, 0)
	sub.SendAck(packets.Pubcomp, id)
	sub.SendAck(packets.Puback, next(6, 1))
	sub.Finish(2, next(7, 2))
	sub.Ping()
}

func hex16(v uint16) string { return fmt.Sprintf("%04x", v) }

// MQTT 5, 3.3.4-7 and 3.3.4-8: QoS 2 publishes count until their PUBCOMP; one above the maximum is 0x93. QoS 0 is free.
func TestReceiveMaximumIsKept(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ReceiveMaximum = 2 })
	c := s.connect(t, mqtttest.Connect{ID: "a"})
	one := c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2})
	c.ExpectAck(packets.Pubrec, one, 0)
	two := c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2})
	c.ExpectAck(packets.Pubrec, two, 0)
	c.SendPublish(mqtttest.Publish{Topic: "t"})
	c.SendAck(packets.Pubrel, one)
	c.ExpectAck(packets.Pubcomp, one, 0)
	three := c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2})
	c.ExpectAck(packets.Pubrec, three, 0)
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1})
	c.ExpectDisconnect(0x93)
}

// MQTT 5, 3.4: an acknowledgement carries none of the publish's properties.
func TestAcknowledgementsCarryNoPublishProperty(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "a"})
	for _, qos := range []byte{1, 2} {
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: qos, Properties: `26 s"k" s"v" 03 s"text" 02 00000010`})
		if pk := c.Next(); len(pk.Properties.User) > 0 || pk.Properties.ContentType != "" || pk.FixedHeader.Remaining > 3 {
			t.Errorf("acknowledgement %+v", pk)
		}
	}
}

// MQTT 5, 4.6.0-2 to 4.6.0-4: acknowledgements leave in the order in which the publishes came, however many wait at once.
func TestAcknowledgementsLeaveInOrder(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	const n = 300
	for i := range n {
		pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), ID: uint16(1000 - i), Payload: msg(i)})
	}
	for i := range n {
		kind := []byte{packets.Puback, packets.Pubrec}[i%2]
		pub.ExpectAck(kind, uint16(1000-i), 0)
	}
	for i := 1; i < n; i += 2 {
		pub.SendAck(packets.Pubrel, uint16(1000-i))
		pub.ExpectAck(packets.Pubcomp, uint16(1000-i), 0)
	}
	for i := range n { // MQTT 5, 4.6.0-5 and 4.6.0-6: and so do the messages
		pk := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: byte(1 + i%2), Payload: msg(i)})
		if pk.FixedHeader.Qos == 1 {
			sub.SendAck(packets.Puback, pk.PacketID)
		}
	}
}

// A session that is away gets everything of QoS 1 and 2 when it returns, in order, and nothing twice.
func TestOfflineSessionGetsEverything(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		o := mqtttest.Connect{ID: "sub", Version: version, Resume: true, Properties: forAnHour}
		sub := s.connect(t, o)
		sub.Subscribe("t/#", 2)
		sub.Disconnect()
		pub := s.connect(t, mqtttest.Connect{ID: "pub"})
		const n = 50
		got := make(map[int]int)
		for i := range n {
			pub.Publish(mqtttest.Publish{Topic: fmt.Sprint("t/", i%3), QoS: byte(1 + i%2), Payload: msg(i)})
		}
		sub = s.resume(t, o)
		var last [3]int
		for range n { // MQTT 5, 4.6.0-6: in order for each topic; and here whatever the QoS
			pk := sub.Expect(packets.Publish)
			sub.Finish(pk.FixedHeader.Qos, pk.PacketID)
			i := len(got)
			_, _ = fmt.Sscanf(string(pk.Payload), "message %d", &i)
			if topic := fmt.Sprint("t/", i%3); pk.TopicName != topic || pk.FixedHeader.Qos != byte(1+i%2) || i < last[i%3] {
				t.Errorf("after %v: %q to %s, QoS %d, dup %t", last, pk.Payload, pk.TopicName, pk.FixedHeader.Qos, pk.FixedHeader.Dup)
			}
			last[i%3] = i
			got[i]++
		}
		if len(got) != n {
			t.Errorf("%d different messages came, want %d", len(got), n)
		}
		pub.Publish(mqtttest.Publish{Topic: "t/live", QoS: 1, Payload: "live"})
		sub.Receive(mqtttest.Publish{Topic: "t/live", QoS: 1, Payload: "live"})
		sub.Ping()
		sub.Unsubscribe("t/#")
		sub.Disconnect()
	})
}
