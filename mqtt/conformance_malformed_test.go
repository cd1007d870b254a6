package mqtt_test

import (
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Every packet of the corpus is refused with its reason, in the way that the connection allows, and the server lives on.
func TestMalformedPacketsAreRefused(t *testing.T) {
	s := start(t)
	for _, m := range mqtttest.MalformedPackets(t) {
		t.Run(m.State+" "+m.Name, func(t *testing.T) {
			c := s.dial(t)
			defer c.Close()
			switch m.State {
			case "v5":
				c.Connect(mqtttest.Connect{ID: "bad"})
			case "v4":
				c.Connect(mqtttest.Connect{ID: "bad", Version: 4})
			}
			c.SendBytes(m.Bytes)
			switch m.Answer {
			case "c5":
				c.ExpectConnack(m.Reason)
			case "c4":
				c.Version = 4
				c.ExpectConnack(map[byte]byte{0x84: 1, 0x85: 2}[m.Reason]) // MQTT 3.1.1, table 3.1
			case "d5":
				c.ExpectDisconnect(m.Reason)
			default:
				c.ExpectClosed()
			}
		})
	}
	both(t, func(t *testing.T, version byte) {
		c := s.connect(t, mqtttest.Connect{ID: "good", Version: version})
		c.Publish(mqtttest.Publish{Topic: "still/here", QoS: 2})
		c.Ping()
	})
}
