package mqtt_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// limited is a server whose limits a test sets; everybody may do everything, and events are in the log.
func limited(t *testing.T, change func(*mqtt.Config)) *guarded {
	t.Helper()
	return guard(t, "", func(c *mqtt.Config) {
		c.Auth.Methods = nil
		c.Audit.Rate = 10_000
		change(c)
	})
}

// reached expects that a limit was met so often, in the counter and in the audit.
func (g *guarded) reached(t *testing.T, limit string, times int) {
	t.Helper()
	count := func() (int, int) {
		return int(g.metric(t, "limits_reached_total", limit)), g.log.count("event="+audit.LimitReached, "limit="+limit+" ") +
			g.log.count("event="+audit.LimitReached, "limit="+limit+"\n")
	}
	eventually(t, fmt.Sprintf("%s: want %d", limit, times), func() bool { n, m := count(); return n == times && m == times })
}

// The limits of what one packet or one client holds: each with its answer and its counter.
func TestEachLimitHasItsAnswerAndItsCounter(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) {
		c.MaxPacketSize, c.MaxConnectSize = 4096, 512
		c.ReceiveMaximum, c.TopicAliasMaximum = 2, 3
		c.MaxTopicLevels, c.MaxTopicLength, c.MaxUserProperties = 4, 100, 2
		c.MaxSubscriptions, c.MaxRetained, c.MaxRetainedSize = 2, 2, 2000
		c.SessionExpiryMax = unit.Duration(time.Hour)
	})
	user := func(n int) string { return strings.Repeat("26 00 01 61 00 01 62 ", n) }
	publish := func(p mqtttest.Publish, reason byte) {
		t.Helper()
		c := g.connect(t, mqtttest.Connect{ID: "p"})
		p.QoS = 1
		c.ExpectAck(packets.Puback, c.SendPublish(p), reason)
		c.Disconnect()
	}

	ack := g.connect(t, mqtttest.Connect{ID: "told", Properties: "11 ff ff ff ff"}) // session expiry: never
	ack.Disconnect()
	c := g.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "told", Properties: "11 ff ff ff ff"})
	pr := c.ExpectConnack(0).Properties
	if pr.MaximumPacketSize != 4096 || pr.ReceiveMaximum != 2 || pr.TopicAliasMaximum != 3 || pr.SessionExpiryInterval != 3600 {
		t.Errorf("CONNACK tells %+v", pr)
	}

	big := g.dial(t)
	big.SendConnect(mqtttest.Connect{ID: strings.Repeat("x", 600)})
	big.ExpectConnack(0x95)
	g.reached(t, "max_connect_size", 1)

	c.SendPublish(mqtttest.Publish{Topic: "t", Payload: strings.Repeat("x", 5000)})
	c.ExpectDisconnect(0x95)
	g.reached(t, "max_packet_size", 1)

	c = g.connect(t, mqtttest.Connect{ID: "alias"})
	c.SendPublish(mqtttest.Publish{Topic: "t", Properties: "23 00 04"})
	c.ExpectDisconnect(0x94)
	g.reached(t, "topic_alias_maximum", 1)

	publish(mqtttest.Publish{Topic: "a/b/c/d"}, 0)
	publish(mqtttest.Publish{Topic: "a/b/c/d/e"}, 0x90)
	g.reached(t, "max_topic_levels", 1)
	publish(mqtttest.Publish{Topic: strings.Repeat("x", 100)}, 0)
	publish(mqtttest.Publish{Topic: strings.Repeat("x", 101)}, 0x90)
	g.reached(t, "max_topic_length", 1)
	publish(mqtttest.Publish{Topic: "t", Properties: user(2)}, 0)
	publish(mqtttest.Publish{Topic: "t", Properties: user(3)}, 0x97)
	g.reached(t, "max_user_properties", 1)
	publish(mqtttest.Publish{Topic: "r/1", Retain: true, Payload: "x"}, 0)
	publish(mqtttest.Publish{Topic: "r/1", Retain: true, Payload: strings.Repeat("x", 3000)}, 0x97)
	g.reached(t, "max_retained_size", 1)
	publish(mqtttest.Publish{Topic: "r/2", Retain: true, Payload: "x"}, 0)
	publish(mqtttest.Publish{Topic: "r/3", Retain: true, Payload: "x"}, 0x97)
	g.reached(t, "max_retained", 1)

	s := g.connect(t, mqtttest.Connect{ID: "s"})
	subscribe := func(filter string, want byte) {
		t.Helper()
		if got := s.ExpectSuback(s.SendSubscribe(filter, 1)); got != want {
			t.Errorf("%.20s…: SUBACK 0x%02X, want 0x%02X", filter, got, want)
		}
	}
	subscribe("a/b/c/d/#", 0x8F)
	g.reached(t, "max_topic_levels", 2)
	subscribe(strings.Repeat("x", 101), 0x8F)
	g.reached(t, "max_topic_length", 2)
	subscribe("1", 1)
	subscribe("2", 1)
	subscribe("2", 1) // again
	subscribe("3", 0x97)
	g.reached(t, "max_subscriptions", 1)

	w := g.dial(t)
	w.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "a/b/c/d/e"}})
	w.ExpectConnack(0x90)
	g.reached(t, "max_topic_levels", 3)
	w = g.dial(t)
	w.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "t", Properties: user(3)}})
	w.ExpectConnack(0x97)
	g.reached(t, "max_user_properties", 2)
}

