package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// A QoS 2 publish whose identifier is stored is a repetition, whatever it looks like: a PUBREC of 0x80 or more would free
// the identifier at the client only (MQTT 5, 4.3.3-4), and its next message, taken for a repetition, would be acknowledged
// and not stored.
func TestRepetitionIsNotRefused(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ReceiveMaximum = 1; c.MaxRetained = 1 })
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t/#", 2)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	send := func(p mqtttest.Publish, reason byte) {
		t.Helper()
		p.ID, p.QoS = 1, 2
		c.SendPublish(p)
		c.ExpectAck(packets.Pubrec, 1, reason)
	}
	send(mqtttest.Publish{Topic: "t/a", Payload: "1"}, 0)
	send(mqtttest.Publish{Topic: "t/a", Payload: "1", Dup: true}, 0) // at a full window
	send(mqtttest.Publish{Topic: "$SYS/x"}, 0)
	c.SendAck(packets.Pubrel, 1)
	c.ExpectAck(packets.Pubcomp, 1, 0)
	send(mqtttest.Publish{Topic: "$SYS/x"}, 0x90)
	send(mqtttest.Publish{Topic: "t/a", Payload: "2"}, 0)
	c.SendAck(packets.Pubrel, 1)
	c.ExpectAck(packets.Pubcomp, 1, 0)
	sub.Receive(mqtttest.Publish{Topic: "t/a", Payload: "1", QoS: 2})
	sub.Receive(mqtttest.Publish{Topic: "t/a", Payload: "2", QoS: 2})
	sub.Ping()
}
