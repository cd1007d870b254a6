package mqtt_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What the server of the library whose codec we use gets wrong, and that no other test here is about.

// The rules see the topic, not the empty one of a publish by its alias.
func TestRulesSeeTheTopicOfAnAlias(t *testing.T) {
	s := startWith(t, &decider{publish: func(topic string) error {
		if topic != "allowed" {
			return mqtt.ErrNotAuthorized
		}
		return nil
	}})
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Send(`32 len s"secret" 0001 03 23 0001 "x"`)
	c.ExpectAck(packets.Puback, 1, 0x87)
	c.Send(`32 len s"" 0002 03 23 0001 "x"`)
	c.ExpectAck(packets.Puback, 2, 0x87)
	c.Send(`32 len s"allowed" 0003 03 23 0001 "x"`)
	c.ExpectAck(packets.Puback, 3, 0)
	c.Send(`32 len s"" 0004 03 23 0001 "x"`)
	c.ExpectAck(packets.Puback, 4, 0)
}

// A delivery in flight takes neither an identifier nor a place of what the client sends: SUBSCRIBE and UNSUBSCRIBE with its
// identifier are not "in use", and publishes find the whole Receive Maximum of the server.
func TestDeliveriesTakeNothingFromTheClient(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ReceiveMaximum = 3 })
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	c := s.connect(t, mqtttest.Connect{ID: "c"})
	c.Subscribe("t", 2)
	var ids []uint16
	for i := range 3 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(i)})
		id := c.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: msg(i)}).PacketID
		c.SendAck(packets.Pubrec, id)
		c.ExpectAck(packets.Pubrel, id, 0)
		ids = append(ids, id)
	}
	for _, id := range ids { // each owes a PUBCOMP
		c.Send(`82 len ` + hex16(id) + ` 00 s"x" 01`)
		if pk := c.Expect(packets.Suback); pk.PacketID != id || pk.ReasonCodes[0] != 1 {
			t.Errorf("SUBACK of %d: %+v", id, pk)
		}
		c.Send(`a2 len ` + hex16(id) + ` 00 s"x"`)
		if pk := c.Expect(packets.Unsuback); pk.PacketID != id || pk.ReasonCodes[0] != 0 {
			t.Errorf("UNSUBACK of %d: %+v", id, pk)
		}
		c.SendPublish(mqtttest.Publish{Topic: "elsewhere", QoS: 2, ID: id})
		c.ExpectAck(packets.Pubrec, id, 0)
	}
	for _, id := range ids {
		c.SendAck(packets.Pubrel, id)
		c.ExpectAck(packets.Pubcomp, id, 0)
		c.SendAck(packets.Pubcomp, id)
	}
	c.Ping()
}

// A client that sends and does not read is cut off after write_timeout: what it sends does not renew the time that it has to
// read in.
func TestClientThatOnlySendsIsCutOff(t *testing.T) {
	s := start(t, func(c *mqtt.Config) {
		c.WriteTimeout, c.OutputBuffer = unit.Duration(300*time.Millisecond), 64<<10
	})
	c := s.connect(t, mqtttest.Connect{ID: "c", KeepAlive: 60})
	c.Subscribe("t", 0)
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	payload := strings.Repeat("x", 256<<10)
	for end := time.Now().Add(20 * time.Second); ; {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload}) // more than the sockets hold, in the end
		if _, err := c.Conn().Write([]byte{0xC0, 0}); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it is still connected")
		}
	}
}

// MQTT 3.1.1 has no DISCONNECT from a server: whatever ends a connection, nothing but acknowledgements of what came before is on it.
func TestOldClientsAreNeverSentADisconnect(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.ReceiveMaximum, c.MaxPacketSize, c.MaxConnectSize = 2, 1024, 1024 })
	for name, end := range map[string]func(c *mqtttest.Client){
		"taken over":        func(*mqtttest.Client) { s.connect(t, mqtttest.Connect{ID: "taken over"}).Disconnect() },
		"malformed":         func(c *mqtttest.Client) { c.Send(`30 00`) },
		"second CONNECT":    func(c *mqtttest.Client) { c.SendConnect(mqtttest.Connect{ID: "x", Version: 4}) },
		"too large":         func(c *mqtttest.Client) { c.Send(`30 8010 0001 41`) },
		"reserved topic":    func(c *mqtttest.Client) { c.SendPublish(mqtttest.Publish{Topic: "$SYS/x", QoS: 1}) },
		"packet of servers": func(c *mqtttest.Client) { c.Send(`d0 00`) },
	} {
		c := s.connect(t, mqtttest.Connect{ID: name, Version: 4})
		end(c)
		_ = c.Conn().SetReadDeadline(time.Now().Add(30 * time.Second))
		if b, err := io.ReadAll(c.Conn()); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got % x, %v", name, b, err)
		}
	}
	c := s.connect(t, mqtttest.Connect{ID: "last", Version: 4})
	s.stop(t)
	_ = c.Conn().SetReadDeadline(time.Now().Add(30 * time.Second))
	if b, _ := io.ReadAll(c.Conn()); len(b) > 0 {
		t.Errorf("stop: got % x", b)
	}
}

// A retained will stays retained, also when it waited for its delay or its session ended before.
func TestDelayedWillIsRetained(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("w/#", 1)
	kept := 0
	for topic, properties := range map[string]string{"w/ends": ``, "w/waits": forAnHour} {
		s.connect(t, mqtttest.Connect{ID: topic, Properties: properties, Will: &mqtttest.Publish{
			Topic: topic, QoS: 1, Retain: true, Payload: "bye", Properties: `18 00000001`,
		}}).Close()
		sub.Receive(mqtttest.Publish{Topic: topic, QoS: 1, Payload: "bye"})
		kept++ // a subscriber of the log may have the will before the store of retained messages has
		eventually(t, "store of retained messages", func() bool { return s.stats().Retained == kept })
		late := s.connect(t, mqtttest.Connect{ID: "late"})
		late.Subscribe(topic, 1)
		late.Receive(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: "bye"})
		late.Disconnect()
	}
}

// MQTT 5, 4.7.2: a shared subscription that begins with a wildcard does not see topics with $, those of the server among them;
// one that names them does.
func TestSharedWildcardsDoNotSeeDollarTopics(t *testing.T) {
	s := start(t, func(c *mqtt.Config) { c.SysInterval = unit.Duration(100 * time.Millisecond) })
	all, own := s.connect(t, mqtttest.Connect{ID: "all"}), s.connect(t, mqtttest.Connect{ID: "own"})
	all.Subscribe("$share/g/#", 1)
	all.Subscribe("$share/h/+/x", 1)
	own.Subscribe("$share/g/$other/#", 1)
	watch := s.connect(t, mqtttest.Connect{ID: "watch"})
	watch.Subscribe("$SYS/broker/uptime", 0)
	for i, live := 0, 0; live < 2; i++ { // the server's topics changed meanwhile
		pub := s.connect(t, mqtttest.Connect{ID: "pub"})
		pub.Publish(mqtttest.Publish{Topic: "$other/x", QoS: 1, Payload: msg(i)})
		own.Receive(mqtttest.Publish{Topic: "$other/x", QoS: 1, Payload: msg(i)})
		if pk := watch.Expect(packets.Publish); !pk.FixedHeader.Retain {
			live++
		}
	}
	all.Ping()
}
