package mqtt_test

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// halfHello is the beginning of a ClientHello that does not end.
const halfHello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaa"

// from dials as 127.0.0.n.
func from(t *testing.T, n byte, addr net.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}
	nc, err := d.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

// patientFor lets a handshake take a time that no test waits for.
func patientFor(d time.Duration) func(*mqtt.Config) {
	return func(c *mqtt.Config) {
		c.ConnectTimeout = unit.Duration(d)
		for i := range c.Listeners {
			c.Listeners[i].TLS.HandshakeTimeout = unit.Duration(d)
		}
	}
}

// Handshakes that do not go on fill all places, two thousand of them in the long form. Who comes from another address gets one of theirs, long before their time is over.
func TestSlowHandshakesMakePlaceForOthers(t *testing.T) {
	slow, places := long(300, 2000), long(128, 1024)
	s := secure(t, patientFor(10*time.Minute), func(c *mqtt.Config) {
		for i := range c.Listeners {
			c.Listeners[i].MaxHandshakes = places
		}
	})
	listeners := map[string]string{"tls": halfHello, "wss": halfHello, "ws": "GET /mqtt HTTP/1.1\r\n"}
	for listener, first := range listeners {
		attacker(t, s.srv.Addr(listener), slow, []byte(first))
	}
	for listener := range listeners {
		nc := from(t, 2, s.srv.Addr(listener))
		_ = nc.SetDeadline(time.Now().Add(2 * time.Minute))
		c := s.client(listener, nc)
		c.Connect(mqtttest.Connect{ID: "honest"})
		c.Ping()
		c.Disconnect()
	}
	if n := s.metric("handshake_failures_total", "timeout"); n != 0 {
		t.Errorf("%v handshakes have ended by their own time", n)
	}
	// It is told after the place is given.
	eventually(t, "nobody has lost a place of one of the listeners", func() bool {
		return s.metric("limits_reached_total", "max_handshakes") >= float64(len(listeners))
	})
	eventually(t, "nothing tells of it", func() bool {
		return s.metric("handshake_failures_total", "too_slow") > 0 && s.log.count("do not go on") > 0
	})
}

// Slow handshakes of many addresses make place too, each for a newcomer.
func TestSlowHandshakesOfManyAddressesMakePlace(t *testing.T) {
	s := secure(t, patientFor(10*time.Minute), func(c *mqtt.Config) {
		for i := range c.Listeners {
			c.Listeners[i].MaxHandshakes = 64
		}
	})
	for n := range 100 {
		_, _ = from(t, byte(100+n), s.srv.Addr("tls")).Write([]byte(halfHello))
	}
	for range 3 {
		nc := tls.Client(from(t, 2, s.srv.Addr("tls")), s.config())
		_ = nc.SetDeadline(time.Now().Add(2 * time.Minute))
		c := mqtttest.NewClient(t, nc)
		c.Connect(mqtttest.Connect{ID: "honest"})
		c.Disconnect()
	}
	if n := s.metric("handshake_failures_total", "timeout"); n != 0 {
		t.Errorf("%v handshakes have ended by their own time", n)
	}
}

// Behind a proxy the addresses that it tells are those that share the places.
func TestSlowHandshakesBehindAProxyMakePlace(t *testing.T) {
	s := secure(t, proxies("127.0.0.1"), patientFor(10*time.Minute), func(c *mqtt.Config) {
		for i := range c.Listeners {
			c.Listeners[i].MaxHandshakes = 64
		}
	})
	attacker(t, s.srv.Addr("tls"), 120, append(header(t, proxyFrom203), halfHello...))
	c := s.client("tls", s.through("tls", header(t, proxyFromV6)))
	c.Connect(mqtttest.Connect{ID: "honest"})
	c.Disconnect()
	if n := s.metric("handshake_failures_total", "timeout"); n != 0 {
		t.Errorf("%v handshakes have ended by their own time", n)
	}
}
