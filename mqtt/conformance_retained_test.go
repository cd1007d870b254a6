package mqtt_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Subscription options (MQTT 5, 3.8.3.1).
const (
	noLocal           = 1 << 2
	retainAsPublished = 1 << 3
	retainIfNew       = 1 << 4
	retainNever       = 2 << 4
)

// MQTT 5, 3.3.1-5 to 3.3.1-8: the last retained message of a topic is kept, an empty one removes it.
func TestRetainedMessages(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: version})
		retain := func(payload string, qos byte) {
			t.Helper()
			pub.Publish(mqtttest.Publish{Topic: "r/t", Payload: payload, QoS: qos, Retain: true})
			pub.Publish(mqtttest.Publish{Topic: "r/other", QoS: 1}) // acknowledged: what came before it is done
		}
		held := func(granted byte, want ...mqtttest.Publish) {
			t.Helper()
			c := s.connect(t, mqtttest.Connect{ID: "late", Version: version})
			c.Subscribe("r/t", granted)
			for _, p := range want {
				c.Receive(p)
			}
			c.Ping()
			c.Disconnect()
		}
		live := s.connect(t, mqtttest.Connect{ID: "live", Version: version})
		live.Subscribe("r/t", 2)
		held(2)
		retain("one", 0)
		live.Receive(mqtttest.Publish{Topic: "r/t", Payload: "one"}) // MQTT 5, 3.3.1-12: retain is 0
		held(2, mqtttest.Publish{Topic: "r/t", Payload: "one", Retain: true})
		retain("two", 2)
		live.Receive(mqtttest.Publish{Topic: "r/t", Payload: "two", QoS: 2})
		held(2, mqtttest.Publish{Topic: "r/t", Payload: "two", QoS: 2, Retain: true})
		held(1, mqtttest.Publish{Topic: "r/t", Payload: "two", QoS: 1, Retain: true})
		held(0, mqtttest.Publish{Topic: "r/t", Payload: "two", Retain: true})
		pub.Publish(mqtttest.Publish{Topic: "r/t", Payload: "passing", QoS: 1}) // not retained: changes nothing
		live.Receive(mqtttest.Publish{Topic: "r/t", Payload: "passing", QoS: 1})
		held(1, mqtttest.Publish{Topic: "r/t", Payload: "two", QoS: 1, Retain: true})
		retain("", 1)
		live.Receive(mqtttest.Publish{Topic: "r/t", QoS: 1}) // MQTT 5, 3.3.1-6: it is sent on like any other
		held(2)
	})
}

// MQTT 5, 4.7.1.2, 4.7.1.3 and 4.7.2-1: which filters find which retained messages.
func TestFiltersFindRetainedMessages(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	topics := []string{"a", "a/b", "a/b/c", "a//c", "/", "/a", "$x/a"}
	for _, topic := range topics {
		pub.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: topic})
	}
	for filter, want := range map[string][]string{
		"a/b/#": {"a/b", "a/b/c"},
		"a/#":   {"a", "a/b", "a/b/c", "a//c"},
		"a/+":   {"a/b"},
		"a/+/c": {"a/b/c", "a//c"},
		"+":     {"a"},
		"+/+":   {"a/b", "/", "/a"},
		"/+":    {"/", "/a"},
		"+/a":   {"/a"},
		"#":     {"a", "a/b", "a/b/c", "a//c", "/", "/a"},
		"$x/#":  {"$x/a"},
		"$x/+":  {"$x/a"},
		"/":     {"/"},
		"a/":    {},
	} {
		c := s.connect(t, mqtttest.Connect{ID: "c"})
		c.Subscribe(filter, 0)
		got := make(map[string]int)
		for range want {
			pk := c.Expect(packets.Publish)
			got[pk.TopicName]++
		}
		c.Ping()
		for _, topic := range want {
			if got[topic] != 1 {
				t.Errorf("%s: got %v, want %v", filter, got, want)
				break
			}
		}
		c.Disconnect()
	}
}

