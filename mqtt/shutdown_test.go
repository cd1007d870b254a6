package mqtt

import (
	"context"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// What the log is about to store when the server is told to stop is acknowledged before the connection ends, so that its
// publisher need not send it again; what comes later is not read.
func TestShutdownWaitsForAcknowledgements(t *testing.T) {
	srv, log := faulty(t, nil)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	old := join(t, srv, mqtttest.Connect{ID: "old", Version: 4})
	idle := join(t, srv, mqtttest.Connect{ID: "idle"})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 9})
	c.ExpectAck(packets.Pubrec, 9, 0)
	log.set(func() { log.hold = true })
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: 1})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 2})
	c.SendAck(packets.Pubrel, 9)
	c.Ping()
	old.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: 3})
	old.Ping()

	closed := make(chan error, 1)
	go func() { closed <- srv.Close(context.Background()) }()
	idle.ExpectDisconnect(0x8B)
	c.SendPublish(mqtttest.Publish{Topic: "late", QoS: 1, ID: 4})
	log.set(func() { log.hold = false })
	c.ExpectAck(packets.Puback, 1, 0)
	c.ExpectAck(packets.Pubrec, 2, 0)
	c.ExpectAck(packets.Pubcomp, 9, 0)
	c.ExpectDisconnect(0x8B)
	old.ExpectAck(packets.Puback, 3, 0)
	old.ExpectClosed()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := len(log.records); n != 4 {
		t.Errorf("%d records", n)
	}
}

// A log that does not answer holds up the end for half of the deadline, not for longer, and nothing is acknowledged.
func TestShutdownDoesNotWaitForEver(t *testing.T) {
	srv, log := faulty(t, nil)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	log.set(func() { log.hold = true })
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: 1})
	c.Ping()
	ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
	defer cancel()
	_ = srv.Close(ctx)
	c.ExpectDisconnect(0x8B)
}
