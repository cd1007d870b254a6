package mqtt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Subscribers that never read, at QoS 0 and 1, hold no more memory than their output may, and who reads is served all the time.
func TestSubscribersThatNeverReadHoldBoundedMemory(t *testing.T) {
	const stuck, n, size, all = 8, 400, 32 << 10, 512 << 10
	g := limited(t, func(c *mqtt.Config) {
		c.OutputBuffer, c.OutputMemory = 128<<10, all
		c.WriteTimeout = unit.Duration(10 * 60e9)
	})
	for i := range stuck {
		c := g.connect(t, mqtttest.Connect{ID: fmt.Sprint("stuck", i)})
		c.Subscribe("t", byte(i%2))
	}
	reader := g.connect(t, mqtttest.Connect{ID: "reader"})
	reader.Subscribe("t", 1)
	pub := g.connect(t, mqtttest.Connect{ID: "pub"})
	payload := strings.Repeat("x", size) // 12.5 MiB for each: more than both ends of its socket hold
	for i := range n {
		pub.ExpectAck(packets.Puback, pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: msg(i) + payload}), 0)
		pk := reader.Expect(packets.Publish)
		if got := strings.TrimRight(string(pk.Payload), "x"); got != msg(i) {
			t.Fatalf("the reader got %q, want %q", got, msg(i))
		}
		reader.SendAck(packets.Puback, pk.PacketID)
		if held := g.metric(t, "output_bytes", ""); held > all+(stuck+1)*(size+100) {
			t.Fatalf("%v bytes of output are held after %d messages", held, i)
		}
	}
	if g.metric(t, "dropped_total", "buffer_full") == 0 {
		t.Error("nothing was dropped at QoS 0: the sockets took it all")
	}
}
