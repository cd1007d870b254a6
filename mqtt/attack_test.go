package mqtt_test

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// attacker opens connections that a test does not have to close one by one.
func attacker(t *testing.T, addr net.Addr, n int, first []byte) (open []net.Conn) {
	t.Helper()
	for range n {
		nc, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		_, _ = nc.Write(first)
		open = append(open, nc)
	}
	return open
}

// Many who announce a large CONNECT and do not send it hold little memory, nobody notices, and after connect_timeout they are gone.
func TestAnnouncedConnectsCostLittle(t *testing.T) {
	const n = 400
	s := secure(t, func(c *mqtt.Config) { c.ConnectTimeout = unit.Duration(5 * time.Second) })
	live := mqtttest.Dial(t, s.srv.Addr("tcp"))
	live.Connect(mqtttest.Connect{ID: "live"})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := heap()
	attacker(t, s.srv.Addr("tcp"), n, []byte("\x10\xf0\xff\x03\x00\x04MQTT")) // 65,520 bytes are to come
	eventually(t, "not all are there", func() bool { return s.metric("connections", "tcp") == n+1 })
	if each := (heap() - before) / n; each > 24<<10 { // stack, socket and decoder of both sides included
		t.Errorf("%d bytes for each", each)
	}
	live.Ping()
	eventually(t, "some stay", func() bool { return s.metric("connections", "tcp") == 1 })
	live.Ping()
}

// Bytes that come one by one do not buy time.
func TestSlowConnectsEnd(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		c.ConnectTimeout = unit.Duration(700 * time.Millisecond)
		for i := range c.Listeners {
			c.Listeners[i].TLS.HandshakeTimeout = unit.Duration(700 * time.Millisecond)
			if c.Listeners[i].Type == mqtt.ListenerTCP || c.Listeners[i].Type == mqtt.ListenerWebSocket {
				c.Listeners[i].TLS.HandshakeTimeout = 0
			}
		}
	})
	slow := map[string]string{
		"tcp": "\x10\x20\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x13aaaaaaaaaaaaaaaaaaa", "ws": "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nX: aaaa",
		"tls": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaa", "wss": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaa",
	}
	for listener, text := range slow {
		nc := attacker(t, s.srv.Addr(listener), 1, nil)[0]
		for i := range len(text) {
			if _, err := nc.Write([]byte{text[i]}); err != nil {
				break
			}
			time.Sleep(60 * time.Millisecond) // the attack itself
		}
		_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: still open", listener)
		}
	}
}

// Garbage in every place where something is expected first ends its connection and nothing else.
func TestGarbageEndsItsConnection(t *testing.T) {
	s := secure(t)
	live := s.dial("mtls", s.config(s.clients.Issue("live")))
	live.Connect(mqtttest.Connect{ID: "live"})
	junk := make([]byte, 4096)
	for _, listener := range []string{"tcp", "ws", "tls", "wss", "mtls", "mwss"} {
		for i := range 60 {
			_, _ = rand.Read(junk)
			switch i % 4 {
			case 1:
				copy(junk, "\x16\x03\x01") // a TLS record
			case 2:
				copy(junk, "GET /mqtt HTTP/1.1\r\n")
			case 3:
				copy(junk, "\x10\xff\xff\xff\xff\xff") // a length of five bytes
			}
			nc := attacker(t, s.srv.Addr(listener), 1, junk)[0]
			_ = nc.(*net.TCPConn).CloseWrite()
		}
	}
	// A client that asks to negotiate again, and one that stops in the middle of its handshake.
	for range 20 {
		nc := attacker(t, s.srv.Addr("tls"), 1, nil)[0]
		c := tls.Client(nc, &tls.Config{RootCAs: s.ca.Pool(), ServerName: "localhost", MaxVersion: tls.VersionTLS12})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		_, _ = nc.Write(append([]byte("\x16\x03\x03\x00\x40"), junk[:64]...)) // a handshake record that is not encrypted
	}
	eventually(t, "some stay", func() bool { return s.metric("connections", "") == 1 })
	if n := s.metric("panics_total", ""); n != 0 {
		t.Errorf("%v panics", n)
	}
	live.Ping()
	c := s.dial("wss", s.config())
	c.Connect(mqtttest.Connect{ID: "after"})
	c.Disconnect()
}

// The request of a WebSocket has a bound.
func TestLargeUpgradeRequestsAreRefused(t *testing.T) {
	s := secure(t)
	for _, header := range []string{
		"X: " + strings.Repeat("x", 1<<20) + "\r\n", strings.Repeat("X: y\r\n", 1<<17), "Cookie: " + strings.Repeat("\x00", 100) + "\r\n",
	} {
		nc := attacker(t, s.srv.Addr("ws"), 1, nil)[0]
		go func() { _, _ = nc.Write([]byte("GET /mqtt HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n")) }()
		_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
		b := make([]byte, 12)
		if _, err := io.ReadFull(nc, b); err == nil && string(b) != "HTTP/1.1 431" && string(b) != "HTTP/1.1 400" {
			t.Errorf("%.10q…: %q", header, b)
		}
	}
	c := mqtttest.DialWebSocket(t, s.srv.Addr("ws"), "/mqtt")
	c.Connect(mqtttest.Connect{ID: "after"})
}