// MQTT 5, 3.3.1-9 to 3.3.1-11.
func TestRetainHandling(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "r", QoS: 1, Retain: true, Payload: "kept"})
	c := s.connect(t, keep("c"))
	subscribe := func(options byte, sent bool) {
		t.Helper()
		c.Subscribe("r", options)
		if sent {
			c.Receive(mqtttest.Publish{Topic: "r", QoS: 1, Retain: true, Payload: "kept"})
		}
		c.Ping()
	}
	subscribe(1|retainIfNew, true)
	subscribe(1|retainIfNew, false)
	subscribe(1, true)
	subscribe(1, true) // MQTT 5, 3.8.4-4: sent again for a repeated subscription
	subscribe(1|retainNever, false)
	c.Unsubscribe("r")
	subscribe(1|retainNever, false)
	c.Unsubscribe("r")
	subscribe(1|retainIfNew, true)
	c.Disconnect()
	c = s.resume(t, keep("c"))
	c.Ping() // resuming is not subscribing
	subscribe(1|retainIfNew, false)
}

// MQTT 5, 3.3.1-12 and 3.3.1-13.
func TestRetainAsPublished(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("plain", 1)
	c.Subscribe("as/published", 1|retainAsPublished)
	for _, retain := range []bool{false, true} {
		for _, qos := range []byte{0, 1} {
			pub.Publish(mqtttest.Publish{Topic: "plain", QoS: qos, Retain: retain, Payload: "x"})
			c.Receive(mqtttest.Publish{Topic: "plain", QoS: qos, Payload: "x"})
			pub.Publish(mqtttest.Publish{Topic: "as/published", QoS: qos, Retain: retain, Payload: "x"})
			c.Receive(mqtttest.Publish{Topic: "as/published", QoS: qos, Retain: retain, Payload: "x"})
		}
	}
}

// MQTT 5, 3.8.4: a shared subscription gets no retained messages when it is made.
func TestSharedSubscriptionGetsNoRetained(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "r", QoS: 1, Retain: true, Payload: "kept"})
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("$share/g/r", 1)
	c.Ping()
	pub.Publish(mqtttest.Publish{Topic: "r", QoS: 1, Payload: "new"})
	c.Receive(mqtttest.Publish{Topic: "r", QoS: 1, Payload: "new"})
}

// Retained messages, with their properties, survive a restart.
func TestRetainedMessagesSurviveRestart(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "r/1", QoS: 1, Retain: true, Payload: "one", Properties: `03 s"text" 26 s"k" s"v"`})
	pub.Publish(mqtttest.Publish{Topic: "r/2", QoS: 1, Retain: true, Payload: "two"})
	pub.Publish(mqtttest.Publish{Topic: "r/2", QoS: 1, Retain: true})
	s.restart(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("r/#", 1, `0b 07`)
	p := c.Receive(mqtttest.Publish{Topic: "r/1", QoS: 1, Retain: true, Payload: "one"}).Properties
	if p.ContentType != "text" || len(p.User) != 1 || fmt.Sprint(p.SubscriptionIdentifier) != "[7]" {
		t.Errorf("properties %+v", p)
	}
	c.Ping()
}

// Many retained messages come complete and in bounded pieces to a client with a small window.
func TestManyRetainedMessagesArriveComplete(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	watch := s.connect(t, mqtttest.Connect{ID: "watch"})
	watch.Subscribe("end", 1)
	const n = 2000
	for i := range n {
		pub.SendPublish(mqtttest.Publish{Topic: fmt.Sprint("many/", i), Retain: true, Payload: msg(i)})
	}
	pub.Publish(mqtttest.Publish{Topic: "end", QoS: 1})
	watch.Receive(mqtttest.Publish{Topic: "end", QoS: 1}) // all have been handed out: none comes as a new one
	c := s.connect(t, mqtttest.Connect{ID: "c", Properties: `21 0005`})
	c.Subscribe("many/#", 1)
	seen := make(map[string]bool)
	for range n {
		pk := c.Expect(packets.Publish)
		if !pk.FixedHeader.Retain || seen[pk.TopicName] {
			t.Fatalf("retain %t, %s twice %t", pk.FixedHeader.Retain, pk.TopicName, seen[pk.TopicName])
		}
		seen[pk.TopicName] = true
		if pk.FixedHeader.Qos > 0 {
			c.SendAck(packets.Puback, pk.PacketID)
		}
	}
	c.Ping()
}

