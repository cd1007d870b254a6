package mqtt_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 4.7: topic names are matched level by level; a leading wildcard does not see topics that start with $.
func TestFiltersMatchTopics(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	f := func(filter string, topics map[string]bool) {
		t.Helper()
		c := s.connect(t, mqtttest.Connect{ID: "c"})
		c.Subscribe(filter, 1)
		c.Subscribe("$end", 1)
		for topic, want := range topics {
			pub.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Payload: topic})
			pub.Publish(mqtttest.Publish{Topic: "$end", QoS: 1})
			if want {
				c.Receive(mqtttest.Publish{Topic: topic, QoS: 1, Payload: topic})
			}
			c.Receive(mqtttest.Publish{Topic: "$end", QoS: 1})
		}
		c.Disconnect()
	}
	f("a/b", map[string]bool{"a/b": true, "a": false, "a/b/c": false, "a/b/": false, "A/b": false})
	f("a/#", map[string]bool{"a": true, "a/b": true, "a/b/c": true, "a/": true, "ab": false})
	f("a/+", map[string]bool{"a/b": true, "a/": true, "a": false, "a/b/c": false})
	f("+/+", map[string]bool{"/finance": true, "a/b": true, "$x/b": false, "a": false})
	f("#", map[string]bool{"a": true, "/": true, "$x": false, "$x/y": false})
	f("+/x/#", map[string]bool{"a/x": true, "$x/x/y": false})
	f("$x/#", map[string]bool{"$x/y": true, "$x": true, "a": false})
	f("/#", map[string]bool{"/": true, "/a/b": true, "a": false})
}

// MQTT 5, 3.8.3-3: no local.
func TestNoLocal(t *testing.T) {
	s := start(t)
	c := s.connect(t, keep("c"))
	c.Subscribe("t", 1|noLocal)
	c.Subscribe("u", 1)
	c.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "own"})
	c.SendPublish(mqtttest.Publish{Topic: "u", Payload: "own"})
	c.Receive(mqtttest.Publish{Topic: "u", Payload: "own"})
	other := s.connect(t, mqtttest.Connect{ID: "other"})
	other.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "not own"})
	c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "not own"})
	c.Ping()
}

// MQTT 5, 3.3.4-2 to 3.3.4-5: overlapping subscriptions get one copy, of the highest QoS, with all their identifiers.
func TestOverlappingSubscriptionsGetOneCopy(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("a/#", 0, `0b 03`)
	c.Subscribe("a/+", 2, `0b ffffff7f`)
	c.Subscribe("a/b", 1)
	c.Subscribe("+/b", 1, `0b 03`)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "a/b", QoS: 2, Payload: "x"})
	ids := c.Receive(mqtttest.Publish{Topic: "a/b", QoS: 2, Payload: "x"}).Properties.SubscriptionIdentifier
	slices.Sort(ids)
	if got := fmt.Sprint(slices.Compact(ids)); got != "[3 268435455]" {
		t.Errorf("subscription identifiers %s", got)
	}
	pub.Publish(mqtttest.Publish{Topic: "x/y", QoS: 2})
	pub.Publish(mqtttest.Publish{Topic: "a", QoS: 2, Payload: "y"})
	pk := c.Receive(mqtttest.Publish{Topic: "a", Payload: "y"})
	if got := fmt.Sprint(pk.Properties.SubscriptionIdentifier); got != "[3]" {
		t.Errorf("subscription identifiers %s", got)
	}
	c.Ping()
}

// MQTT 5, 3.8.4-3: a repeated subscription replaces the options and the identifier, and loses nothing.
func TestSubscriptionIsReplaced(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	c.Subscribe("t", 2, `0b 01`)
	c.Subscribe("t", 1, `0b 02`)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "x"})
	if ids := c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "x"}).Properties.SubscriptionIdentifier; fmt.Sprint(ids) != "[2]" {
		t.Errorf("subscription identifiers %v", ids)
	}
	c.Subscribe("t", 1)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "y"})
	if ids := c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "y"}).Properties.SubscriptionIdentifier; len(ids) != 0 {
		t.Errorf("subscription identifiers %v", ids)
	}
	c.Ping()
}

