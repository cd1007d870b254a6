package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// enter goes through SCRAM-SHA-256 in a CONNECT, up to the CONNACK, which is not read.
func enter(t *testing.T, c *mqtttest.Client, s *scramClient, withData bool) {
	t.Helper()
	o := mqtttest.Connect{ID: "c-" + s.user, Properties: authProperties(auth.ScramSHA256, nil)}
	if withData {
		o.Properties = authProperties(auth.ScramSHA256, s.first())
	}
	c.SendConnect(o)
	pk := c.Expect(packets.Auth)
	if !withData {
		if pk.ReasonCode != 0x18 || len(pk.Properties.AuthenticationData) != 0 {
			t.Fatalf("%+v", pk)
		}
		sendAuth(c, "18", s.first())
		pk = c.Expect(packets.Auth)
	}
	if pk.ReasonCode != 0x18 || pk.Properties.AuthenticationMethod != auth.ScramSHA256 {
		t.Fatalf("%+v", pk)
	}
	sendAuth(c, "18", s.final(t, pk.Properties.AuthenticationData))
}

// MQTT 5, 4.12 and RFC 7677: the server proves itself in the CONNACK.
func TestScramConnect(t *testing.T) {
	g := guard(t, "allow all topic=up/%u\n")
	for _, withData := range []bool{true, false} {
		c, s := g.dial(t), &scramClient{user: "ann", password: "ann"}
		enter(t, c, s, withData)
		pk := c.ExpectConnack(0)
		if pk.Properties.AuthenticationMethod != auth.ScramSHA256 || string(pk.Properties.AuthenticationData) != s.server {
			t.Errorf("%+v", pk.Properties)
		}
		c.Publish(mqtttest.Publish{Topic: "up/ann", QoS: 1})
		c.ExpectAck(packets.Puback, c.SendPublish(mqtttest.Publish{Topic: "up/bob", QoS: 1}), 0x87)
		c.Disconnect()
	}
}

func TestScramRefusesConnect(t *testing.T) {
	g := guard(t, "")
	for _, s := range []*scramClient{{user: "ann", password: "bob"}, {user: "kim", password: "kim"}} {
		c := g.dial(t)
		enter(t, c, s, true)
		c.ExpectConnack(0x86)
	}
	f := func(method string, data []byte, reason byte) {
		t.Helper()
		c := g.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "c", Properties: authProperties(method, data)})
		c.ExpectConnack(reason)
	}
	f("SCRAM-SHA-1", nil, 0x8C)
	f("PLAIN", []byte("x"), 0x8C)
	f(auth.ScramSHA256, []byte("junk"), 0x82)

	during := func(reason byte, send func(c *mqtttest.Client)) {
		t.Helper()
		c := g.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "c", Properties: authProperties(auth.ScramSHA256, nil)})
		c.Expect(packets.Auth)
		send(c)
		if reason == 0 {
			c.ExpectClosed()
			return
		}
		c.ExpectConnack(reason)
	}
	// MQTT 5, 3.1.2-30: nothing but AUTH and DISCONNECT before the CONNACK.
	during(0x82, func(c *mqtttest.Client) { c.Send(`c000`) })
	during(0x82, func(c *mqtttest.Client) { c.SendPublish(mqtttest.Publish{Topic: "a"}) })
	during(0x82, func(c *mqtttest.Client) { sendAuth(c, "19", []byte("x")) })
	during(0x82, func(c *mqtttest.Client) { c.Send(`f0 len 18 [ 15 s"PLAIN" ]`) })
	during(0, func(c *mqtttest.Client) { c.Send(`e000`) })
	if n := g.srv.Stats().Sessions; n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// MQTT 5, 4.12.1: a client may authenticate again, and goes on meanwhile.
func TestScramReauthentication(t *testing.T) {
	g := guard(t, "")
	connect := func() *mqtttest.Client {
		t.Helper()
		c := g.dial(t)
		enter(t, c, &scramClient{user: "ann", password: "ann"}, true)
		c.ExpectConnack(0)
		return c
	}
	again := func(c *mqtttest.Client, s *scramClient) {
		t.Helper()
		sendAuth(c, "19", s.first())
		pk := c.Expect(packets.Auth)
		c.Publish(mqtttest.Publish{Topic: "meanwhile", QoS: 1})
		sendAuth(c, "18", s.final(t, pk.Properties.AuthenticationData))
	}
	c, s := connect(), &scramClient{user: "ann", password: "ann"}
	for range 2 {
		again(c, s)
		if pk := c.Expect(packets.Auth); pk.ReasonCode != 0 || string(pk.Properties.AuthenticationData) != s.server {
			t.Errorf("%+v", pk)
		}
		c.Publish(mqtttest.Publish{Topic: "after", QoS: 1})
	}
	again(c, &scramClient{user: "ann", password: "wrong"})
	c.ExpectDisconnect(0x87)
	c = connect()
	again(c, &scramClient{user: "bob", password: "bob"}) // somebody else
	c.ExpectDisconnect(0x87)

	f := func(notation string) {
		t.Helper()
		c := connect()
		c.Send(notation)
		c.ExpectDisconnect(0x82)
	}
	f(`f0 len 19 [ 15 s"PLAIN" ]`)         // 4.12.1-1
	f(`f0 len 18 [ 15 s"SCRAM-SHA-256" ]`) // nothing is under way
	c = connect()
	sendAuth(c, "19", s.first())
	c.Expect(packets.Auth)
	sendAuth(c, "19", s.first())
	c.ExpectDisconnect(0x82)
	plain := g.connect(t, as("ann"))
	sendAuth(plain, "19", s.first())
	plain.ExpectDisconnect(0x82)
}

// Who begins with a password that is good, and ends when it is not any more, or is banned in between, does not come in.
func TestChangesDuringAnAuthenticationCount(t *testing.T) {
	f := func(what string, reason byte, change func(g *guarded)) {
		t.Helper()
		g := guard(t, "")
		c, s := g.dial(t), &scramClient{user: "ann", password: "ann"}
		c.SendConnect(mqtttest.Connect{ID: "c", Properties: authProperties(auth.ScramSHA256, s.first())})
		pk := c.Expect(packets.Auth)
		change(g)
		sendAuth(c, "18", s.final(t, pk.Properties.AuthenticationData))
		if got := c.Expect(packets.Connack); got.ReasonCode != reason {
			t.Errorf("%s: %#x, want %#x", what, got.ReasonCode, reason)
		}
	}
	f("nothing", 0, func(*guarded) {})
	f("other users", 0, func(g *guarded) {
		g.setPassword(t, "bob", "another")
		if err := g.srv.ReloadAuth(); err != nil {
			t.Fatal(err)
		}
	})
	f("the password", 0x87, func(g *guarded) {
		g.setPassword(t, "ann", "another")
		if err := g.srv.ReloadAuth(); err != nil {
			t.Fatal(err)
		}
	})
	f("a ban of the client", 0x8A, func(g *guarded) {
		if err := g.srv.Ban(auth.Ban{Client: "c"}); err != nil {
			t.Fatal(err)
		}
	})
	f("a ban of the user", 0x8A, func(g *guarded) {
		if err := g.srv.Ban(auth.Ban{User: "ann"}); err != nil {
			t.Fatal(err)
		}
	})
}
