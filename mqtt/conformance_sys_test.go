package mqtt_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// The $SYS topics of Mosquitto are there, first as retained messages and then, when they change, live. No filter matches
// them that does not begin with $SYS, and nothing of them is stored.
func TestServerTopics(t *testing.T) {
	s := start(t, func(cfg *mqtt.Config) { cfg.SysInterval = unit.Duration(100 * time.Millisecond) })
	all := s.connect(t, mqtttest.Connect{ID: "all"})
	all.Subscribe("#", 1)
	all.Subscribe("+/broker/uptime", 1)
	all.Subscribe("+/broker/#", 1)
	for _, version := range []byte{4, 5} {
		c := s.connect(t, mqtttest.Connect{ID: "c", Version: version})
		c.Publish(mqtttest.Publish{Topic: "t", Payload: "four", QoS: 1})
		all.Receive(mqtttest.Publish{Topic: "t", Payload: "four", QoS: 1})
		c.Subscribe("$SYS/#", 2)
		got, live := map[string]string{}, map[string]string{}
		var other *mqtttest.Client
		for live["clients/connected"] == "" || live["uptime"] == "" {
			pk := c.Expect(packets.Publish)
			name, ok := strings.CutPrefix(pk.TopicName, "$SYS/broker/")
			if !ok || pk.FixedHeader.Qos != 0 {
				t.Fatalf("%q at QoS %d", pk.TopicName, pk.FixedHeader.Qos)
			}
			if pk.FixedHeader.Retain {
				got[name] = string(pk.Payload)
				continue
			}
			if live[name] = string(pk.Payload); other == nil {
				other = s.connect(t, mqtttest.Connect{ID: "other"}) // clients/connected changes
			}
		}
		other.Close()
		for _, name := range []string{
			"version", "uptime", "clients/connected", "clients/total", "clients/disconnected", "clients/maximum", "clients/expired",
			"messages/received", "messages/sent", "publish/messages/received", "publish/messages/sent", "publish/messages/dropped",
			"publish/bytes/received", "publish/bytes/sent", "bytes/received", "bytes/sent", "subscriptions/count",
			"shared_subscriptions/count", "retained messages/count", "load/messages/received/1min", "load/bytes/sent/15min",
			"load/publish/sent/5min", "load/connections/1min",
		} {
			if got[name] == "" {
				t.Errorf("$SYS/broker/%s is missing", name)
			}
		}
		if !strings.HasPrefix(got["version"], "forebay ") || !strings.HasSuffix(got["uptime"], " seconds") {
			t.Errorf("version %q, uptime %q", got["version"], got["uptime"])
		}
		c.Close()
	}
	one := s.connect(t, mqtttest.Connect{ID: "one"})
	one.Subscribe("$SYS/broker/+", 0)
	seen := map[string]bool{}
	for !seen["version"] || !seen["uptime"] {
		seen[strings.TrimPrefix(one.Expect(packets.Publish).TopicName, "$SYS/broker/")] = true
	}
	if len(seen) != 2 {
		t.Errorf("$SYS/broker/+ matched %v", seen)
	}
	all.Ping() // it got none of them
}

func TestNoServerTopicsWhenSwitchedOff(t *testing.T) {
	s := start(t, func(cfg *mqtt.Config) { cfg.SysInterval = unit.Duration(100 * time.Millisecond) })
	c := s.connect(t, mqtttest.Connect{ID: "c", Properties: `11 00000e10`})
	c.Subscribe("$SYS/broker/version", 1)
	c.Expect(packets.Publish)
	s.cfg.SysInterval = 0
	s.restart(t)
	c = s.connect(t, mqtttest.Connect{ID: "c", Resume: true, Properties: `11 00000e10`})
	c.Subscribe("$SYS/#", 1)
	c.Ping()
}
