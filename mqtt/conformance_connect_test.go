package mqtt_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// MQTT 5, 3.2.2.3: the limits that CONNACK tells are those of the configuration.
func TestConnackTellsTheLimits(t *testing.T) {
	s := start(t, func(c *mqtt.Config) {
		c.MaxPacketSize, c.ReceiveMaximum, c.TopicAliasMaximum = 64<<10, 7, 5
		c.MaxKeepAlive = unit.Duration(30 * time.Second)
		c.SessionExpiryMax = unit.Duration(time.Minute)
	})
	f := func(o mqtttest.Connect, check func(p packets.Properties) bool) {
		t.Helper()
		c := s.dial(t)
		if pk := c.Connect(o); !check(pk.Properties) || pk.SessionPresent {
			t.Errorf("%+v: connack %+v", o, pk)
		}
		c.Disconnect()
	}
	f(mqtttest.Connect{ID: "a", KeepAlive: 10}, func(p packets.Properties) bool {
		return p.MaximumPacketSize == 64<<10 && p.ReceiveMaximum == 7 && p.TopicAliasMaximum == 5 && !p.ServerKeepAliveFlag &&
			!p.MaximumQosFlag && !p.SessionExpiryIntervalFlag && p.AssignedClientID == "" &&
			(!p.RetainAvailableFlag || p.RetainAvailable == 1) && (!p.WildcardSubAvailableFlag || p.WildcardSubAvailable == 1) &&
			(!p.SubIDAvailableFlag || p.SubIDAvailable == 1) && (!p.SharedSubAvailableFlag || p.SharedSubAvailable == 1)
	})
	f(mqtttest.Connect{ID: "a", KeepAlive: 60}, func(p packets.Properties) bool { return p.ServerKeepAliveFlag && p.ServerKeepAlive == 30 })
	f(mqtttest.Connect{ID: "a", KeepAlive: 0}, func(p packets.Properties) bool { return p.ServerKeepAliveFlag && p.ServerKeepAlive == 30 })
	f(mqtttest.Connect{ID: "a", Properties: `11 0000003c`}, func(p packets.Properties) bool {
		return !p.SessionExpiryIntervalFlag || p.SessionExpiryInterval == 60
	})
	f(mqtttest.Connect{ID: "b", Properties: `11 ffffffff`}, func(p packets.Properties) bool {
		return p.SessionExpiryIntervalFlag && p.SessionExpiryInterval == 60
	})
}

// MQTT 5, 3.1.3-6, 3.1.3-7 and 3.2.2-16; MQTT 3.1.1, 3.1.3-6.
func TestEmptyClientIDIsAssigned(t *testing.T) {
	s := start(t)
	seen := make(map[string]bool)
	for range 3 {
		c := s.dial(t)
		id := c.Connect(mqtttest.Connect{}).Properties.AssignedClientID
		if id == "" || seen[id] {
			t.Errorf("assigned client ID %q", id)
		}
		seen[id] = true
	}
	s.connect(t, mqtttest.Connect{Version: 4}).Ping()

	// It is as good as one of the client's own.
	c := s.dial(t)
	id := c.Connect(mqtttest.Connect{Resume: true, Properties: `11 0000003c`}).Properties.AssignedClientID
	c.Disconnect()
	if pk := s.dial(t).Connect(mqtttest.Connect{ID: id, Resume: true}); !pk.SessionPresent {
		t.Error("the session of an assigned client ID is gone")
	}
}

// MQTT 5, 3.1.2.11.9 and 4.12: nothing but the absence of an authentication method is supported.
func TestUnknownAuthenticationMethodIsRefused(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "a", Properties: `15 s"CRAM-42" 16 s"x"`})
	c.ExpectConnack(0x8C)

	c = s.connect(t, mqtttest.Connect{ID: "a"})
	c.Send(`f0 len 18 [ 15 s"CRAM-42" ]`) // MQTT 5, 4.12.0-7
	c.ExpectDisconnect(0x82)
}

// MQTT 5, 3.1.2-24 and 3.1.2-25: what is too large for a client is left out, and what follows comes.
func TestClientMaximumPacketSizeIsKept(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub", Properties: `27 00000040`})
	sub.Subscribe("t", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: strings.Repeat("x", 100)})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "small"})
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "small"})
}

// MQTT 5, 3.2.2.3.6: a publish of just the maximum is taken, one byte more is refused with 0x95.
func TestServerMaximumPacketSizeIsKept(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.MaxPacketSize, c.MaxConnectSize = 1<<10, 1<<10 })
	c := s.connect(t, mqtttest.Connect{ID: "a"})
	const rest = 1<<10 - 3 // of a packet with two bytes of Remaining Length
	c.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: strings.Repeat("x", rest-3-2-1)})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: strings.Repeat("x", rest-3-2-1+1)})
	c.ExpectDisconnect(0x95)
}

