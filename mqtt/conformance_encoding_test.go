package mqtt_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 1.5.4-3 and 4.7.3-4: strings are bytes. A byte order mark stays, and nothing is normalised or folded.
func TestTopicsAreComparedByteForByte(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		sub := s.connect(t, mqtttest.Connect{ID: "sub", Version: version})
		pub := s.connect(t, mqtttest.Connect{ID: "pub", Version: version})
		topics := []string{
			"a", "\ufeffa", "a\ufeff", "A", "é", "e\u0301", "a ", " a", "a/", "/a", "a//b", "a/b", "a/./b", "\u200ba", "ﬁ", "fi",
		}
		sub.Subscribe("end", 1)
		for _, topic := range topics {
			sub.Subscribe(topic, 1)
			for _, sent := range topics {
				pub.Publish(mqtttest.Publish{Topic: sent, QoS: 1, Payload: "\ufeff" + sent})
			}
			pub.Publish(mqtttest.Publish{Topic: "end", QoS: 1})
			sub.Receive(mqtttest.Publish{Topic: topic, QoS: 1, Payload: "\ufeff" + topic})
			sub.Receive(mqtttest.Publish{Topic: "end", QoS: 1}) // and nothing else before it
			sub.Unsubscribe(topic)
		}
	})

	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 0)
	sub.SendPublish(mqtttest.Publish{Topic: "t", Properties: "03 s\"\ufefftext\" 26 s\"\ufeffk\" s\"\ufeff\""})
	p := sub.Receive(mqtttest.Publish{Topic: "t"}).Properties
	if p.ContentType != "\ufefftext" || len(p.User) != 1 || p.User[0].Key != "\ufeffk" || p.User[0].Val != "\ufeff" {
		t.Errorf("properties %+v", p)
	}
	a, b := s.connect(t, keep("id")), s.connect(t, keep("\ufeffid"))
	a.Ping() // it is another client ID
	b.Ping()
}

// MQTT 5, 1.5.5-1, 2.2.1-2 and 2.2.2-1: lengths take the fewest bytes, a QoS 0 message has no packet identifier, and no
// properties are a length of 0. MQTT 3.1.1 has none.
func TestDeliveriesAreEncodedShortest(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 0)
	old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	old.Subscribe("t", 0)
	for _, remaining := range []int{4, 127, 128, 16383, 16384, 70000} {
		payload := strings.Repeat("x", remaining-4)
		sub.SendPublish(mqtttest.Publish{Topic: "t", Payload: payload})
		sub.ExpectBytes(`30 len s"t" 00 "` + payload + `"`)
		old.ExpectBytes(`30 len s"t" "` + payload + `"`)
	}
	sub.SendPublish(mqtttest.Publish{Topic: "t", Properties: `26 s"k" s"` + strings.Repeat("v", 200) + `"`})
	sub.ExpectBytes(`30 len s"t" [ 26 s"k" s"` + strings.Repeat("v", 200) + `" ]`)
	old.ExpectBytes(`30 len s"t"`)
}

// MQTT 5, 3.2.2-1 and 2.1.3-1; MQTT 3.1.1, 3.2.2: reserved bits are 0, byte for byte.
func TestReservedBitsAreSentAsTheStandardSays(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c", Version: 4, Resume: true})
	c.ExpectBytes(`20 02 00 00`)
	c.Disconnect()
	c = s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c", Version: 4, Resume: true})
	c.ExpectBytes(`20 02 01 00`)
	c.Subscribe("t", 2)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "1"})
	c.ExpectBytes(`32 len s"t" 0001 "1"`)
	c.SendAck(packets.Puback, 1)
	c.SendPublish(mqtttest.Publish{Topic: "else", QoS: 1, ID: 7})
	c.ExpectBytes(`40 02 0007`)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "2"})
	c.ExpectBytes(`34 len s"t" 0002 "2"`)
	c.SendPublish(mqtttest.Publish{Topic: "else", QoS: 2, ID: 8})
	c.ExpectBytes(`50 02 0008`)
	c.SendAck(packets.Pubrec, 2)
	c.ExpectBytes(`62 02 0002`)
	c.SendAck(packets.Pubcomp, 2)
	c.SendAck(packets.Pubrel, 8)
	c.ExpectBytes(`70 02 0008`)
	c.Send(`82 len 0009 s"u" 01`)
	c.ExpectBytes(`90 03 0009 01`)
	c.Send(`a2 len 000a s"u"`)
	c.ExpectBytes(`b0 02 000a`)
	c.Send(`c0 00`)
	c.ExpectBytes(`d0 00`)
}

