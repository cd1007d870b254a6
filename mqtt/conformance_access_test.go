package mqtt_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// decider is an Access made of functions; a missing one allows.
type decider struct {
	connect   func(id, userName string, password []byte) error
	publish   func(topic string) error
	subscribe func(filter string) error
}

func (d *decider) Connect(c mqtt.Client, password []byte) error {
	if d.connect == nil {
		return nil
	}
	return d.connect(c.ID, c.UserName, password)
}

func (d *decider) Publish(_ mqtt.Client, topic string, _ byte, _ bool) error {
	if d.publish == nil {
		return nil
	}
	return d.publish(topic)
}

func (d *decider) Subscribe(_ mqtt.Client, filter string, _ byte) error {
	if d.subscribe == nil {
		return nil
	}
	return d.subscribe(filter)
}

// MQTT 5, 3.1.4-2, 3.1.4-6, 3.2.2-6 and 3.2.2-7; MQTT 3.1.1, 3.1.4-5, 3.2.2-4 to 3.2.2-6: a client that is refused is told
// so, without Session Present, loses its connection, and nothing of what it sent with the CONNECT is looked at.
func TestRefusedConnectDoesNothing(t *testing.T) {
	var refuse atomic.Bool
	s := startWith(t, &decider{connect: func(id, _ string, _ []byte) error {
		if refuse.Load() && id == "c" {
			return mqtt.ErrNotAuthorized
		}
		return nil
	}})
	sub := s.connect(t, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("#", 1)
	for _, o := range []mqtttest.Connect{{ID: "c", Version: 4, Resume: true}, keep("c")} {
		refuse.Store(false)
		held := s.connect(t, o)
		held.Subscribe("c/only", 1)
		refuse.Store(true)
		c := s.dial(t)
		c.Version = 5
		if o.Version == 4 {
			c.Version = 4
			c.Send(`10 [ s"MQTT" 04 00 003c s"c" ] 32 [ s"a" 0001 "x" ] 30 [ s"a" "y" ] 82 [ 0002 s"b" 01 ]`)
			c.ExpectBytes(`20 02 00 05`)
		} else {
			c.Send(`10 [ s"MQTT" 05 00 003c 00 s"c" ] 32 [ s"a" 0001 00 "x" ] 30 [ s"a" 00 "y" ] 82 [ 0002 00 s"b" 01 ]`)
			if pk := c.Expect(packets.Connack); pk.ReasonCode != 0x87 || pk.SessionPresent {
				t.Errorf("connack %+v", pk)
			}
		}
		c.ExpectClosed()
		held.Ping() // who is refused takes nothing over
		held.Disconnect()
	}
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "end", QoS: 1})
	sub.Receive(mqtttest.Publish{Topic: "end", QoS: 1})
}

// The tables of MQTT 5 that say which reason codes a packet may hold, of a server.
var (
	connackReasons = []byte{0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
	pubackReasons  = []byte{0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
	subackReasons  = []byte{0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
)

// MQTT 5, 3.2.2-8, 3.4.2-1, 3.5.2-1 and 3.9.3-2; MQTT 3.1.1, 3.2.2-6, 3.3.5-2 and 3.9.3-2: whatever the reason for a refusal
// is, it is told with a code that the packet may hold, it is never a success, and it is not stored.
func TestRefusalsHaveReasonCodesOfTheirPackets(t *testing.T) {
	var current atomic.Pointer[error]
	refused := func(what string) error {
		if what == "refused" {
			return *current.Load()
		}
		return nil
	}
	s := startWith(t, &decider{
		connect:   func(id, _ string, _ []byte) error { return refused(id) },
		publish:   refused,
		subscribe: refused,
	})
	watch := s.connect(t, mqtttest.Connect{ID: "watch"})
	watch.Subscribe("#", 2)
	for _, reason := range []error{
		mqtt.ErrNotAuthorized, mqtt.ErrBadUserNameOrPassword, mqtt.ErrBanned, mqtt.ErrServerBusy, mqtt.ErrQuotaExceeded,
		errors.New("something else"), fmt.Errorf("wrapped: %w", mqtt.ErrNotAuthorized),
	} {
		current.Store(&reason)
		allowed := func(what string, got byte, want []byte) {
			t.Helper()
			if !slices.Contains(want, got) || got < 0x80 {
				t.Errorf("%s for %q: reason code 0x%02x", what, reason, got)
			}
		}
		c := s.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "refused"})
		allowed("CONNACK", c.Expect(packets.Connack).ReasonCode, connackReasons)
		c.ExpectClosed()
		c = s.dial(t)
		c.SendConnect(mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "refused"}})
		allowed("CONNACK to a will", c.Expect(packets.Connack).ReasonCode, connackReasons)
		c.ExpectClosed()

		c = s.connect(t, mqtttest.Connect{ID: "c"})
		c.SendPublish(mqtttest.Publish{Topic: "refused", QoS: 1})
		allowed("PUBACK", c.Expect(packets.Puback).ReasonCode, pubackReasons)
		c.SendPublish(mqtttest.Publish{Topic: "refused", QoS: 2})
		allowed("PUBREC", c.Expect(packets.Pubrec).ReasonCode, pubackReasons)
		c.SendPublish(mqtttest.Publish{Topic: "refused"})
		allowed("SUBACK", c.ExpectSuback(c.SendSubscribe("refused", 1)), subackReasons)
		c.Disconnect()

		old := s.dial(t)
		old.SendConnect(mqtttest.Connect{ID: "refused", Version: 4})
		if pk, err := old.TryNext(30 * time.Second); err == nil && (pk.FixedHeader.Type != packets.Connack || pk.ReasonCode < 1 || pk.ReasonCode > 5) {
			t.Errorf("CONNACK of 3.1.1 for %q: %+v", reason, pk)
		}
		old.ExpectClosed()
		old = s.connect(t, mqtttest.Connect{ID: "old", Version: 4})
		if got := old.ExpectSuback(old.SendSubscribe("refused", 1)); got != 0x80 {
			t.Errorf("SUBACK of 3.1.1 for %q: 0x%02x", reason, got)
		}
		old.SendPublish(mqtttest.Publish{Topic: "refused", QoS: 1})
		old.ExpectClosed()
	}
	watch.Publish(mqtttest.Publish{Topic: "end", QoS: 1})
	watch.Receive(mqtttest.Publish{Topic: "end", QoS: 1})
}
