package mqtt

import (
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What was acknowledged to its publisher before a SUBSCRIBE does not come as if it were new, even when the distributor has
// not got to it yet; a new shared subscription gets none of it either.
func TestSubscriptionBeginsAfterWhatIsAcknowledged(t *testing.T) {
	srv, _ := faulty(t, nil)
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	busy := &srv.lanes.list[0].mu
	for _, filter := range []string{"t", "$share/g/t"} {
		for qos := range byte(3) {
			sub := join(t, srv, mqtttest.Connect{ID: "sub"})
			busy.Lock() // the distributor waits
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "old"})
			sub.Subscribe(filter, qos)
			busy.Unlock()
			pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "new"})
			sub.Receive(mqtttest.Publish{Topic: "t", QoS: qos, Payload: "new"})
			sub.Ping()
			sub.Disconnect()
		}
	}
}