// A CONNECT full of user properties costs no more than its limit allows.
func TestUserPropertiesOfAnyPacketAreBounded(t *testing.T) {
	g := limited(t, func(*mqtt.Config) {})
	c := g.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "c", Properties: strings.Repeat("26 00 00 00 00 ", 1025)})
	c.ExpectConnack(0x97)
	g.reached(t, "max_user_properties", 1)
	c = g.connect(t, mqtttest.Connect{ID: "c", Properties: strings.Repeat("26 00 00 00 00 ", 1024)})
	c.SendSubscribe("t", 0, strings.Repeat("26 00 00 00 00 ", 1025))
	c.ExpectDisconnect(0x97)
	g.reached(t, "max_user_properties", 2)
}

// Retained wills are retained messages: they have the limits of those.
func TestRetainedWillsHaveTheLimitsOfRetainedMessages(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) { c.MaxRetained = 2 })
	sub := g.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("will/#", 1)
	for i := range 4 {
		c := g.connect(t, mqtttest.Connect{ID: "c", Will: &mqtttest.Publish{Topic: fmt.Sprint("will/", i), Payload: "x", QoS: 1, Retain: true}})
		c.Close()
		sub.Receive(mqtttest.Publish{Topic: fmt.Sprint("will/", i), Payload: "x", QoS: 1})
	}
	if n := g.metric(t, "retained", ""); n != 2 {
		t.Errorf("%v are retained", n)
	}
	g.reached(t, "max_retained", 2)
}

func TestTooManyConnectionsAreTold(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) {
		c.Listeners[0].MaxConnections = 2
		c.MaxConnections = 3
	})
	first := g.connect(t, mqtttest.Connect{ID: "first"})
	g.connect(t, mqtttest.Connect{ID: "second"})
	for version, want := range map[byte]byte{4: 3, 5: 0x97} {
		c := g.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "more", Version: version})
		c.ExpectConnack(want)
	}
	g.reached(t, "max_connections", 2)
	ws := mqtttest.DialWebSocket(t, g.ws, "/mqtt")
	ws.Connect(mqtttest.Connect{ID: "ws"})
	other, err := net.Dial("tcp", g.ws.String()) // in all
	if err != nil {
		t.Fatal(err)
	}
	mqtttest.NewClient(t, other).ExpectClosed()
	g.reached(t, "max_connections", 3)
	first.Disconnect()
	eventually(t, "the place is not free again", func() bool {
		c := g.dial(t)
		defer c.Close()
		c.SendConnect(mqtttest.Connect{ID: "next"})
		return c.Expect(packets.Connack).ReasonCode == 0
	})
}

// Who holds more connections than can be told why is closed, and none of it stays.
func TestCrowdThatIsTurnedAwayIsBounded(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) { c.Listeners[0].MaxConnections = 1 })
	live := g.connect(t, mqtttest.Connect{ID: "live"})
	var open []net.Conn
	for range 300 {
		nc, err := net.Dial("tcp", g.tcp.String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, nc)
	}
	eventually(t, "no bound", func() bool { return g.metric(t, "over_limit_total", "") == 300 })
	if n := g.metric(t, "connections", "tcp"); n > 33 {
		t.Errorf("%v connections", n)
	}
	live.Ping()
	for _, nc := range open {
		nc.Close()
	}
	eventually(t, "some stay", func() bool { return g.metric(t, "connections", "tcp") == 1 })
	live.Disconnect()
	eventually(t, "the place is not free again", func() bool {
		c := g.dial(t)
		defer c.Close()
		c.SendConnect(mqtttest.Connect{ID: "next"})
		return c.Expect(packets.Connack).ReasonCode == 0
	})
}