// MQTT 5, 4.1.0-1: what a subscription still owes of retained messages belongs to the session.
func TestRetainedMessagesGoOnAfterReconnect(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for i := range 100 {
		pub.Publish(mqtttest.Publish{Topic: fmt.Sprint("r/", i), QoS: 1, Retain: true, Payload: msg(i)})
	}
	sub := s.connect(t, keep("sub", `21 0005`))
	sub.Subscribe("r/#", 1)
	seen := map[string]bool{}
	for range 20 {
		pk := sub.Expect(packets.Publish)
		seen[pk.TopicName] = true
		sub.SendAck(packets.Puback, pk.PacketID)
	}
	sub.Close()
	sub = s.resume(t, keep("sub", `21 0005`))
	for len(seen) < 100 {
		pk := sub.Expect(packets.Publish)
		seen[pk.TopicName] = true
		sub.SendAck(packets.Puback, pk.PacketID)
	}
	sub.Ping()
}

// The time to live of a stream binds what the stream delivers. A retained message is not bound by it, before a restart no
// more than after it, and the publisher's own expiry is not cut.
func TestRetainedMessageOutlivesTheStreamsTTL(t *testing.T) {
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.spool.Streams[0].TTL = unit.Duration(time.Minute)
	s.spool.Streams[0].MaxTTL = unit.Duration(time.Minute)
	s.run(t)
	t.Cleanup(func() { s.stop(t) })
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "r/a", Payload: "for ever", QoS: 1, Retain: true})
	pub.Publish(mqtttest.Publish{Topic: "r/b", Payload: "an hour", QoS: 2, Retain: true, Properties: `02 00000e10`})
	s.pass(2 * time.Minute)
	for _, restart := range []bool{false, true} {
		if restart {
			s.restart(t)
		}
		c := s.connect(t, mqtttest.Connect{ID: "late"})
		c.Subscribe("r/#", 1)
		if pk := c.Receive(mqtttest.Publish{Topic: "r/a", Payload: "for ever", QoS: 1, Retain: true}); pk.Properties.MessageExpiryInterval != 0 {
			t.Errorf("an expiry that nobody gave: %d s", pk.Properties.MessageExpiryInterval)
		}
		pk := c.Receive(mqtttest.Publish{Topic: "r/b", Payload: "an hour", QoS: 1, Retain: true})
		if left := pk.Properties.MessageExpiryInterval; left < 3400 || left > 3480 {
			t.Errorf("%d s left of an hour after two minutes", left)
		}
		c.Ping()
		c.Disconnect()
	}
}

// MQTT 5, 3.3.4-3 and 4.4.0-1: a retained message that is sent again has the subscription identifier that it had, also when the
// subscription began behind it.
func TestRetainedMessageIsSentAgainAsItWas(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "kept", Retain: true})
	for i := range 10 {
		o := mqtttest.Connect{ID: fmt.Sprint("c", i), Resume: true, Properties: forAnHour}
		c := s.connect(t, o)
		c.Subscribe("other", 1)
		c.Close()
		for range 20 {
			pub.Publish(mqtttest.Publish{Topic: "x", QoS: 1, Payload: "passes"})
		}
		c = s.dial(t) // the session is behind when it subscribes
		c.SendConnect(o)
		id := c.SendSubscribe("t", 1, `0b 07`)
		c.ExpectConnack(0)
		c.ExpectSuback(id)
		first := c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "kept", Retain: true})
		c.Close()
		c = s.resume(t, o)
		again := c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: first.PacketID, Payload: "kept", Retain: true, Dup: true})
		for _, pk := range []packets.Packet{first, again} {
			if got := pk.Properties.SubscriptionIdentifier; !slices.Equal(got, []int{7}) {
				t.Errorf("subscription identifiers %v, want 7", got)
			}
		}
		c.SendAck(packets.Puback, first.PacketID)
		c.Ping()
	}
}
