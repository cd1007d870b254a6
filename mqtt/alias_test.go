package mqtt

import (
	"net"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// A message that finds no room in the output does not teach the client its alias.
func TestDroppedMessageGivesNoAlias(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	srv := &Server{outputLimit: 60}
	c := &conn{srv: srv, peer: wire.Peer{Version: wire.Version5}, told: toldAliases{max: 2}}
	c.out = output{c: here, on: c, shared: new(outputMemory)}
	enc := new(encoder)
	send := func(topic, payload string, sent bool, known int) {
		t.Helper()
		enc.reset(&spool.Record{Topic: topic, Payload: []byte(payload), ReceivedAt: 1}, time.Unix(1, 0))
		packet, at := enc.encode(wire.Version5, how{})
		if got := c.deliver(enc, packet, at, 0, false); got != sent || len(c.told.of) != known {
			t.Errorf("%s: sent %t, %d aliases; want %t, %d", topic, got, len(c.told.of), sent, known)
		}
	}
	send("first", "0123456789", true, 1)
	send("second", "0123456789012345678901234567890123456789", false, 1)
	send("third", "", true, 2)
	send("first", "", true, 2)
	if got := c.told.of["third"]; got != 2 {
		t.Errorf("third has alias %d, want 2", got)
	}
}