// Who takes connections and says nothing on them leaves those of others, and his own that are in, alone.
func TestConnectionsThatAreNotInAreBoundedForEachAddress(t *testing.T) {
	g := guard(t, "", func(c *mqtt.Config) { c.MaxPendingPerAddress = 3 })
	in := g.connect(t, as("ann"))
	var silent []*mqtttest.Client
	for range 3 {
		silent = append(silent, g.dial(t))
	}
	eventually(t, "the silent are not there", func() bool { return g.metric(t, "connections", "tcp") == 4 })
	c := g.dial(t)
	c.SendConnect(as("bob"))
	c.ExpectConnack(0x97)
	if n := g.metric(t, "limits_reached_total", "max_pending_per_address"); n != 1 {
		t.Errorf("counted %v times", n)
	}
	in.Ping()
	silent[0].Connect(as("bob")) // makes room by arriving
	silent[1].Close()            // and this one by leaving
	eventually(t, "there is no room", func() bool {
		c := g.dial(t)
		defer c.Close()
		c.SendConnect(as("eve"))
		return c.Expect(packets.Connack).ReasonCode == 0
	})
	for range 10 { // who comes and arrives is not counted for ever
		g.connect(t, as("eve")).Disconnect()
	}
}

func TestConnectionsOfOneAddressAreBounded(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		for i := range c.Listeners {
			c.Listeners[i].MaxConnectionsPerAddress = 2
		}
	})
	for _, listener := range []string{"tcp", "ws", "tls", "wss"} {
		dial := func() *mqtttest.Client {
			switch listener {
			case "tcp":
				return mqtttest.Dial(t, s.srv.Addr(listener))
			case "ws":
				return mqtttest.DialWebSocket(t, s.srv.Addr(listener), "/mqtt")
			}
			return s.dial(listener, s.config())
		}
		a, b := dial(), dial()
		a.Connect(mqtttest.Connect{ID: listener + "a"})
		b.Connect(mqtttest.Connect{ID: listener + "b"})
		before := s.metric("limits_reached_total", "max_connections_per_address")
		switch listener {
		case "tcp":
			c := dial()
			c.SendConnect(mqtttest.Connect{ID: "c"})
			c.ExpectConnack(0x97)
		case "ws":
			nc, err := net.Dial("tcp", s.srv.Addr(listener).String())
			if err != nil {
				t.Fatal(err)
			}
			mqtttest.NewClient(t, nc).ExpectClosed()
		default:
			s.refused(listener, s.config())
		}
		eventually(t, listener+" is not counted", func() bool { return s.metric("limits_reached_total", "max_connections_per_address") == before+1 })
		a.Disconnect()
		eventually(t, listener+": the place is not free again", func() bool {
			nc, err := net.Dial("tcp", s.srv.Addr(listener).String())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			switch listener {
			case "tls", "wss":
				return tls.Client(nc, s.config()).Handshake() == nil
			}
			_ = nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err = nc.Read(make([]byte, 1))
			ne, ok := err.(net.Error)
			return ok && ne.Timeout()
		})
	}
}

func TestConnectionRateOfOneAddress(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) {
		c.Listeners[0].ConnectionRatePerAddress = 1
		c.Listeners[1].ConnectionRatePerAddress = 1
	})
	taken, refused := 0, map[byte]int{}
	began := time.Now()
	for i := 0; refused[4] < 2 || refused[5] < 2; i++ {
		version := byte(4 + i%2)
		c := g.dial(t)
		c.SendConnect(mqtttest.Connect{ID: fmt.Sprint(i), Version: version})
		switch reason := c.Expect(packets.Connack).ReasonCode; {
		case reason == 0:
			taken++
		case reason == 0x9F && version == 5, reason == 3 && version == 4:
			refused[version]++
		default:
			t.Errorf("version %d: 0x%02X", version, reason)
		}
		c.Close()
		if i == 200 {
			t.Fatalf("%d were let in in %v", taken, time.Since(began))
		}
	}
	if most := 11 + int(time.Since(began).Seconds()); taken < 10 || taken > most { // ten at once, then one a second
		t.Errorf("%d were let in, want 10 to %d", taken, most)
	}
	g.reached(t, "connection_rate_per_address", refused[4]+refused[5])
}
