package mqtt_test

import (
	"encoding/json"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// audited is a guarded server whose audit events are in the stream "audit", and a client that reads them.
func audited(t *testing.T, rules string, change ...func(*mqtt.Config)) (*guarded, *mqtttest.Client) {
	t.Helper()
	g := guard(t, rules+"allow subscribe topic=$forebay/audit/# user=eve\n", append(change, func(c *mqtt.Config) {
		c.Audit.Log, c.Audit.Stream, c.Audit.Rate = audit.LogAll, "audit", 1000
	})...)
	reader := g.connect(t, as("eve"))
	reader.Subscribe("$forebay/audit/#", 1)
	return g, reader
}

// nextEvent reads until an event of the name comes.
func nextEvent(t *testing.T, reader *mqtttest.Client, name string) audit.Event {
	t.Helper()
	for {
		pk := reader.Expect(packets.Publish)
		if pk.FixedHeader.Qos > 0 {
			reader.SendAck(packets.Puback, pk.PacketID)
		}
		var e audit.Event
		if err := json.Unmarshal(pk.Payload, &e); err != nil {
			t.Fatal(err)
		}
		if e.Name == name && e.Client != "eve" { // who is the reader
			return e
		}
	}
}

// Who came in, who did not and why, what was denied: each is an event in the stream, and a line in the log.
func TestAuditTellsOfClients(t *testing.T) {
	g, reader := audited(t, "allow all topic=plant/# user=ann\n")
	c := g.connect(t, as("ann"))
	if e := nextEvent(t, reader, audit.Connected); e.Client != "ann" || e.User != "ann" || e.Method != "password" || e.Listener != "tcp" || e.Remote == "" {
		t.Errorf("%+v", e)
	}
	c.SendPublish(mqtttest.Publish{Topic: "secret", QoS: 1, ID: 1})
	c.ExpectAck(packets.Puback, 1, 0x87)
	if e := nextEvent(t, reader, audit.Denied); e.Action != "publish" || e.Topic != "secret" || e.User != "ann" || e.Reason != "0x87" {
		t.Errorf("%+v", e)
	}
	if reason := c.ExpectSuback(c.SendSubscribe("other/#", 0)); reason != 0x87 {
		t.Errorf("SUBACK 0x%02X", reason)
	}
	if e := nextEvent(t, reader, audit.Denied); e.Action != "subscribe" || e.Topic != "other/#" {
		t.Errorf("%+v", e)
	}
	c.Disconnect()
	if e := nextEvent(t, reader, audit.Disconnected); e.Client != "ann" || e.Detail != "by DISCONNECT" {
		t.Errorf("%+v", e)
	}
	d := g.dial(t)
	d.SendConnect(mqtttest.Connect{ID: "press", UserName: "ann", Password: "wrong"})
	d.ExpectConnack(0x86)
	if e := nextEvent(t, reader, audit.Refused); e.Client != "press" || e.User != "ann" || e.Reason != "0x86" || e.Method != "" {
		t.Errorf("%+v", e)
	}
	w := g.dial(t)
	w.SendConnect(mqtttest.Connect{ID: "w", UserName: "ann", Password: "ann", Will: &mqtttest.Publish{Topic: "secret"}})
	w.ExpectConnack(0x87)
	if e := nextEvent(t, reader, audit.Denied); e.Action != "will" || e.Topic != "secret" {
		t.Errorf("%+v", e)
	}
	x := g.dial(t)
	x.Send("30 05 00 01 61 62 63") // a PUBLISH first
	x.ExpectClosed()
	if e := nextEvent(t, reader, audit.Refused); e.Client != "w" { // of the will
		t.Errorf("%+v", e)
	}
	if e := nextEvent(t, reader, audit.Refused); e.Client != "" || e.Reason != "0x82" {
		t.Errorf("%+v", e)
	}
	if g.log.count("msg=audit", "event=client.refused", "client=press", "reason=0x86") != 1 {
		t.Error("not in the log")
	}
}

// The topics of the gateway are for the gateway: nobody publishes there, and without rules nobody reads them.
func TestAuditTopicsAreTheGatewaysOwn(t *testing.T) {
	g := guard(t, "", func(c *mqtt.Config) { c.Audit.Stream = "audit" })
	c := g.connect(t, as("ann"))
	c.SendPublish(mqtttest.Publish{Topic: "$forebay/audit/client.connected", QoS: 1, ID: 1})
	c.ExpectAck(packets.Puback, 1, 0x90)
	for _, filter := range []string{"$forebay/#", "$forebay/audit/client.connected", "$share/g/$forebay/audit/+", "$forebay"} {
		if reason := c.ExpectSuback(c.SendSubscribe(filter, 0)); reason != 0x87 {
			t.Errorf("%s: 0x%02X", filter, reason)
		}
	}
	c.Subscribe("#", 0)
	d := g.connect(t, as("bob")) // an event, which # does not match
	d.Disconnect()
	c.Ping()
	w := g.dial(t)
	w.SendConnect(mqtttest.Connect{ID: "w", UserName: "ann", Password: "ann", Will: &mqtttest.Publish{Topic: "$forebay/x"}})
	w.ExpectConnack(0x90)
}
