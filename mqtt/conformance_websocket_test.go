package mqtt_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Some clients look at the first packet of a frame only, and at the next one when more bytes come.
func TestEachPacketHasItsOwnFrame(t *testing.T) {
	s := start(t)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	payload := map[int]string{3: strings.Repeat("x", 300), 4: strings.Repeat("x", 30000)}
	for i := range 6 {
		pub.Publish(mqtttest.Publish{Topic: fmt.Sprint("r/", i), QoS: 1, Retain: true, Payload: payload[i]})
		if payload[i] == "" {
			pub.Publish(mqtttest.Publish{Topic: fmt.Sprint("r/", i), QoS: 1, Retain: true, Payload: "kept"})
		}
	}
	c := mqtttest.DialWebSocket(t, s.ws, "/mqtt")
	c.Connect(mqtttest.Connect{ID: "ws"})
	c.Send(`82 [ 0001 00 s"r/#" 00 ] c000 c000`)
	b := make([]byte, 1<<17)
	for range 9 { // SUBACK, six messages and two PINGRESP
		n, err := c.Conn().Read(b)
		if err != nil {
			t.Fatal(err)
		}
		rest, size := binary.Uvarint(b[1:n])
		if n != 1+size+int(rest) {
			t.Errorf("a frame of %d bytes holds a packet of %d", n, 1+size+int(rest))
		}
	}
}
