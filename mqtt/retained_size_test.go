package mqtt

import (
	"strconv"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// Retained messages have a limit in bytes, and those that are not durable yet count.
func TestRetainedMessagesHaveALimitInBytes(t *testing.T) {
	const each = 10_000
	srv, log := faulty(t, func(c *Config, _ *Options) { c.MaxRetainedSize = 10 * (each + 1000) })
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	payload := strings.Repeat("x", each)
	send := func(topic, payload string, qos byte) uint16 {
		return c.SendPublish(mqtttest.Publish{Topic: topic, QoS: qos, Retain: true, Payload: payload})
	}
	log.set(func() { log.hold = true })
	for i := range 13 {
		send("t/"+strconv.Itoa(i), payload, byte(i%3))
	}
	c.ExpectNothing(1) // nothing is durable
	log.set(func() { log.hold = false })
	refused := 0
	for i := range 13 {
		if i%3 == 0 {
			continue
		}
		kind := byte(packets.Puback)
		if i%3 == 2 {
			kind = packets.Pubrec
		}
		if pk := c.Expect(kind); pk.ReasonCode == 0x97 {
			refused++
		}
	}
	if n := srv.retained.len(); n != 10 || refused != 2 { // and one of QoS 0
		t.Errorf("%d retained, %d refused, want 10 and 2", n, refused)
	}
	c.ExpectAck(packets.Puback, send("t/0", payload, 1), 0) // in place of another
	c.ExpectAck(packets.Puback, send("t/new", payload, 1), 0x97)
	c.ExpectAck(packets.Puback, send("t/0", "", 1), 0)
	log.set(func() { log.refuse = refuseRecords(spool.ErrFull) })
	c.ExpectAck(packets.Puback, send("t/new", payload, 1), 0x97)
	log.set(func() { log.refuse = nil })
	c.ExpectAck(packets.Puback, send("t/new", payload, 1), 0) // what was refused is not reserved any more
	srv.retained.mu.Lock()
	defer srv.retained.mu.Unlock()
	if srv.retained.reserved != (reservation{}) || srv.retained.size > 10*(each+1000) {
		t.Errorf("reserved %+v, size %d", srv.retained.reserved, srv.retained.size)
	}
}
