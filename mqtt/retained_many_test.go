package mqtt

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// 100,000 retained topics reach a subscriber that reads slowly, each once, and nothing of them waits in memory: neither of QoS 0,
// of which live messages would be dropped, nor beyond the client's Receive Maximum.
func TestAllRetainedMessagesReachASlowSubscriber(t *testing.T) {
	const n = 100_000
	srv, _ := faulty(t, func(cfg *Config, _ *Options) { cfg.OutputBuffer = 32 << 10 })
	for i := range n {
		topic := fmt.Sprintf("site%d/device%d/state", i%100, i)
		srv.retained.apply(&spool.Record{Topic: topic, Payload: []byte(topic), QoS: 1, Retain: true, ReceivedAt: 1})
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for qos := range byte(2) {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			c := join(t, srv, mqtttest.Connect{ID: "slow", Properties: `21 0014`})
			c.Subscribe("#", qos)
			srv.mu.Lock()
			s := srv.sessions["slow"]
			srv.mu.Unlock()
			seen := make([]bool, n)
			before := heap()
			var most, grown int64
			for i := range n {
				pk := c.Expect(packets.Publish)
				var site, device int
				if _, err := fmt.Sscanf(pk.TopicName, "site%d/device%d/state", &site, &device); err != nil || seen[device] {
					t.Fatalf("%s: %v, or it came twice", pk.TopicName, err)
				}
				seen[device] = true
				if !pk.FixedHeader.Retain || string(pk.Payload) != pk.TopicName {
					t.Fatalf("%s: %+v", pk.TopicName, pk.FixedHeader)
				}
				if qos > 0 {
					c.SendAck(packets.Puback, pk.PacketID)
				}
				most = max(most, srv.output.bytes.Load())
				if i%(n/5) == n/10 {
					s.mu.Lock()
					waiting, window := s.waiting.len(), s.flights.window
					s.mu.Unlock()
					if waiting > 0 || window > 20 {
						t.Errorf("%d wait, %d are in flight", waiting, window)
					}
					grown = max(grown, heap()-before)
				}
			}
			c.Ping() // and nothing more
			c.Disconnect()
			if most > 64<<10 || grown > 4<<20 {
				t.Errorf("%d bytes of output waited, the heap grew by %d", most, grown)
			}
		})
	}
}
