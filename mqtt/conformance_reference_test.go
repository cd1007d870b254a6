package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 4.13: a server that goes tells where another one is. MQTT 3.1.1 has no such packet.
func TestServerReferenceAtShutdown(t *testing.T) {
	s := start(t, func(cfg *mqtt.Config) { cfg.ServerReference = "other.example:1883" })
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	s.stop(t)
	if pk := c.Expect(packets.Disconnect); pk.ReasonCode != 0x9C || pk.Properties.ServerReference != "other.example:1883" {
		t.Errorf("reason 0x%02x, server reference %q", pk.ReasonCode, pk.Properties.ServerReference)
	}
	c.ExpectClosed()
	old.ExpectClosed()
}

// MQTT 5, 4.13: a server whose clients belong elsewhere for good says so to whoever connects. A client that asks with MQTT 3.1.1
// is told that there is no service.
func TestServerThatHasMovedRefusesClients(t *testing.T) {
	s := start(t, func(cfg *mqtt.Config) { cfg.ServerReference, cfg.ServerMoved = "other.example:1883", true })
	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c"})
	if pk := c.ExpectConnack(0x9D); pk.Properties.ServerReference != "other.example:1883" {
		t.Errorf("server reference %q", pk.Properties.ServerReference)
	}
	c.ExpectClosed()
	old := s.dial(t)
	old.SendConnect(mqtttest.Connect{ID: "old", Version: 4})
	old.ExpectConnack(0x03)
	old.ExpectClosed()
}

// MQTT 5, 3.1.2-28 and 3.2.2.3.15: response information is told to who asks for it, and to nobody else.
func TestResponseInformation(t *testing.T) {
	s := start(t, func(cfg *mqtt.Config) { cfg.ResponseTopicPrefix = "answers/" })
	f := func(properties, want string) {
		t.Helper()
		ack := s.dial(t)
		if got := ack.Connect(mqtttest.Connect{ID: "asks", Properties: properties}).Properties.ResponseInfo; got != want {
			t.Errorf("%q told for %q, want %q", got, properties, want)
		}
	}
	f(`19 01`, "answers/asks")
	f(`19 00`, "")
	f(``, "")
}