// MQTT 5, 3.8.4-5 to 3.8.4-7, 3.10.4-1 to 3.10.4-6, 3.11.3-1: one reason code for each filter, in order.
func TestEachFilterHasItsReasonCode(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Send(`82 len 0009 00 s"a" 00 s"b/#" 01 s"$share/g/c" 02`)
	c.ExpectBytes(`90 len 0009 00 00 01 02`)
	c.Send(`a2 len 000a 00 s"a" s"none" s"$share/g/c" s"a"`)
	c.ExpectBytes(`b0 len 000a 00 00 11 00 11`)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for _, topic := range []string{"a", "c", "b"} {
		pub.Publish(mqtttest.Publish{Topic: topic, QoS: 1})
	}
	c.Receive(mqtttest.Publish{Topic: "b", QoS: 1})

	old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	old.Send(`82 len 0009 s"a" 00 s"b/#" 02`)
	old.ExpectBytes(`90 len 0009 00 02`)
	old.Send(`a2 len 000a s"a" s"none"`) // MQTT 3.1.1, 3.10.4-5: answered even when nothing was deleted
	old.ExpectBytes(`b0 02 000a`)
}

// MQTT 5, 4.8.2: each message goes to one member; members take turns.
func TestSharedSubscriptionBalances(t *testing.T) {
	s := start(t)
	members := make([]*mqtttest.Client, 3)
	for i := range members {
		members[i] = s.connect(t, mqtttest.Connect{ID: fmt.Sprint("member", i)})
		members[i].Subscribe("$share/g/t/#", 1)
		members[i].Subscribe("end", 1)
	}
	watcher := s.connect(t, mqtttest.Connect{ID: "watcher"})
	watcher.Subscribe("t/#", 0)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	const n = 60
	for i := range n {
		pub.Publish(mqtttest.Publish{Topic: "t/x", QoS: 1, Payload: msg(i)})
	}
	pub.Publish(mqtttest.Publish{Topic: "end", QoS: 1})
	seen := make(map[string]int)
	for i, m := range members {
		count := 0
		for {
			pk := m.Expect(packets.Publish)
			m.SendAck(packets.Puback, pk.PacketID)
			if pk.TopicName == "end" {
				break
			}
			seen[string(pk.Payload)]++
			count++
		}
		if count < n/6 {
			t.Errorf("member %d got %d of %d", i, count, n)
		}
	}
	for i := range n {
		if seen[msg(i)] != 1 {
			t.Errorf("%s came %d times", msg(i), seen[msg(i)])
		}
		watcher.ExpectPublish(mqtttest.Publish{Topic: "t/x", Payload: msg(i)})
	}
}

// A dead member's messages go to the others, and a member that is away gets none while another is there.
func TestSharedSubscriptionHandsOn(t *testing.T) {
	s := start(t)
	dead := s.connect(t, mqtttest.Connect{ID: "dead"})
	dead.Subscribe("$share/g/t", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	const n = 10
	for i := range n {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(i)})
	}
	for i := range n {
		dead.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(i)})
	}
	away := s.connect(t, keep("away"))
	away.Subscribe("$share/g/t", 1)
	away.Disconnect()
	alive := s.connect(t, mqtttest.Connect{ID: "alive"})
	alive.Subscribe("$share/g/t", 1)
	dead.Close()
	seen := make(map[string]int)
	for range n {
		pk := alive.Expect(packets.Publish)
		seen[string(pk.Payload)]++
		alive.SendAck(packets.Puback, pk.PacketID)
	}
	for i := range n {
		if seen[msg(i)] != 1 {
			t.Errorf("%s came %d times", msg(i), seen[msg(i)])
		}
	}
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "new"})
	alive.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "new"})
	away = s.resume(t, keep("away"))
	away.Ping()
}