// Who is banned does not get at anybody's session: a take-over comes after the ban is looked at.
func TestBannedDoNotTakeOver(t *testing.T) {
	g := guard(t, "")
	victim := g.connect(t, mqtttest.Connect{ID: "c", UserName: "ann", Password: "ann"})
	for _, b := range []auth.Ban{{User: "bob"}, {User: "b*", Client: "c"}} {
		if err := g.srv.Ban(b); err != nil {
			t.Fatal(err)
		}
		for _, o := range []mqtttest.Connect{
			{ID: "c", UserName: "bob", Password: "bob"},
			{ID: "c", UserName: "bob", Password: "bob", Resume: true},
			{ID: "c", UserName: "bob", Password: "bob", Will: &mqtttest.Publish{Topic: "t", Payload: "x"}},
		} {
			c := g.dial(t)
			c.SendConnect(o)
			c.ExpectConnack(0x8A)
		}
		if _, err := g.srv.Unban(b); err != nil {
			t.Fatal(err)
		}
	}
	// SCRAM says who it is later than CONNECT.
	if err := g.srv.Ban(auth.Ban{User: "bob"}); err != nil {
		t.Fatal(err)
	}
	victim.Ping()
}

// What the rules deny is not had by another way: a topic alias, a shared subscription, a will, what is retained, a QoS, a resumed session.
func TestRulesHaveNoWayAround(t *testing.T) {
	g := guard(t, `allow publish   topic=open/#   user=ann
allow subscribe topic=open/#   user=ann
allow all       topic=#        user=eve
`)
	root := g.connect(t, as("eve"))
	root.Publish(mqtttest.Publish{Topic: "secret/1", Payload: "s", QoS: 1, Retain: true})
	root.Subscribe("#", 0)
	root.Receive(mqtttest.Publish{Topic: "secret/1", Payload: "s", Retain: true})

	c := g.connect(t, as("ann"))
	alias := "23 00 01"
	c.ExpectAck(packets.Puback, c.SendPublish(mqtttest.Publish{Topic: "secret/2", QoS: 1, Properties: alias}), 0x87)
	c.ExpectAck(packets.Puback, c.SendPublish(mqtttest.Publish{QoS: 1, Properties: alias}), 0x87) // the alias is learned all the same
	c.ExpectAck(packets.Pubrec, c.SendPublish(mqtttest.Publish{Topic: "secret/2", QoS: 2}), 0x87)
	c.SendPublish(mqtttest.Publish{Topic: "secret/2"})
	for _, filter := range []string{
		"secret/#", "#", "+/#", "+/1", "$share/g/secret/#", "$share/g/#", "$share/open/secret/1", "/secret/1", "+",
	} {
		for _, options := range []byte{0x00, 0x10, 0x20, 0x0A} {
			if got := c.ExpectSuback(c.SendSubscribe(filter, options)); got != 0x87 {
				t.Errorf("%s, options 0x%02x: 0x%02X", filter, options, got)
			}
		}
	}
	for i, topic := range []string{"secret/3", "/open/3"} {
		w := g.dial(t)
		w.SendConnect(mqtttest.Connect{ID: fmt.Sprint("w", i), UserName: "ann", Password: "ann", Will: &mqtttest.Publish{Topic: topic, Payload: "x"}})
		w.ExpectConnack(0x87)
	}
	c.Publish(mqtttest.Publish{Topic: "open/1", Payload: "o", QoS: 1})
	root.Receive(mqtttest.Publish{Topic: "open/1", Payload: "o"}) // and nothing of secret before it

	// A session that another user has subscribed for.
	own := g.connect(t, mqtttest.Connect{ID: "shared", UserName: "eve", Password: "eve", Properties: "11 00 00 00 ff"})
	own.Subscribe("secret/#", 1)
	own.Receive(mqtttest.Publish{Topic: "secret/1", Payload: "s", QoS: 1, Retain: true})
	own.Subscribe("$share/g/secret/#", 1)
	own.Disconnect()
	root.Publish(mqtttest.Publish{Topic: "secret/4", Payload: "x", QoS: 1})
	other := g.connect(t, mqtttest.Connect{ID: "shared", UserName: "ann", Password: "ann", Resume: true, Properties: "11 00 00 00 ff"})
	if got := other.ExpectSuback(other.SendSubscribe("secret/#", 0)); got != 0x87 { // for what is retained
		t.Errorf("0x%02X", got)
	}
	other.Subscribe("open/#", 1)
	other.Publish(mqtttest.Publish{Topic: "open/2", Payload: "o", QoS: 1})
	other.Receive(mqtttest.Publish{Topic: "open/2", Payload: "o", QoS: 1}) // and nothing of secret before it
}