// MQTT 5, 3.1.2-22 and 3.14.2.1: one and a half times the keep alive, then 0x8D. A client that pings stays.
func TestKeepAliveEndsSilentConnections(t *testing.T) {
	t.Parallel()
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		began := time.Now()
		c := s.connect(t, mqtttest.Connect{ID: "silent", Version: version, KeepAlive: 1})
		c.ExpectDisconnect(0x8D)
		if d := time.Since(began); d < time.Second || d > 20*time.Second {
			t.Errorf("closed after %v, want about 1.5 s", d)
		}
	})
}

func TestConnectMustComeInTime(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ConnectTimeout = unit.Duration(100 * time.Millisecond) })
	c := s.dial(t)
	c.Send(`10 20 0004`)
	c.ExpectClosed()
}

// MQTT 5, 3.1.4-3, 3.1.4-4 and 3.14.2.1.
func TestSecondConnectionTakesTheSessionOver(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		first := s.connect(t, mqtttest.Connect{ID: "same", Version: version})
		second := s.connect(t, mqtttest.Connect{ID: "same", Version: version})
		first.ExpectDisconnect(0x8E)
		second.Ping()
	})
}

// MQTT 5, 3.3.2-17, 3.3.2-18 and 3.3.2-20, 3.3.2-4, 3.3.2-15, 3.3.2-16: what travels with a message arrives as it was.
func TestPropertiesTravelUnaltered(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 2)
	old := s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	old.Subscribe("t", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{
		Topic: "t", QoS: 2, Payload: "grün",
		Properties: `26 s"b" s"1" 01 01 26 s"a" s"2" 03 s"text/plain" 08 s"reply/to" 09 0003 00ff00 26 s"b" s"1" 26 0000 0000`,
	})
	p := sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "grün"}).Properties
	want := []packets.UserProperty{{Key: "b", Val: "1"}, {Key: "a", Val: "2"}, {Key: "b", Val: "1"}, {}}
	if len(p.User) != len(want) {
		t.Fatalf("user properties %v", p.User)
	}
	for i := range want {
		if p.User[i] != want[i] {
			t.Errorf("user property %d is %v, want %v", i, p.User[i], want[i])
		}
	}
	if p.PayloadFormat != 1 || p.ContentType != "text/plain" || p.ResponseTopic != "reply/to" || string(p.CorrelationData) != "\x00\xff\x00" ||
		p.MessageExpiryInterval != 0 || p.TopicAliasFlag || len(p.SubscriptionIdentifier) != 0 {
		t.Errorf("properties %+v", p)
	}
	old.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "grün"})
}

// MQTT 5, 3.3.2-7 to 3.3.2-12.
func TestTopicAliases(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.TopicAliasMaximum = 2 })
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("#", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	step := func(topic, alias, want string) {
		t.Helper()
		pub.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Payload: "x", Properties: `23 ` + alias})
		if pk := sub.Receive(mqtttest.Publish{Topic: want, QoS: 1, Payload: "x"}); pk.Properties.TopicAliasFlag {
			t.Error("the publisher's alias is sent on")
		}
	}
	step("a", "0001", "a")
	step("b", "0002", "b")
	step("", "0001", "a")
	step("", "0002", "b")
	step("c", "0001", "c") // bound anew
	step("", "0001", "c")

	pub.SendPublish(mqtttest.Publish{Topic: "d", Properties: `23 0003`})
	pub.ExpectDisconnect(0x94)
	pub = s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.SendPublish(mqtttest.Publish{Properties: `23 0001`}) // MQTT 5, 3.3.2-7 and 3.3.2.3.4: an alias ends with its connection
	pub.ExpectDisconnect(0x82)
}

// MQTT 5, 3.3.2.3.2: text that is none is refused and not stored.
func TestPayloadFormatIsChecked(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 1)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	id := pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "\xff", Properties: `01 01`})
	pub.ExpectAck(packets.Puback, id, 0x99)
	id = pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "\xff", Properties: `01 01`})
	pub.ExpectAck(packets.Pubrec, id, 0x99)
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "\xff", Properties: `01 00`})
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "\xff"})

	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "w", Payload: "\xff", Properties: `01 01`}})
	c.ExpectConnack(0x99)
}

