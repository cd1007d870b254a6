package mqtt_test

import (
	"slices"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 4.8.2-3: each member gets the QoS that was granted to it.
func TestSharedSubscriptionKeepsTheGrantedQoS(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for granted := range byte(3) {
		c := s.connect(t, mqtttest.Connect{ID: "c"})
		c.Subscribe("$share/g/t", granted)
		for sent := range byte(3) {
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: sent, Payload: msg(int(sent))})
			c.Receive(mqtttest.Publish{Topic: "t", QoS: min(sent, granted), Payload: msg(int(sent))})
		}
		c.Disconnect()
	}
}

// MQTT 5, 4.8.2-4: a QoS 2 delivery that has begun waits for its member.
func TestSharedQoS2StaysWithItsMember(t *testing.T) {
	s := start(t)
	o := keep("member")
	o.Will = &mqtttest.Publish{Topic: "gone"}
	member := s.connect(t, o)
	member.Subscribe("$share/g/t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"})
	sent := member.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"}).PacketID
	released := member.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "released"}).PacketID
	member.SendAck(packets.Pubrec, released)
	member.ExpectAck(packets.Pubrel, released, 0)
	other := s.connect(t, mqtttest.Connect{ID: "other"})
	other.Subscribe("gone", 0)
	other.Subscribe("$share/g/t", 2)
	member.Close()
	other.Receive(mqtttest.Publish{Topic: "gone"}) // the server knows that the member is away
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "new"})
	for {
		pk := other.Expect(packets.Publish)
		if string(pk.Payload) != "new" {
			t.Errorf("%q goes to another member", pk.Payload)
		}
		other.Finish(2, pk.PacketID)
		if string(pk.Payload) == "new" {
			break
		}
	}
	member = s.resume(t, keep("member"))
	seen := 0
	for range 2 {
		switch pk := member.Next(); {
		case pk.FixedHeader.Type == packets.Pubrel && pk.PacketID == released:
			member.SendAck(packets.Pubcomp, released)
			seen++
		case pk.FixedHeader.Type == packets.Publish && pk.PacketID == sent && pk.FixedHeader.Dup && string(pk.Payload) == "sent":
			seen++
		default:
			t.Errorf("unexpected %+v", pk)
		}
	}
	if seen == 2 {
		member.Finish(2, sent)
	}
	member.Ping()
	other.Ping()
}

// MQTT 5, 4.8.2-5: when the member's session ends instead, nobody gets it.
func TestSharedQoS2EndsWithItsMember(t *testing.T) {
	s := start(t)
	other := s.connect(t, mqtttest.Connect{ID: "other"})
	for _, member := range []mqtttest.Connect{{ID: "member"}, keep("member")} {
		m := s.connect(t, member)
		m.Subscribe("$share/g/t", 2)
		pub := s.connect(t, mqtttest.Connect{ID: "pub"})
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"})
		m.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "sent"})
		other.Subscribe("$share/g/t", 2)
		m.Close()
		s.connect(t, mqtttest.Connect{ID: "member"}).Disconnect() // Clean Start ends what is left of it
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "new"})
		other.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "new"})
		other.Ping()
		other.Unsubscribe("$share/g/t")
	}
}

// MQTT 5, 4.8.2-6: what a member refuses is discarded, and goes to no other.
func TestRefusedSharedMessageIsDiscarded(t *testing.T) {
	s := start(t)
	member := s.connect(t, mqtttest.Connect{ID: "member"})
	member.Subscribe("$share/g/t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for qos := byte(1); qos <= 2; qos++ {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(int(qos))})
		id := member.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: qos, Payload: msg(int(qos))}).PacketID
		member.Send(map[byte]string{1: `40`, 2: `50`}[qos] + ` 03 ` + hex16(id) + ` 97`)
	}
	member.Ping()
	other := s.connect(t, mqtttest.Connect{ID: "other"})
	other.Subscribe("$share/g/t", 2)
	member.Close()
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "new"})
	for {
		pk := other.Expect(packets.Publish)
		other.Finish(pk.FixedHeader.Qos, pk.PacketID)
		if string(pk.Payload) == "new" {
			break
		}
		t.Errorf("%q was refused, and goes to another member", pk.Payload)
	}
	other.Ping()
}

// MQTT 5, 4.8.2: groups of different names, and the plain subscription, each get every message.
func TestShareNamesAreIndependent(t *testing.T) {
	s := start(t)
	clients := map[string]*mqtttest.Client{}
	for id, filter := range map[string]string{"1": "$share/one/t", "2": "$share/two/t", "3": "t", "4": "$share/ONE/t"} {
		clients[id] = s.connect(t, mqtttest.Connect{ID: id})
		clients[id].Subscribe(filter, 1)
	}
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for i := range 10 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(i)})
	}
	for _, c := range clients {
		for i := range 10 {
			c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(i)})
		}
		c.Ping()
	}
}

// MQTT 5, 3.3.4-3: what a member of a shared subscription has not acknowledged is sent to it again with its subscription identifier
// and the retain flag that it asked for, after a restart too.
func TestSharedDeliveryIsSentAgainAsItWas(t *testing.T) {
	s := start(t)
	o := mqtttest.Connect{ID: "c", Resume: true, Properties: forAnHour}
	c := s.connect(t, o)
	c.Subscribe("$share/g/t", 2|retainAsPublished, `0b 09`)
	s.connect(t, mqtttest.Connect{ID: "pub"}).Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "x", Retain: true})
	want := mqtttest.Publish{Topic: "t", QoS: 2, Payload: "x", Retain: true}
	check := func() {
		t.Helper()
		pk := c.ExpectPublish(want)
		if got := pk.Properties.SubscriptionIdentifier; !slices.Equal(got, []int{9}) {
			t.Errorf("subscription identifiers %v, want 9", got)
		}
		want.Dup, want.ID = true, pk.PacketID
	}
	check()
	c.Close()
	c = s.resume(t, o)
	check()
	s.restart(t)
	c = s.resume(t, o)
	check()
	c.Finish(2, want.ID)
	c.Ping()
}
