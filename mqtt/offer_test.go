package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// offering is a server with two listeners, the first of which has its own offer.
func offering(t *testing.T, maxQoS int, retain bool) *server {
	return start(t, func(c *mqtt.Config) {
		c.Listeners[0].MaxQoS, c.Listeners[0].RetainAvailable = &maxQoS, &retain
	})
}

// MQTT 5, 3.2.2-9 to 3.2.2-12: a maximum QoS is told, a publish above it ends the connection with 0x9B, a will above it is refused
// so, and subscriptions of every QoS are accepted.
func TestMaximumQoSIsToldAndKept(t *testing.T) {
	for limit := range byte(2) {
		s := offering(t, int(limit), true)
		c := s.dial(t)
		if p := c.Connect(mqtttest.Connect{ID: "c"}).Properties; !p.MaximumQosFlag || p.MaximumQos != limit {
			t.Errorf("maximum QoS %d, told %v; want %d", p.MaximumQos, p.MaximumQosFlag, limit)
		}
		if got := c.ExpectSuback(c.SendSubscribe("t", 2)); got != limit {
			t.Errorf("granted %d, want %d", got, limit)
		}
		c.Publish(mqtttest.Publish{Topic: "t", QoS: limit, Payload: "fits"})
		c.Receive(mqtttest.Publish{Topic: "t", QoS: limit, Payload: "fits"})
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: limit + 1, Payload: "too high"})
		c.ExpectDisconnect(0x9B)

		c = s.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "will", Will: &mqtttest.Publish{Topic: "t", QoS: limit + 1}})
		c.ExpectConnack(0x9B)
		c.ExpectClosed()

		old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
		old.Publish(mqtttest.Publish{Topic: "t", QoS: limit, Payload: "fits"})
		old.SendPublish(mqtttest.Publish{Topic: "t", QoS: limit + 1, Payload: "too high"})
		old.ExpectClosed()
		old = s.dial(t)
		old.SendConnect(mqtttest.Connect{ID: "will", Version: 4, Will: &mqtttest.Publish{Topic: "t", QoS: limit + 1}})
		old.ExpectClosed()
	}
}

// MQTT 5, 3.2.2-13 and 3.2.2-14: that there are no retained messages is told, a retained publish ends the connection with 0x9A, a
// retained will is refused so, and a subscription gets none.
func TestRetainedMessagesCanBeUnavailable(t *testing.T) {
	s := offering(t, 2, false)
	other := mqtttest.DialWebSocket(t, s.ws, "/mqtt") // of a listener where there are
	other.Connect(mqtttest.Connect{ID: "other"})
	other.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "kept", Retain: true})

	c := s.dial(t)
	if p := c.Connect(mqtttest.Connect{ID: "c"}).Properties; !p.RetainAvailableFlag || p.RetainAvailable != 0 {
		t.Errorf("retain available %d, told %v; want 0", p.RetainAvailable, p.RetainAvailableFlag)
	}
	c.Subscribe("#", 1)
	other.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "live"})
	c.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "live"})
	for qos := range byte(3) {
		c := s.connect(t, mqtttest.Connect{ID: "pub"})
		c.SendPublish(mqtttest.Publish{Topic: "r", QoS: qos, Payload: "x", Retain: true})
		c.ExpectDisconnect(0x9A)
		old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
		old.SendPublish(mqtttest.Publish{Topic: "r", QoS: qos, Payload: "x", Retain: true})
		old.ExpectClosed()
	}
	w := s.dial(t)
	w.SendConnect(mqtttest.Connect{ID: "will", Will: &mqtttest.Publish{Topic: "t", Retain: true}})
	w.ExpectConnack(0x9A)
	w.ExpectClosed()
	c.ExpectNothing(0)
	c.Ping()
	other.Subscribe("#", 0)
	other.Receive(mqtttest.Publish{Topic: "t", Payload: "kept", Retain: true})
}

// A listener that says nothing has the offer of all.
func TestOfferOfAllListeners(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.MaxQoS, c.RetainAvailable = 1, false })
	c := s.dial(t)
	if p := c.Connect(mqtttest.Connect{ID: "c"}).Properties; p.MaximumQos != 1 || p.RetainAvailable != 0 {
		t.Errorf("maximum QoS %d, retain available %d; want 1 and 0", p.MaximumQos, p.RetainAvailable)
	}
}

// MQTT 5, 3.1.2-24: the CONNACK for a client that takes only small packets says what is not the default and nothing more; where
// even that does not fit, the client is refused with 0x95, or closed, and not left without an answer. A reason that does not fit
// is left out.
func TestConnackFitsTheClient(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	pk := c.Connect(mqtttest.Connect{ID: "c", Properties: `27 00000014`})
	if pk.FixedHeader.Remaining+2 > 0x14 || pk.Properties.ReceiveMaximum == 0 || pk.Properties.TopicAliasMaximum == 0 {
		t.Errorf("connack %+v", pk)
	}
	c.Ping()

	c = s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c", Properties: `27 00000005`})
	c.ExpectConnack(0x95)
	c.ExpectClosed()
	c = s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c", Properties: `27 00000004`})
	c.ExpectClosed()

	c = s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c", Properties: `27 00000008`, Will: &mqtttest.Publish{Topic: "$SYS/x"}})
	if pk := c.Expect(packets.Connack); pk.ReasonCode != 0x90 || pk.FixedHeader.Remaining > 6 {
		t.Errorf("connack %+v", pk)
	}
}
