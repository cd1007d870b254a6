package mqtt_test

import (
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 3.1.2-4 to 3.1.2-6, 3.2.2-2, 3.2.2-3 and 3.1.2-23: which CONNECT finds which session.
func TestSessionPresent(t *testing.T) {
	s := start(t)
	f := func(name string, first mqtttest.Connect, disconnect string, second mqtttest.Connect, want bool) {
		t.Helper()
		first.ID, second.ID = "c", "c"
		s.connect(t, mqtttest.Connect{ID: "c"}).Disconnect() // nothing is left of earlier ones
		c := s.dial(t)
		if c.Connect(first).SessionPresent {
			t.Errorf("%s: session present at first", name)
		}
		c.Subscribe("t", 1)
		if disconnect == "" {
			c.Close()
		} else {
			c.Send(disconnect)
			c.ExpectClosed()
		}
		c = s.dial(t)
		if got := c.Connect(second).SessionPresent; got != want {
			t.Errorf("%s: session present %t, want %t", name, got, want)
		}
		pub := s.connect(t, mqtttest.Connect{ID: "pub"})
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: name})
		if want {
			c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: name})
		}
		c.Ping()
		c.Disconnect()
	}
	v4 := func(resume bool) mqtttest.Connect { return mqtttest.Connect{Version: 4, Resume: resume} }
	v5 := func(resume bool, properties string) mqtttest.Connect {
		return mqtttest.Connect{Resume: resume, Properties: properties}
	}
	const end = `e000`
	f("v5, kept", v5(true, forAnHour), end, v5(true, ""), true)
	f("v5, clean start and kept", v5(false, forAnHour), end, v5(true, ""), true)
	f("v5, connection lost", v5(true, forAnHour), "", v5(true, ""), true)
	f("v5, no expiry", v5(true, ""), end, v5(true, ""), false)
	f("v5, expiry 0", v5(true, `11 00000000`), end, v5(true, ""), false)
	f("v5, expiry 0, connection lost", v5(true, `11 00000000`), "", v5(true, ""), false)
	f("v5, started anew", v5(true, forAnHour), end, v5(false, forAnHour), false)
	f("v5, expiry set to 0 at the end", v5(true, forAnHour), `e0 len 00 [ 11 00000000 ]`, v5(true, ""), false)
	f("v5, expiry changed at the end", v5(true, `11 00000001`), `e0 len 00 [ 11 00000e10 ]`, v5(true, ""), true)
	f("v3.1.1, kept", v4(true), end, v4(true), true)
	f("v3.1.1, connection lost", v4(true), "", v4(true), true)
	f("v3.1.1, clean session", v4(false), end, v4(true), false)
	f("v3.1.1, started anew", v4(true), end, v4(false), false)
	f("v3.1.1, then v5", v4(true), end, v5(true, forAnHour), true)
	f("v5, then v3.1.1", v5(true, forAnHour), end, v4(true), true)
}

// MQTT 5, 3.14.2.2.2: a session that was to end with its connection cannot be kept by its DISCONNECT.
func TestDisconnectMustNotSetExpiryFromZero(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Send(`e0 len 00 [ 11 00000e10 ]`)
	c.ExpectDisconnect(0x82)
	if s.dial(t).Connect(mqtttest.Connect{ID: "c", Resume: true}).SessionPresent {
		t.Error("the session was kept")
	}
}

// MQTT 5, 3.1.2-23: a session ends when its expiry has passed, and not before.
func TestSessionExpires(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c", Resume: true, Properties: `11 00000001`})
	c.Subscribe("t", 1)
	c.Close()
	// The will of another session that is as old tells when the time is over.
	watch := s.connect(t, mqtttest.Connect{ID: "watch"})
	watch.Subscribe("w", 0)
	s.connect(t, mqtttest.Connect{ID: "w", Properties: `11 00000002`, Will: &mqtttest.Publish{Topic: "w", Properties: afterAnHour}}).Close()
	watch.Receive(mqtttest.Publish{Topic: "w"})
	if s.dial(t).Connect(mqtttest.Connect{ID: "c", Resume: true}).SessionPresent {
		t.Error("a session has outlived its expiry")
	}
}

// The expiry runs on while the server is down.
func TestSessionExpiresWhileTheServerIsDown(t *testing.T) {
	s := start(t)
	s.connect(t, mqtttest.Connect{ID: "short", Resume: true, Properties: forAnHour}).Disconnect()
	s.connect(t, mqtttest.Connect{ID: "long", Resume: true, Properties: `11 0000a8c0`}).Disconnect()
	s.connect(t, mqtttest.Connect{ID: "old", Version: 4, Resume: true}).Disconnect()
	s.stop(t)
	s.pass(2 * time.Hour)
	s.run(t)
	f := func(o mqtttest.Connect, want bool) {
		t.Helper()
		o.Resume = true
		if got := s.dial(t).Connect(o).SessionPresent; got != want {
			t.Errorf("%s: session present %t, want %t", o.ID, got, want)
		}
	}
	f(mqtttest.Connect{ID: "short"}, false)
	f(mqtttest.Connect{ID: "long"}, true)
	f(mqtttest.Connect{ID: "old", Version: 4}, true)
}

