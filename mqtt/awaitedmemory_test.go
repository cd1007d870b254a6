package mqtt

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// So many acknowledgements may wait, and for so long, that a message each would fill the memory.
func TestAcknowledgementsThatWaitForTheUpstreamDoNotHoldTheirMessages(t *testing.T) {
	srv, _, u := upstreamed(t, AckRefuse, never)
	for _, qos := range []byte{1, 2} {
		payload := storedAndWaiting(srv, qos)
		w := u.waits(t, int(qos))[qos-1]
		for deadline := time.Now().Add(30 * time.Second); payload.Value() != nil; runtime.GC() {
			if time.Now().After(deadline) {
				t.Fatalf("QoS %d: the payload is held by an acknowledgement that waits", qos)
			}
		}
		w.Settled(lateLost)
	}
}

// storedAndWaiting has a publish stored whose connection is gone.
//
//go:noinline
func storedAndWaiting(srv *Server, qos byte) weak.Pointer[byte] {
	c := &conn{srv: srv, sess: &session{srv: srv}}
	c.acks.end()
	in, rec := newInbound(c, &wire.Publish{QoS: qos, PacketID: 1})
	in.number = c.acks.add(packets.Puback, 1, true)
	rec.Topic, rec.Payload = "t", make([]byte, 1<<20)
	payload := weak.Make(&rec.Payload[0])
	in.Durable(rec, nil)
	return payload
}
