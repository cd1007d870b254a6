package mqtt_test

import (
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What a client does that nobody would do who means well: it costs only that client, and is answered as the standard says.

func upgraded(t *testing.T, s *server) *mqtttest.WebSocket {
	t.Helper()
	ws, answer, err := mqtttest.Upgrade(s.ws, "/mqtt", "Sec-WebSocket-Protocol: mqtt")
	if err != nil || answer.StatusCode != 101 {
		t.Fatalf("upgrade: %v, %v", answer, err)
	}
	return ws
}

// A CONNECT in frames of one byte, with empty frames and pings between them, is a CONNECT.
func TestPacketInCrumbsOfFrames(t *testing.T) {
	s := start(t)
	ws := upgraded(t, s)
	packet := mqtttest.Bytes(t, `10 len s"MQTT" 05 02 0000 00 s"crumbs"`)
	for i := range packet {
		for _, part := range [][]byte{nil, packet[i : i+1]} {
			if err := ws.WriteFrame(mqtttest.FrameBinary, true, part); err != nil {
				t.Fatal(err)
			}
		}
		if err := ws.WriteFrame(mqtttest.FramePing, true, []byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	c := mqtttest.NewClient(t, ws)
	c.ExpectConnack(0)
	c.Ping()
}

// Frames that carry nothing do not make the time for the CONNECT longer.
func TestEmptyFramesAreNoConnect(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ConnectTimeout = unit.Duration(300 * time.Millisecond) })
	ws := upgraded(t, s)
	began := time.Now()
	for {
		err := ws.WriteFrame(mqtttest.FrameBinary, true, nil)
		if err == nil {
			err = ws.WriteFrame(mqtttest.FramePong, true, nil)
		}
		if err != nil {
			return // closed
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal("still open")
		}
	}
}

// Acknowledgements of what was never sent, of the wrong kind and again and again.
func TestStormOfAcknowledgements(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("t", 2)
	const storm = 5000
	for id := uint16(1); id <= storm; id++ {
		c.SendAck(packets.Puback, id)
		c.SendAck(packets.Pubcomp, id)
	}
	for id := uint16(1); id <= storm; id++ {
		c.SendAck(packets.Pubrel, id)
		c.ExpectAck(packets.Pubcomp, id, 0x92)
		c.SendAck(packets.Pubrec, id)
		c.ExpectAck(packets.Pubrel, id, 0x92)
	}
	p := s.connect(t, mqtttest.Connect{ID: "p"})
	for _, qos := range []byte{1, 2} {
		p.Publish(mqtttest.Publish{Topic: "t", QoS: qos})
		c.Receive(mqtttest.Publish{Topic: "t", QoS: qos})
	}
	c.Ping()
}

// A client of 3.1.1 may leave every identifier open, and close them in any order.
func TestEveryIdentifierOpen(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c", Version: 4})
	const all = 65535
	for first := 1; first <= all; first += 1000 {
		last := min(first+999, all)
		for id := first; id <= last; id++ {
			c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: uint16(id)})
		}
		for id := first; id <= last; id++ {
			c.ExpectAck(packets.Pubrec, uint16(id), 0)
		}
	}
	for id := all; id > 0; id-- {
		c.SendAck(packets.Pubrel, uint16(id))
		if id%1000 == 1 {
			for n := min(id+999, all); n >= id; n-- {
				c.ExpectAck(packets.Pubcomp, uint16(n), 0)
			}
		}
	}
	c.Ping()
	c.Publish(mqtttest.Publish{Topic: "t", QoS: 2, ID: all})
}
