package mqtt_test

import (
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

const afterAnHour = `18 00000e10` // Will Delay Interval

// willCase is one way for a connection to end.
type willCase struct {
	name       string
	version    byte
	properties string // of the CONNECT
	delay      string // of the will
	end        func(t *testing.T, s *server, c *mqtttest.Client, id string)
	sent       bool
}

// MQTT 5, 3.1.2-8, 3.1.2-10, 3.1.3-9, 3.14.4-3 and 3.1.2.5; MQTT 3.1.1, 3.1.2-8 and 3.1.2-10.
func TestWhenAWillIsSent(t *testing.T) {
	s := start(t)
	vanish := func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) { c.Close() }
	takeOver := func(resume bool) func(t *testing.T, s *server, c *mqtttest.Client, id string) {
		return func(t *testing.T, s *server, c *mqtttest.Client, id string) {
			s.connect(t, mqtttest.Connect{ID: id, Resume: resume, Properties: forAnHour})
			c.ExpectDisconnect(0x8E)
		}
	}
	for _, w := range []willCase{
		{name: "connection lost", end: vanish, sent: true},
		{name: "connection lost, 3.1.1", version: 4, end: vanish, sent: true},
		{name: "disconnect", end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) { c.Disconnect() }},
		{name: "disconnect, 3.1.1", version: 4, end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) { c.Disconnect() }},
		{name: "disconnect with will", sent: true, end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) {
			c.Send(`e0 01 04`)
			c.ExpectClosed()
		}},
		{name: "disconnect with an error", sent: true, end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) {
			c.Send(`e0 01 80`)
			c.ExpectClosed()
		}},
		{name: "protocol error", sent: true, end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) {
			c.Send(`36 len s"a" 0001 00`)
			c.ExpectDisconnect(0x81)
		}},
		{name: "protocol error, 3.1.1", version: 4, sent: true, end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) {
			c.Send(`00 00`)
			c.ExpectClosed()
		}},
		{name: "second connect", sent: true, end: func(_ *testing.T, _ *server, c *mqtttest.Client, _ string) {
			c.SendConnect(mqtttest.Connect{ID: "x"})
			c.ExpectDisconnect(0x82)
		}},
		{name: "taken over", properties: forAnHour, end: takeOver(true), sent: true},
		{name: "taken over, delay", properties: forAnHour, delay: afterAnHour, end: takeOver(true)},
		{name: "taken over by a new session, delay", properties: forAnHour, delay: afterAnHour, end: takeOver(false), sent: true},
		{name: "delay", properties: forAnHour, delay: afterAnHour, end: vanish},
		{name: "delay, session ends with the connection", delay: afterAnHour, end: vanish, sent: true},
		{name: "delay, client returns", properties: forAnHour, delay: afterAnHour, end: func(t *testing.T, s *server, c *mqtttest.Client, id string) {
			c.Close()
			s.resume(t, keep(id))
		}},
		{name: "delay, client starts anew", properties: forAnHour, delay: afterAnHour, sent: true, end: func(t *testing.T, s *server, c *mqtttest.Client, id string) {
			c.Close()
			s.connect(t, mqtttest.Connect{ID: id})
		}},
	} {
		t.Run(w.name, func(t *testing.T) {
			id := w.name
			sub := s.connect(t, mqtttest.Connect{ID: "sub"})
			sub.Subscribe(id+"/#", 2)
			c := s.connect(t, mqtttest.Connect{
				ID: id, Version: w.version, Properties: w.properties,
				Will: &mqtttest.Publish{Topic: id + "/1", Payload: "bye", QoS: 1, Properties: w.delay},
			})
			w.end(t, s, c, id)
			if w.sent {
				sub.Receive(mqtttest.Publish{Topic: id + "/1", Payload: "bye", QoS: 1})
			}
			// Another will of the same kind comes after it: the first one does not come, or not twice.
			other := s.connect(t, mqtttest.Connect{ID: "other", Will: &mqtttest.Publish{Topic: id + "/2", QoS: 1}})
			other.Close()
			sub.Receive(mqtttest.Publish{Topic: id + "/2", QoS: 1})
			sub.Disconnect()
		})
	}
}

// MQTT 5, 3.1.3.2: every property of a will is sent with it, the delay excepted; its expiry begins when it is sent.
func TestWillKeepsItsProperties(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("w", 2)
	s.connect(t, mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{
		Topic: "w", Payload: "bye", QoS: 2,
		Properties: `18 00000001 01 01 02 00000064 03 s"text" 08 s"r" 09 s"c" 26 s"k" s"1" 26 s"k" s"2"`,
	}}).Close()
	p := sub.Receive(mqtttest.Publish{Topic: "w", Payload: "bye", QoS: 2}).Properties
	if p.PayloadFormat != 1 || p.MessageExpiryInterval < 90 || p.MessageExpiryInterval > 100 || p.ContentType != "text" ||
		p.ResponseTopic != "r" || string(p.CorrelationData) != "c" || len(p.User) != 2 || p.User[1].Val != "2" {
		t.Errorf("properties %+v", p)
	}
}

