package mqtt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// filters is the body of a SUBSCRIBE (of an UNSUBSCRIBE without options) with n times the same filter.
func filters(n int, options bool) []byte {
	one := "\x00\x01a"
	if options {
		one += "\x00"
	}
	return append([]byte{0, 1, 0}, strings.Repeat(one, n)...)
}

func sendBody(c *mqtttest.Client, head byte, body []byte) {
	c.SendBytes(append(binary.AppendUvarint([]byte{head}, uint64(len(body))), body...))
}

func TestPacketsWithTooManyFiltersAreRefused(t *testing.T) {
	srv, _ := faulty(t, nil)
	f := func(head byte, options bool) {
		t.Helper()
		c := join(t, srv, mqtttest.Connect{ID: "c"})
		sendBody(c, head, filters(1000, options))
		if pk := c.Next(); len(pk.ReasonCodes) != 1000 {
			t.Errorf("%d reason codes, want 1000", len(pk.ReasonCodes))
		}
		sendBody(c, head, filters(1001, options))
		c.ExpectDisconnect(packets.ErrQuotaExceeded.Code)
	}
	f(packets.Subscribe<<4|2, true)
	f(packets.Unsubscribe<<4|2, false)
}

// Without max_subscriptions a client may subscribe to thousands at once, and give them up again.
func TestThousandsOfFiltersInOnePacket(t *testing.T) {
	srv, _ := faulty(t, func(cfg *Config, _ *Options) { cfg.MaxSubscriptions, cfg.MaxPacketSize = 0, 4<<20 })
	const n = 5000
	subscribe, unsubscribe := []byte{0, 1, 0}, []byte{0, 2, 0}
	for i := range n {
		filter := fmt.Sprintf("\x00\x05%05d", i)
		subscribe = append(append(subscribe, filter...), 1)
		unsubscribe = append(unsubscribe, filter...)
	}
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	answer := func(head byte, body []byte, want byte) {
		t.Helper()
		sendBody(c, head, body)
		pk := c.Next()
		if len(pk.ReasonCodes) != n || bytes.Count(pk.ReasonCodes, []byte{want}) != n {
			t.Errorf("%d reason codes, %d of them 0x%02X; want %d", len(pk.ReasonCodes), bytes.Count(pk.ReasonCodes, []byte{want}), want, n)
		}
	}
	answer(packets.Subscribe<<4|2, subscribe, 1)
	c.Publish(mqtttest.Publish{Topic: "04999", QoS: 1, Payload: "x"})
	c.Receive(mqtttest.Publish{Topic: "04999", QoS: 1, Payload: "x"})
	answer(packets.Unsubscribe<<4|2, unsubscribe, 0)
	answer(packets.Unsubscribe<<4|2, unsubscribe, reasonNoSubscription)

	sendBody(c, packets.Subscribe<<4|2, filters(mostFilters+1, true))
	c.ExpectDisconnect(packets.ErrQuotaExceeded.Code)
}

// What a client subscribes to while the log is slow is bounded by one packet: the next one is not looked at.
func TestSubscribesWaitForTheLogOneByOne(t *testing.T) {
	srv, log := faulty(t, nil)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	log.set(func() { log.hold = true })
	for range 50 {
		sendBody(c, packets.Subscribe<<4|2, filters(1000, true))
	}
	appended := func() (n int) {
		log.mu.Lock()
		defer log.mu.Unlock()
		for _, e := range log.queue {
			n += len(e.Changes)
		}
		return n
	}
	for appended() == 0 {
		c.ExpectNothing(time.Millisecond)
	}
	c.ExpectNothing(50 * time.Millisecond)
	srv.writer.mu.Lock()
	waiting := len(srv.writer.queue)
	srv.writer.mu.Unlock()
	if n := appended(); n > 1100 || waiting > 1 {
		t.Errorf("%d changes appended, %d entries waiting, want those of one packet", n, waiting)
	}
	log.set(func() { log.hold = false })
	for range 50 {
		c.Expect(packets.Suback)
	}
	c.Ping()
}

// A filter has one search for retained messages, however often it is subscribed to while the client does not read.
func TestRepeatedSubscribesAreOneSearch(t *testing.T) {
	srv, _ := faulty(t, nil)
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	for _, topic := range []string{"a", "b"} {
		pub.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: "x"})
	}
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: `21 0001`}) // Receive Maximum 1
	c.Subscribe("a", 1)
	held := c.Expect(packets.Publish)
	for range 100 {
		c.Subscribe("a", 1)
		c.Subscribe("+", 1)
	}
	jobs := func() int {
		srv.mu.Lock()
		s := srv.sessions["c"]
		srv.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.retained)
	}
	if n := jobs(); n != 2 {
		t.Errorf("%d searches, want 2", n)
	}
	c.Unsubscribe("a")
	if n := jobs(); n != 1 {
		t.Errorf("%d searches after UNSUBSCRIBE, want 1", n)
	}
	c.Finish(1, held.PacketID)
	for _, topic := range []string{"a", "b"} {
		c.Receive(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: "x"})
	}
	c.Ping()
}