// MQTT 5, 4.7.3-3: a topic name or filter may fill the 65,535 bytes that its length can tell.
func TestLongestTopic(t *testing.T) {
	s := start(t)
	long := strings.Repeat("ü", 65535/2) + "x"
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe(long, 1)
	c.SendPublish(mqtttest.Publish{Topic: long, Payload: "x"})
	c.ExpectPublish(mqtttest.Publish{Topic: long, Payload: "x"})
}

// MQTT 5, 3.1.3-5 and 3.1.3-2: every client ID of 1 to 23 letters and digits, and others too, each with its own session.
func TestClientIDs(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		const all = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		ids := []string{"0", "Z", all[:23], all[20:43], all[39:], "with space", "a/b+#$SYS", "größer", strings.Repeat("x", 1000)}
		for _, id := range ids {
			c := s.dial(t)
			if pk := c.Connect(mqtttest.Connect{ID: id, Version: version, Resume: true, Properties: forAnHour}); pk.SessionPresent {
				t.Errorf("%q finds a session", id)
			}
			c.Subscribe("of/"+id[:1], 1)
			c.Disconnect()
		}
		for _, id := range ids {
			if pk := s.dial(t).Connect(mqtttest.Connect{ID: id, Version: version, Resume: true}); !pk.SessionPresent {
				t.Errorf("%q does not find its session", id)
			}
			s.connect(t, mqtttest.Connect{ID: id, Version: version}).Disconnect()
		}
	})
}

// MQTT 5, 3.1.2-28, 4.12.0-6 and 3.14.2-2: what was not asked for, and what only a client may send, does not come.
func TestNothingUnaskedInConnack(t *testing.T) {
	s := start(t)
	for _, properties := range []string{``, `19 00`} {
		p := s.dial(t).Connect(mqtttest.Connect{ID: "c", Properties: properties}).Properties
		if p.ResponseInfo != "" || p.AuthenticationMethod != "" || len(p.AuthenticationData) != 0 || p.ServerReference != "" {
			t.Errorf("%q: connack %+v", properties, p)
		}
	}
	first := s.connect(t, keep("same"))
	s.connect(t, keep("same"))
	pk := first.Expect(packets.Disconnect)
	if pk.ReasonCode != 0x8E || pk.Properties.SessionExpiryIntervalFlag {
		t.Errorf("disconnect %+v", pk)
	}
}

// MQTT 5, 3.1.3-1 and 3.1.2-9: the fields of a CONNECT in their order, all of them and any of them.
func TestFieldsOfConnect(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, what)
		return nil
	}
	s := startWith(t, &decider{
		connect: func(id, user string, password []byte) error {
			return note(fmt.Sprintf("%s %q %q %t", id, user, password, password == nil))
		},
		publish: func(topic string) error { return note("will " + topic) },
	})
	f := func(o mqtttest.Connect, want ...string) {
		t.Helper()
		s.connect(t, o).Disconnect()
		mu.Lock()
		defer mu.Unlock()
		defer func() { seen = nil }()
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("%+v: seen %v, want %v", o, seen, want)
		}
	}
	will := &mqtttest.Publish{Topic: "w", Payload: "p"}
	for _, v := range []byte{4, 5} {
		f(mqtttest.Connect{ID: "c", Version: v}, `c "" "" true`)
		f(mqtttest.Connect{ID: "c", Version: v, UserName: "me"}, `c "me" "" true`)
		f(mqtttest.Connect{ID: "c", Version: v, UserName: "me", Password: "pw"}, `c "me" "pw" false`)
		f(mqtttest.Connect{ID: "c", Version: v, UserName: "me", Password: "pw", Will: will}, `c "me" "pw" false`, `will w`)
		f(mqtttest.Connect{ID: "c", Version: v, Will: will}, `c "" "" true`, `will w`)
	}
	f(mqtttest.Connect{ID: "c", Password: "pw"}, `c "" "pw" false`) // MQTT 5 allows a password alone (3.1.2.9)
}
