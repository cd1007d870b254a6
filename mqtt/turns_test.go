package mqtt_test

import (
	"fmt"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Connections of one client ID that come at the same time have one after the other their session and their will: each that
// is accepted and goes publishes its own, once (MQTT 5, 3.1.2-8).
func TestConcurrentConnectsPublishEachWillOnce(t *testing.T) {
	const ids, each = 20, 5
	s := start(t)
	for _, mode := range []struct {
		name string
		o    mqtttest.Connect
	}{
		{"clean", mqtttest.Connect{}},
		{"clean, session kept", mqtttest.Connect{Properties: forAnHour}},
		{"resumed", mqtttest.Connect{Properties: forAnHour, Resume: true}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			sub := s.connect(t, mqtttest.Connect{ID: "sub"})
			sub.Subscribe("will/#", 0)
			var all []*mqtttest.Client
			for range ids * each {
				all = append(all, s.dial(t))
			}
			for i, c := range all {
				o := mode.o
				o.ID = fmt.Sprint(mode.name, i/each)
				o.Will = &mqtttest.Publish{Topic: "will/" + fmt.Sprint(i), QoS: 1}
				c.SendConnect(o)
			}
			for _, c := range all {
				c.ExpectConnack(0)
			}
			for _, c := range all {
				c.Close()
			}
			got := make(map[string]bool)
			for range all {
				pk := sub.Expect(3)
				if got[pk.TopicName] {
					t.Fatalf("%s twice", pk.TopicName)
				}
				got[pk.TopicName] = true
			}
			s.connect(t, mqtttest.Connect{ID: "end"}).Publish(mqtttest.Publish{Topic: "will/end", QoS: 1})
			sub.Receive(mqtttest.Publish{Topic: "will/end"})
			sub.Disconnect()
		})
	}
}
