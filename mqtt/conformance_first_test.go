package mqtt_test

import (
	"fmt"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// While nobody subscribes to anything the distributors are late. A first subscription gets nothing of what was acknowledged before it
// all the same, and everything that comes after it.
func TestFirstSubscriptionBeginsWhereItIsMade(t *testing.T) {
	for subscribed := range byte(3) {
		for published := range byte(3) {
			t.Run(fmt.Sprintf("%d of %d", subscribed, published), func(t *testing.T) {
				s := start(t)
				pub, sub := s.connect(t, mqtttest.Connect{ID: "pub"}), s.connect(t, mqtttest.Connect{ID: "sub", Properties: "11 00000064"})
				for round := range 8 {
					for i := range 5 {
						pub.Publish(mqtttest.Publish{Topic: "x", Payload: fmt.Sprintf("before %d.%d", round, i), QoS: published})
					}
					pub.Publish(mqtttest.Publish{Topic: "x", Payload: "the last before", QoS: 1}) // those of QoS 0 before it are in the log
					sub.Subscribe("x", subscribed)
					after := fmt.Sprintf("after %d", round)
					pub.Publish(mqtttest.Publish{Topic: "x", Payload: after, QoS: published})
					sub.Receive(mqtttest.Publish{Topic: "x", Payload: after, QoS: min(subscribed, published)})
					sub.Unsubscribe("x")
				}
			})
		}
	}
}
