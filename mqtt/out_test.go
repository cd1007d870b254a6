package mqtt

import (
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// All connections together have one bound for what waits for them; nothing at QoS 1 is lost to it, and nothing is left in
// the account when they are gone.
func TestOutputOfAllConnectionsIsBounded(t *testing.T) {
	srv, _ := faulty(t, func(cfg *Config, _ *Options) { cfg.OutputMemory = 64 << 10 })
	const clients, messages = 20, 100
	var subs []*mqtttest.Client
	for i := range clients {
		c := join(t, srv, mqtttest.Connect{ID: string(rune('a' + i))})
		c.Subscribe("t", 1)
		subs = append(subs, c)
	}
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	payload := strings.Repeat("x", 16<<10)
	for range messages {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload})
		// One packet of each connection is beside the bound.
		if got, limit := srv.output.bytes.Load(), int64(64<<10+(clients+1)*(17<<10)); got > limit {
			t.Fatalf("%d bytes wait, more than %d", got, limit)
		}
	}
	for i, c := range subs {
		if i == 0 {
			c.Close() // with all of it unread
			continue
		}
		for range messages {
			c.Finish(1, c.Expect(packets.Publish).PacketID)
		}
		c.Disconnect()
	}
	pub.Disconnect()
	for end := time.Now().Add(30 * time.Second); srv.output.bytes.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are still counted", srv.output.bytes.Load())
		}
	}
}