// MQTT 5, 3.1.2-14, 3.1.2-15: retained or not; a will without payload is allowed, and if retained it clears the topic.
func TestRetainedWill(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("w", 1)
	die := func(payload string, retain bool) {
		t.Helper()
		s.connect(t, mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "w", Payload: payload, Retain: retain}}).Close()
		sub.Receive(mqtttest.Publish{Topic: "w", Payload: payload})
		if retain { // a subscriber of the log may have the will before the store of retained messages has
			eventually(t, "store of retained messages", func() bool { return (s.stats().Retained == 0) == (payload == "") })
		}
	}
	held := func(want string) {
		t.Helper()
		c := s.connect(t, mqtttest.Connect{ID: "late"})
		c.Subscribe("w", 1)
		if want != "" {
			c.Receive(mqtttest.Publish{Topic: "w", Payload: want, Retain: true})
		}
		c.Ping()
		c.Disconnect()
	}
	die("not kept", false)
	held("")
	die("kept", true)
	held("kept")
	die("", false)
	held("kept")
	die("", true)
	held("")
}

// MQTT 5, 3.1.3-9 and 3.1.3.2.2: the delay runs from the end of the connection, and the end of the session cuts it short.
func TestWillDelay(t *testing.T) {
	t.Parallel()
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("w/#", 1)
	began := time.Now()
	will := func(topic, delay string) *mqtttest.Publish {
		return &mqtttest.Publish{Topic: topic, Properties: delay}
	}
	s.connect(t, mqtttest.Connect{ID: "a", Properties: forAnHour, Will: will("w/delay", `18 00000001`)}).Close()
	sub.Receive(mqtttest.Publish{Topic: "w/delay"})
	if d := time.Since(began); d < time.Second {
		t.Errorf("sent after %v, want at least 1 s", d)
	}
	began = time.Now()
	s.connect(t, mqtttest.Connect{ID: "b", Properties: `11 00000001`, Will: will("w/expiry", afterAnHour)}).Close()
	sub.Receive(mqtttest.Publish{Topic: "w/expiry"})
	if d := time.Since(began); d < time.Second {
		t.Errorf("sent after %v, want at least 1 s", d)
	}
	began = time.Now()
	c := s.connect(t, mqtttest.Connect{ID: "c", Properties: forAnHour, Will: will("w/shortened", afterAnHour)})
	c.Send(`e0 len 04 [ 11 00000001 ]`) // DISCONNECT changes the expiry
	sub.Receive(mqtttest.Publish{Topic: "w/shortened"})
	if d := time.Since(began); d < time.Second {
		t.Errorf("sent after %v, want at least 1 s", d)
	}
}

// A will that waits for its delay survives a restart, and comes when its time has passed meanwhile.
func TestWillSurvivesRestart(t *testing.T) {
	s := start(t)
	sub := s.connect(t, mqtttest.Connect{ID: "sub", Resume: true, Properties: `11 ffffffff`})
	sub.Subscribe("w/#", 1)
	sub.Disconnect()
	s.connect(t, mqtttest.Connect{
		ID: "w", Resume: true, Properties: `11 00015180`,
		Will: &mqtttest.Publish{Topic: "w/delayed", Payload: "bye", QoS: 1, Properties: afterAnHour},
	}).Close()
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "w/before", QoS: 1})
	pub.Disconnect()

	s.stop(t)
	s.pass(90 * time.Minute)
	s.run(t)
	sub = s.resume(t, mqtttest.Connect{ID: "sub", Resume: true, Properties: `11 ffffffff`})
	sub.Receive(mqtttest.Publish{Topic: "w/before", QoS: 1})
	sub.Receive(mqtttest.Publish{Topic: "w/delayed", Payload: "bye", QoS: 1})
}

// A will with a topic that the server refuses must not be found out only when its client is dead.
func TestWillOnServerTopicIsRefused(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	c.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "$SYS/broker/uptime"}})
	if pk := c.Expect(packets.Connack); pk.ReasonCode < 0x80 {
		t.Errorf("connack with 0x%02x", pk.ReasonCode)
	}
}

// An orderly stop ends the connections: a will without delay is sent, one with a delay waits for its time.
func TestWillsAtAStop(t *testing.T) {
	t.Parallel()
	s := start(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("w/#", 1)
	s.connect(t, mqtttest.Connect{ID: "now", Will: &mqtttest.Publish{Topic: "w/now", QoS: 1, Payload: "bye"}})
	s.connect(t, mqtttest.Connect{
		ID: "later", Properties: forAnHour,
		Will: &mqtttest.Publish{Topic: "w/later", QoS: 1, Payload: "bye", Properties: `18 00000258`},
	})
	s.restart(t)
	sub = s.resume(t, keep("sub"))
	sub.Receive(mqtttest.Publish{Topic: "w/now", QoS: 1, Payload: "bye"})
	sub.Ping()
	s.stop(t)
	s.pass(20 * time.Minute)
	s.run(t)
	sub = s.resume(t, keep("sub"))
	sub.Receive(mqtttest.Publish{Topic: "w/later", QoS: 1, Payload: "bye"})
}
