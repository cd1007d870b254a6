package mqtt_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// An HTTP request that does not come to its end holds nothing for longer than connect_timeout.
func TestUnfinishedRequestIsClosed(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ConnectTimeout = unit.Duration(time.Second) })
	f := func(request string) {
		t.Helper()
		nc, err := net.Dial("tcp", s.ws.String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_, _ = io.WriteString(nc, request)
		_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, nc); err != nil {
			t.Errorf("%.20q: %v", request, err)
		}
	}
	f("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
	f("POST /mqtt HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
	f("GET /mqtt HT")
}

// The client sees why its connection ends, however much of a packet is still on its way.
func TestTooLargePacketIsToldSo(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: strings.Repeat("x", 1<<20)})
	c.ExpectDisconnect(0x95)
}
