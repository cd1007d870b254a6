package wire_test

import (
	"bytes"
	"errors"
	"testing"
	"testing/iotest"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

var limits = wire.Limits{Connect: 4 << 10, Packet: 1 << 20}

func connect(t testing.TB, state string) []byte {
	switch state {
	case "v5":
		return mqtttest.Bytes(t, `10 len s"MQTT" 05 02 003c 00 s"x"`)
	case "v4":
		return mqtttest.Bytes(t, `10 len s"MQTT" 04 02 003c s"x"`)
	}
	return nil
}

func TestReadRefusesMalformedPackets(t *testing.T) {
	for _, m := range mqtttest.MalformedPackets(t) {
		in := append(connect(t, m.State), m.Bytes...)
		d := wire.NewDecoder(bytes.NewReader(in), limits)
		if m.State != "first" {
			if _, err := d.Read(); err != nil {
				t.Fatalf("connect: %v", err)
			}
		}
		p, err := d.Read()
		e, ok := errors.AsType[*wire.Error](err)
		if !ok {
			t.Errorf("%s %s (%s): got %v, %v; want reason 0x%02X", m.State, m.Name, m.Clause, p, err, m.Reason)
			continue
		}
		if e.Code.Code != m.Reason {
			t.Errorf("%s %s (%s): %v; want reason 0x%02X", m.State, m.Name, m.Clause, err, m.Reason)
		}
		okVersion := e.Version == 0 || e.Version == wire.Version311
		switch m.Answer {
		case "c5", "d5":
			okVersion = e.Version == wire.Version5
		case "c4":
			okVersion = e.Version == wire.Version311
		}
		if !okVersion {
			t.Errorf("%s %s (%s): %v to be told in version %d; want %s", m.State, m.Name, m.Clause, err, e.Version, m.Answer)
		}
	}
}

// A byte at a time must change nothing, and a packet that stops early is never an orderly end.
func TestReadRefusesMalformedPacketsByteByByte(t *testing.T) {
	for _, m := range mqtttest.MalformedPackets(t) {
		in := append(connect(t, m.State), m.Bytes...)
		d := wire.NewDecoder(iotest.OneByteReader(bytes.NewReader(in)), limits)
		if m.State != "first" {
			if _, err := d.Read(); err != nil {
				t.Fatalf("connect: %v", err)
			}
		}
		_, err := d.Read()
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code.Code != m.Reason {
			t.Errorf("%s %s (%s): %v; want reason 0x%02X", m.State, m.Name, m.Clause, err, m.Reason)
		}
	}
}
