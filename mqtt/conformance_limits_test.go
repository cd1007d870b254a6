package mqtt_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 3.1.2-21 and 3.2.2-21: the server's keep alive counts, not the client's.
func TestServerKeepAliveIsEnforced(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *mqtt.Config) { c.MaxKeepAlive = unit.Duration(time.Second) })
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	began := time.Now()
	c.ExpectDisconnect(0x8D)
	if d := time.Since(began); d < time.Second || d > 20*time.Second {
		t.Errorf("closed after %v, want about 1.5 s", d)
	}
}

func TestSubscriptionLimit(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.MaxSubscriptions = 2 })
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("a", 1)
	c.Subscribe("b", 1)
	if reason := c.ExpectSuback(c.SendSubscribe("c", 1)); reason != 0x97 {
		t.Errorf("third subscription: 0x%02x, want 0x97", reason)
	}
	c.Subscribe("b", 2) // one that is there may be replaced
	c.Unsubscribe("a")
	c.Subscribe("c", 1)

	old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	old.Send(`82 len 0001 s"a" 00 s"b" 01 s"c" 02`)
	old.ExpectBytes(`90 len 0001 00 01 80`)
}

func TestRetainedLimit(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.MaxRetained = 2 })
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	for _, topic := range []string{"a", "b", "a"} {
		c.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: "x"})
	}
	id := c.SendPublish(mqtttest.Publish{Topic: "c", QoS: 1, Retain: true, Payload: "x"})
	c.ExpectAck(packets.Puback, id, 0x97)
	c.Publish(mqtttest.Publish{Topic: "a", QoS: 1, Retain: true})
	c.Publish(mqtttest.Publish{Topic: "c", QoS: 1, Retain: true, Payload: "x"})
}

// The expiry that a DISCONNECT asks for is cut as that of a CONNECT is.
func TestSessionExpiryLimit(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.SessionExpiryMax = unit.Duration(time.Minute) })
	c := s.connect(t, mqtttest.Connect{ID: "c", Properties: forAnHour})
	c.Send(`e0 len 00 [ 11 ffffffff ]`)
	c.ExpectClosed()
	s.connect(t, mqtttest.Connect{ID: "old", Version: 4, Resume: true}).Disconnect()
	s.stop(t)
	s.pass(2 * time.Minute)
	s.run(t)
	for _, o := range []mqtttest.Connect{{ID: "c", Resume: true}, {ID: "old", Version: 4, Resume: true}} {
		if s.dial(t).Connect(o).SessionPresent {
			t.Errorf("the session of %s has outlived session_expiry_max", o.ID)
		}
	}
}

// A client of 3.1.1 knows no Receive Maximum: it is slowed, not cut off.
func TestReceiveMaximumSlowsOldClients(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ReceiveMaximum = 3 })
	c := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	const n = 200
	for i := range n {
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: uint16(i + 1), Payload: strings.Repeat("x", 300)})
	}
	for i := range n {
		c.ExpectAck(packets.Puback, uint16(i+1), 0)
	}
}

func TestConnectionLimit(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.Listeners[0].MaxConnections = 2 })
	one := s.connect(t, mqtttest.Connect{ID: "1"})
	s.connect(t, mqtttest.Connect{ID: "2"})
	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "3"})
	if pk, err := c.TryNext(30 * time.Second); err == nil && (pk.FixedHeader.Type != packets.Connack || pk.ReasonCode < 0x80) {
		t.Errorf("third connection: %+v", pk)
	}
	c.Close()
	one.Disconnect()
	for end := time.Now().Add(30 * time.Second); ; { // the place is free some time after the end of its connection
		c := s.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "3"})
		if pk, err := c.TryNext(30 * time.Second); err == nil && pk.ReasonCode == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the place of a closed connection stays taken")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// One subscriber that does not read stalls nobody, not even its own take-over; what it gets at QoS 1 is complete.
func TestStuckSubscriberStallsNobody(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.OutputBuffer = 64 << 10 })
	stuck := s.connect(t, keep("stuck"))
	stuck.Subscribe("t/#", 1)
	other := s.connect(t, mqtttest.Connect{ID: "other"})
	other.Subscribe("t/#", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	const n = 600
	payload := strings.Repeat("x", 32<<10) // 19 MiB: more than the sockets hold
	for i := range n {
		for _, qos := range []byte{0, 1} {
			id := pub.SendPublish(mqtttest.Publish{Topic: fmt.Sprint("t/", qos), QoS: qos, Payload: msg(i) + payload})
			if qos == 1 {
				pub.ExpectAck(packets.Puback, id, 0)
			}
		}
		for got := false; !got; { // a prompt reader gets each QoS 1 message, and the QoS 0 ones that its buffer has room for
			pk := other.Expect(packets.Publish)
			if pk.FixedHeader.Qos == 1 {
				got = true
				other.SendAck(packets.Puback, pk.PacketID)
			}
		}
	}
	began := time.Now()
	stuck2 := s.resume(t, keep("stuck"))
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("the take-over of a stuck connection took %v", d)
	}
	for i := 0; i < n; {
		pk := stuck2.Expect(packets.Publish)
		if pk.FixedHeader.Qos == 0 {
			continue
		}
		if got := strings.TrimRight(string(pk.Payload), "x"); got != msg(i) {
			t.Fatalf("got %q, want %q", got, msg(i))
		}
		stuck2.SendAck(packets.Puback, pk.PacketID)
		i++
	}
	stuck2.Ping()
}
