package mqtt_test

import (
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// told reads a message with this topic and alias, an empty topic for one that the client knows, and acknowledges it.
func told(t *testing.T, sub *mqtttest.Client, topic, payload string, alias uint16) {
	t.Helper()
	pk := sub.Expect(packets.Publish)
	if pk.TopicName != topic || string(pk.Payload) != payload || pk.Properties.TopicAlias != alias ||
		pk.Properties.TopicAliasFlag != (alias != 0) {
		t.Fatalf("got %q to %q with alias %d, want %q to %q with alias %d",
			pk.Payload, pk.TopicName, pk.Properties.TopicAlias, payload, topic, alias)
	}
	sub.Finish(pk.FixedHeader.Qos, pk.PacketID)
}

// MQTT 5, 3.1.2-26 and 3.1.2-27: who does not ask for aliases gets none.
func TestServerSendsNoTopicAliasUnasked(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	for _, properties := range []string{``, `22 0000`} {
		sub := s.connect(t, mqtttest.Connect{ID: "sub", Properties: properties})
		sub.Subscribe("a/long/topic", 1)
		for i := range 5 {
			pub.Publish(mqtttest.Publish{Topic: "a/long/topic", QoS: 1, Payload: msg(i), Properties: `23 0001`})
			told(t, sub, "a/long/topic", msg(i), 0)
		}
		sub.Disconnect()
	}
}

// MQTT 5, 3.3.2.3.4: the first topics of a connection get an alias each, at every QoS, and are not repeated; others come in full.
func TestServerUsesTopicAliases(t *testing.T) {
	f := func(name string, most int, properties string, want uint16) {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(c *mqtt.Config) { c.TopicAliasMaximum = most })
			pub := s.connect(t, mqtttest.Connect{ID: "pub"})
			sub := s.connect(t, mqtttest.Connect{ID: "sub", Properties: properties})
			sub.Subscribe("#", 2)
			for qos := range byte(3) {
				for i := range uint16(4) {
					topic := fmt.Sprintf("plant/%d", i)
					pub.Publish(mqtttest.Publish{Topic: topic, QoS: qos, Payload: msg(int(i))})
					alias := i + 1
					if alias > want {
						alias = 0
					}
					shown := topic
					if qos > 0 && alias > 0 {
						shown = ""
					}
					told(t, sub, shown, msg(int(i)), alias)
				}
			}
			pub.Publish(mqtttest.Publish{Topic: "abc", QoS: 1}) // an alias would be no shorter
			told(t, sub, "abc", "", 0)
		})
	}
	f("none here", 0, `22 000a`, 0)
	f("fewer here", 2, `22 000a`, 2)
	f("fewer there", 10, `22 0003`, 3)
	f("the most there is", 65535, `22 ffff`, 4)
}

// MQTT 5, 3.3.2-7: aliases end with the connection. What is sent again, what waited and what is retained has them too.
func TestServersTopicAliasesEndWithTheConnection(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "kept", QoS: 1, Retain: true, Payload: "r"})
	sub := s.connect(t, keep("sub", `22 0001`))
	sub.Subscribe("telemetry", 2)
	pub.Publish(mqtttest.Publish{Topic: "telemetry", QoS: 1, Payload: "1"})
	told(t, sub, "telemetry", "1", 1)
	for _, qos := range []byte{1, 2} { // neither is acknowledged
		pub.Publish(mqtttest.Publish{Topic: "telemetry", QoS: qos, Payload: "sent"})
		sub.ExpectPublish(mqtttest.Publish{Topic: "", QoS: qos, Payload: "sent"})
	}
	sub.Close()
	pub.Publish(mqtttest.Publish{Topic: "telemetry", QoS: 2, Payload: "away"})

	sub = s.connect(t, keep("sub", `22 0001`))
	told(t, sub, "telemetry", "sent", 1)
	told(t, sub, "", "sent", 1)
	told(t, sub, "", "away", 1)
	sub.Subscribe("kept", 1)
	told(t, sub, "kept", "r", 0) // the only alias is given
	sub.Disconnect()

	sub = s.connect(t, mqtttest.Connect{ID: "other", Properties: `22 0001`})
	sub.Subscribe("$share/g/telemetry", 0)
	sub.Subscribe("kept", 0)
	told(t, sub, "kept", "r", 1)
	pub.Publish(mqtttest.Publish{Topic: "telemetry", QoS: 1, Payload: "2"})
	told(t, sub, "telemetry", "2", 0)
	pub.Publish(mqtttest.Publish{Topic: "kept", QoS: 1, Retain: true, Payload: "s"})
	told(t, sub, "", "s", 1)
}

// MQTT 5, 3.1.2-24: an alias that makes a message too large for its client is left out.
func TestTopicAliasFitsTheClient(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	sub := s.connect(t, mqtttest.Connect{ID: "sub", Properties: `22 0001 27 00000020`})
	sub.Subscribe("plant", 1)
	full := "123456789012345678901" // 32 bytes with a topic of 5, without its three
	pub.Publish(mqtttest.Publish{Topic: "plant", QoS: 0, Payload: full})
	told(t, sub, "plant", full, 0)
	pub.Publish(mqtttest.Publish{Topic: "plant", QoS: 0, Payload: "1"})
	told(t, sub, "plant", "1", 1)
	pub.Publish(mqtttest.Publish{Topic: "plant", QoS: 0, Payload: full})
	told(t, sub, "", full, 1)
}