// MQTT 5, 4.7.2-1 holds for shared subscriptions too; and the same filter shared and not shared are two subscriptions.
func TestSharedSubscriptionMatchesLikeOthers(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("$share/g/#", 1, `0b 01`)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "$x/y", QoS: 1})
	pub.Publish(mqtttest.Publish{Topic: "a", QoS: 1})
	c.Receive(mqtttest.Publish{Topic: "a", QoS: 1})
	c.Subscribe("#", 1, `0b 02`)
	pub.Publish(mqtttest.Publish{Topic: "b", QoS: 1})
	one := c.Receive(mqtttest.Publish{Topic: "b", QoS: 1}).Properties.SubscriptionIdentifier
	two := c.Receive(mqtttest.Publish{Topic: "b", QoS: 1}).Properties.SubscriptionIdentifier
	if ids := append(one, two...); len(ids) != 2 || ids[0]+ids[1] != 3 {
		t.Errorf("subscription identifiers %v and %v", one, two)
	}
	c.Ping()
}

// QoS 0 goes to the members of a shared subscription too, one each.
func TestSharedSubscriptionOfQoS0(t *testing.T) {
	s := start(t)
	one := s.connect(t, mqtttest.Connect{ID: "one"})
	two := s.connect(t, mqtttest.Connect{ID: "two", Version: 4})
	for _, c := range []*mqtttest.Client{one, two} {
		c.Subscribe("$share/g/t", 0)
		c.Subscribe("end", 0)
	}
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	const n = 20
	for i := range n {
		pub.Publish(mqtttest.Publish{Topic: "t", Payload: msg(i), QoS: byte(i % 2)})
	}
	pub.Publish(mqtttest.Publish{Topic: "end"})
	total := 0
	for _, c := range []*mqtttest.Client{one, two} {
		for c.Expect(packets.Publish).TopicName != "end" {
			total++
		}
	}
	if total != n {
		t.Errorf("%d messages came, want %d", total, n)
	}
}

// MQTT 5, 3.10.4-2 and 3.10.4-3: nothing new for a filter that is gone, and everything for the others.
func TestUnsubscribeWhileMessagesWait(t *testing.T) {
	s := start(t)
	sub := s.connect(t, keep("sub", `21 0001`))
	sub.Subscribe("a", 1)
	sub.Subscribe("b", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for i := range 10 {
		pub.Publish(mqtttest.Publish{Topic: "a", QoS: 1, Payload: msg(i)})
		pub.Publish(mqtttest.Publish{Topic: "b", QoS: 1, Payload: msg(i)})
	}
	pk := sub.ExpectPublish(mqtttest.Publish{Topic: "a", QoS: 1, Payload: msg(0)})
	if r := sub.Unsubscribe("a"); r != 0 {
		t.Errorf("unsubscribe %x", r)
	}
	sub.SendAck(packets.Puback, pk.PacketID)
	// What waits of a may come or not.
	nb := 0
	for nb < 10 {
		pk := sub.Expect(packets.Publish)
		if pk.TopicName == "b" {
			if string(pk.Payload) != msg(nb) {
				t.Fatalf("b: %q want %q", pk.Payload, msg(nb))
			}
			nb++
		}
		sub.SendAck(packets.Puback, pk.PacketID)
	}
	pub.Publish(mqtttest.Publish{Topic: "a", QoS: 1, Payload: "late"})
	pub.Publish(mqtttest.Publish{Topic: "b", QoS: 1, Payload: "late"})
	pk = sub.Expect(packets.Publish)
	for pk.TopicName == "a" && string(pk.Payload) != "late" {
		sub.SendAck(packets.Puback, pk.PacketID)
		pk = sub.Expect(packets.Publish)
	}
	if pk.TopicName != "b" {
		t.Errorf("got %s %s", pk.TopicName, pk.Payload)
	}
}

func TestManyFiltersInOnePacket(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	var b strings.Builder
	for i := range 900 {
		fmt.Fprintf(&b, ` s"many/%d/+" 01`, i)
	}
	c.Send(`82 len 0001 00` + b.String())
	pk := c.Expect(packets.Suback)
	if len(pk.ReasonCodes) != 900 {
		t.Errorf("%d codes", len(pk.ReasonCodes))
	}
	c.SendPublish(mqtttest.Publish{Topic: "many/899/x"})
	c.Receive(mqtttest.Publish{Topic: "many/899/x"})
}
