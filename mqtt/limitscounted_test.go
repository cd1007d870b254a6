package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What is told in CONNACK has its counter too: receive_maximum, max_qos, retain_available.
func TestLimitsOfTheOfferAreCounted(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) { c.ReceiveMaximum, c.MaxQoS, c.RetainAvailable = 2, 1, false })
	c := g.connect(t, mqtttest.Connect{ID: "c"})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2})
	c.ExpectDisconnect(0x9B)
	g.reached(t, "max_qos", 1)
	c = g.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "t", QoS: 2}})
	c.ExpectConnack(0x9B)
	g.reached(t, "max_qos", 2)
	c = g.connect(t, mqtttest.Connect{ID: "c"})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Retain: true})
	c.ExpectDisconnect(0x9A)
	g.reached(t, "retain_available", 1)
}

// Publishes of QoS 2 are outstanding until PUBREL: the third is one too many.
func TestReceiveMaximumIsCounted(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) { c.ReceiveMaximum = 2 })
	c := g.connect(t, mqtttest.Connect{ID: "c"})
	for range 2 {
		c.ExpectAck(packets.Pubrec, c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2}), 0)
	}
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2})
	c.ExpectDisconnect(0x93)
	g.reached(t, "receive_maximum", 1)
}

func TestLimitsOfSessionsAreCounted(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) { c.MaxSessions = 1 })
	g.connect(t, mqtttest.Connect{ID: "c"})
	for version, want := range map[byte]byte{4: 3, 5: 0x97} {
		c := g.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "more", Version: version})
		c.ExpectConnack(want)
	}
	g.reached(t, "max_sessions", 2)

	g = limited(t, func(c *mqtt.Config) { c.MaxSessionsSize = 1000 })
	c := g.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "big", Will: &mqtttest.Publish{Topic: "t", Payload: string(make([]byte, 2000))}})
	c.ExpectConnack(0x97)
	g.reached(t, "max_sessions_size", 1)
}