// Subscriptions with their options, position and packet identifiers in flight survive a restart.
func TestSessionSurvivesRestart(t *testing.T) {
	s := start(t)
	o := keep("c", `21 0002`)
	c := s.connect(t, o)
	c.Subscribe("a/#", 2, `0b 05`)
	c.Subscribe("own", 1|noLocal)
	c.Subscribe("gone", 1)
	c.Unsubscribe("gone")
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for i := range 4 {
		pub.Publish(mqtttest.Publish{Topic: "a/x", QoS: byte(1 + i%2), Payload: msg(i)})
	}
	one := c.ExpectPublish(mqtttest.Publish{Topic: "a/x", QoS: 1, Payload: msg(0)}).PacketID
	two := c.ExpectPublish(mqtttest.Publish{Topic: "a/x", QoS: 2, Payload: msg(1)}).PacketID
	c.Ping()
	c.Close()
	pub.Publish(mqtttest.Publish{Topic: "gone", QoS: 1})
	pub.Publish(mqtttest.Publish{Topic: "a/offline", QoS: 1, Payload: "offline"})

	s.restart(t)
	c = s.resume(t, o)
	c.ExpectPublish(mqtttest.Publish{Topic: "a/x", QoS: 1, ID: one, Dup: true, Payload: msg(0)})
	p := c.ExpectPublish(mqtttest.Publish{Topic: "a/x", QoS: 2, ID: two, Dup: true, Payload: msg(1)}).Properties
	if ids := p.SubscriptionIdentifier; len(ids) != 1 || ids[0] != 5 {
		t.Errorf("subscription identifiers %v", ids)
	}
	c.Ping()
	c.Finish(1, one)
	c.Receive(mqtttest.Publish{Topic: "a/x", QoS: 1, Payload: msg(2)})
	c.Finish(2, two)
	rest := map[string]int{} // a/x and a/offline in any order
	for range 2 {
		pk := c.Expect(packets.Publish)
		c.Finish(pk.FixedHeader.Qos, pk.PacketID)
		rest[pk.TopicName+" "+string(pk.Payload)]++
	}
	if rest["a/x "+msg(3)] != 1 || rest["a/offline offline"] != 1 {
		t.Errorf("got %v", rest)
	}
	c.Publish(mqtttest.Publish{Topic: "own", QoS: 1})
	pub = s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "own", QoS: 1, Payload: "other"})
	c.Receive(mqtttest.Publish{Topic: "own", QoS: 1, Payload: "other"})
	c.Ping()
}

// A session without expiry leaves nothing behind, not even subscriptions.
func TestEndedSessionLeavesNothing(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for range 3 {
		c := s.connect(t, mqtttest.Connect{ID: "c"})
		c.Ping() // no delivery of an earlier life
		c.Subscribe("t", 2)
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "x"})
		c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "x"})
		c.Close()
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "x"})
	}
}

// What was in flight to a connection that is taken over goes to the new one.
func TestTakeOverKeepsDeliveries(t *testing.T) {
	s := start(t)
	first := s.connect(t, keep("c"))
	first.Subscribe("t", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "x"})
	id := first.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "x"}).PacketID
	second := s.resume(t, keep("c"))
	first.ExpectDisconnect(0x8E)
	second.Receive(mqtttest.Publish{Topic: "t", QoS: 1, ID: id, Dup: true, Payload: "x"})
	second.Ping()
}

// A session's QoS 0 subscriptions bring nothing from the time it was away.
func TestOfflineSessionGetsNoQoS0(t *testing.T) {
	s := start(t)
	c := s.connect(t, keep("c"))
	c.Subscribe("t", 0)
	c.Subscribe("u", 1)
	c.Disconnect()
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1})
	pub.Publish(mqtttest.Publish{Topic: "u"})
	pub.Publish(mqtttest.Publish{Topic: "u", QoS: 1, Payload: "kept"})
	c = s.resume(t, keep("c"))
	c.Receive(mqtttest.Publish{Topic: "u", QoS: 1, Payload: "kept"})
	c.Ping()
}

// MQTT 5, 3.14.2.1 and 4.13.2: an orderly stop is announced with 0x8B; 3.1.1 has no packet for it.
func TestStopIsAnnounced(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	s.stop(t)
	c.ExpectDisconnect(0x8B)
	old.ExpectDisconnect(0x8B)
}

// MQTT 5, 3.1.2-29: no reason strings to a client that asked for none; a publish keeps its user properties.
func TestNoProblemInformationUnasked(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c", Properties: `17 00`})
	c.Subscribe("t", 1)
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "\xff", Properties: `01 01`})
	if pk := c.Expect(packets.Puback); pk.Properties.ReasonString != "" || pk.ReasonCode != 0x99 {
		t.Errorf("puback %+v", pk)
	}
	c.SendPublish(mqtttest.Publish{Topic: "t", Properties: `26 s"k" s"v"`})
	if pk := c.Receive(mqtttest.Publish{Topic: "t"}); len(pk.Properties.User) != 1 {
		t.Errorf("publish %+v", pk.Properties)
	}
}

// A session of MQTT 5 may be resumed by a client of 3.1.1, which gets no properties.
func TestVersionsShareASession(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("a", 2, `0b 05`)
	sub.Disconnect()
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "a", QoS: 2, Payload: "x", Properties: `03 s"ct" 02 0000ffff`})
	old := s.resume(t, mqtttest.Connect{ID: "sub", Version: 4, Resume: true})
	old.Receive(mqtttest.Publish{Topic: "a", QoS: 2, Payload: "x"})
	old.Ping()
}