// MQTT 5, 6: one MQTT packet may come in many frames and many in one; text frames end the connection; the sub-protocol is
// mqtt.
func TestWebSocket(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		c := mqtttest.DialWebSocket(t, s.ws, "/mqtt")
		c.Connect(mqtttest.Connect{ID: "ws", Version: version})
		c.Subscribe("t", 2)
		id := c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 0, Payload: strings.Repeat("x", 70000)})
		_ = id
		c.ExpectPublish(mqtttest.Publish{Topic: "t", Payload: strings.Repeat("x", 70000)})
		c.Send(`c000 c000`)
		c.Expect(packets.Pingresp)
		c.Expect(packets.Pingresp)

		ws := c.Conn().(*mqtttest.WebSocket)
		for i, b := range []byte{0xC0, 0x00} {
			if err := ws.WriteFrame(mqtttest.FrameBinary, true, []byte{b}); err != nil {
				t.Fatal(i, err)
			}
		}
		c.Expect(packets.Pingresp)
		_ = ws.WriteFrame(mqtttest.FrameBinary, false, []byte{0xC0}) // one message in two fragments
		_ = ws.WriteFrame(mqtttest.FramePing, true, []byte("between"))
		_ = ws.WriteFrame(0, true, []byte{0x00})
		c.Expect(packets.Pingresp)
		c.Disconnect()
	})
	t.Run("text frame", func(t *testing.T) {
		c := mqtttest.DialWebSocket(t, s.ws, "/mqtt")
		c.Connect(mqtttest.Connect{ID: "ws"})
		_ = c.Conn().(*mqtttest.WebSocket).WriteFrame(mqtttest.FrameText, true, []byte{0xC0, 0x00}) // MQTT 5, 6.0.0-1
		for {
			pk, err := c.Conn().Read(make([]byte, 100))
			if err != nil {
				break
			}
			_ = pk
		}
	})
	status := func(path string, want int, headers ...string) {
		t.Helper()
		conn, answer, err := mqtttest.Upgrade(s.ws, path, headers...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if answer.StatusCode != want {
			t.Errorf("%s with %v: %s, want %d", path, headers, answer.Status, want)
		}
	}
	status("/mqtt", http.StatusSwitchingProtocols, "Sec-WebSocket-Protocol: mqttv3.1, mqtt")
	status("/other", http.StatusNotFound, "Sec-WebSocket-Protocol: mqtt")
	status("/mqtt", http.StatusForbidden, "Sec-WebSocket-Protocol: mqtt", "Origin: https://evil.example")
	// A page whose host name is made to lead to this machine is of the same host, and is not let in all the same.
	_, port, _ := net.SplitHostPort(s.ws.String())
	page := func(host string, want int) {
		t.Helper()
		nc, err := net.Dial("tcp", s.ws.String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_, answer, err := mqtttest.UpgradeOver(nc, host, "/mqtt", "Sec-WebSocket-Protocol: mqtt", "Origin: http://"+host)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != want {
			t.Errorf("a page of %q: %s, want %d", host, answer.Status, want)
		}
	}
	page("evil.example:"+port, http.StatusForbidden)
	page("localhost.evil.example:"+port, http.StatusForbidden)
	page("", http.StatusForbidden)
	page("localhost:"+port, http.StatusSwitchingProtocols)
	page("LOCALHOST:"+port, http.StatusSwitchingProtocols)
	page("127.0.0.1:"+port, http.StatusSwitchingProtocols)
	page("[::1]:"+port, http.StatusSwitchingProtocols)

	status("/mqtt", http.StatusBadRequest) // MQTT 5, 6.0.0-3
	status("/mqtt", http.StatusBadRequest, "Sec-WebSocket-Protocol: chat")
}

// MQTT 5, 3.1.4: a client need not wait for CONNACK.
func TestPacketsMayFollowConnectAtOnce(t *testing.T) {
	s := start(t)
	both(t, func(t *testing.T, version byte) {
		c := s.dial(t)
		if version == 5 {
			c.Send(`10 [ s"MQTT" 05 02 003c 00 s"p" ] 82 [ 0001 00 s"a" 01 ] 32 [ s"a" 0002 00 "x" ] c000`)
		} else {
			c.Version = 4
			c.Send(`10 [ s"MQTT" 04 02 003c s"p" ] 82 [ 0001 s"a" 01 ] 32 [ s"a" 0002 "x" ] c000`)
		}
		c.ExpectConnack(0)
		kinds := map[byte]int{}
		for range 4 {
			kinds[c.Next().FixedHeader.Type]++
		}
		if kinds[packets.Suback] != 1 || kinds[packets.Puback] != 1 || kinds[packets.Publish] != 1 || kinds[packets.Pingresp] != 1 {
			t.Errorf("%v", kinds)
		}
	})
}

// MQTT 5, 4.7.2: clients cannot use the topics of the server.
func TestServerTopicsAreReserved(t *testing.T) {
	s := start(t)
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	id := c.SendPublish(mqtttest.Publish{Topic: "$SYS/x", QoS: 1})
	c.ExpectAck(packets.Puback, id, 0x90)
	id = c.SendPublish(mqtttest.Publish{Topic: "$SYS/x", QoS: 2})
	c.ExpectAck(packets.Pubrec, id, 0x90)
	c.Publish(mqtttest.Publish{Topic: "$other/x", QoS: 2})
	old := s.connect(t, mqtttest.Connect{ID: "d", Version: 4}) // cannot be told, and must not be told a success
	old.SendPublish(mqtttest.Publish{Topic: "$SYS/x", QoS: 1})
	old.ExpectClosed()
}
