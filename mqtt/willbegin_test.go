package mqtt

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// While nobody has subscribed, the distributors lag behind the log. Who subscribes then has a retained will from the store, and not from
// the log a second time.
func TestSubscriptionsBeginBehindAWill(t *testing.T) {
	srv, log := faulty(t, nil)
	join(t, srv, mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "w", Payload: "bye", Retain: true}}).Close()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		acked := 0
		for _, l := range srv.lanes.list {
			acked += int(l.acked.Load())
		}
		if acked == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("subscriptions begin at %d, want 1, with %d records in the log and %d retained", acked, log.count(), srv.retained.len())
		}
	}
}
