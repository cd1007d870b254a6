package mqtttest

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
)

// serve answers what a client sends: it reads exactly want and writes answer, both in the notation of Bytes.
func serve(t *testing.T, steps ...string) *Client {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		defer server.Close()
		for i := 0; i < len(steps); i += 2 {
			want := Bytes(t, steps[i])
			got := make([]byte, len(want))
			if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("server got %x (%v), want %x", got, err, want)
				return
			}
			if _, err := server.Write(Bytes(t, steps[i+1])); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return NewClient(t, client)
}

func TestClientSpeaksVersion5(t *testing.T) {
	c := serve(
		t,
		`10 len s"MQTT" 05 ee 003c [ 21 0005 ] s"id" [ 18 00000001 ] s"w" s"bye" s"me" s"pw"`, `20 len 01 00 [ 13 000a ]`,
		`82 len 0001 [ 0b 05 ] s"a/#" 01`, `90 len 0001 00 01`,
		`32 len s"a/b" 0002 [ 02 0000000a ] "hello"`, `40 02 0002`,
		`c000`, `d000`,
		`a2 len 0003 00 s"a/#"`, `b0 len 0003 00 11`,
		``, `34 len s"a/b" 0007 [ 0b 05 ] "hello"`,
		`50 02 0007`, `62 02 0007`,
		`70 02 0007`, `e0 01 8e`,
	)
	pk := c.Connect(Connect{
		ID: "id", KeepAlive: 60, UserName: "me", Password: "pw", Properties: `21 0005`,
		Will: &Publish{Topic: "w", Payload: "bye", QoS: 1, Retain: true, Properties: `18 00000001`},
	})
	if !pk.SessionPresent || pk.Properties.ServerKeepAlive != 10 {
		t.Errorf("connack: %+v", pk)
	}
	c.Subscribe("a/#", 1, `0b 05`)
	c.Publish(Publish{Topic: "a/b", Payload: "hello", QoS: 1, Properties: `02 0000000a`})
	c.Ping()
	if got := c.Unsubscribe("a/#"); got != 0x11 {
		t.Errorf("unsubscribe: 0x%02x", got)
	}
	pk = c.Receive(Publish{Topic: "a/b", Payload: "hello", QoS: 2})
	if len(pk.Properties.SubscriptionIdentifier) != 1 {
		t.Errorf("publish: %+v", pk)
	}
	c.ExpectDisconnect(0x8E)
}

func TestClientSpeaksVersion311(t *testing.T) {
	c := serve(
		t,
		`10 len s"MQTT" 04 00 0000 s"id"`, `20 02 01 00`,
		`82 len 0001 s"a" 02`, `90 len 0001 02`,
		`34 len s"a" 0002 "x"`, `50 02 0002`,
		`62 02 0002`, `70 02 0002`,
		`e000`, ``,
	)
	c.Connect(Connect{Version: 4, ID: "id", Resume: true})
	c.Subscribe("a", 2)
	c.Publish(Publish{Topic: "a", Payload: "x", QoS: 2})
	c.Disconnect()
}

func TestClientReadsPacketsInPieces(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		for _, b := range Bytes(t, `40 02 0001 d000`) {
			_, _ = server.Write([]byte{b})
		}
	}()
	c := NewClient(t, client)
	c.ExpectAck(packets.Puback, 1, 0)
	c.ExpectBytes(`d000`)
	c.ExpectClosed()
}
