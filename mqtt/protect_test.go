package mqtt

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// The cursor of the sessions stands before what an offline session has not got, until it has been away for too long.
func TestSessionsKeepTheirRecords(t *testing.T) {
	var ahead atomic.Int64
	srv, log := faulty(t, func(c *Config, o *Options) {
		c.ProtectSessions = unit.Duration(time.Hour)
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	if !log.protect {
		t.Error("the cursor does not protect")
	}
	cursor := func(want spool.Offset) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // the distributor may be a moment behind the acknowledgement
			srv.commitLowWater()
			log.mu.Lock()
			got := log.cursor
			log.mu.Unlock()
			if got == want {
				return
			}
			if got > want || time.Now().After(end) {
				t.Fatalf("cursor %d, want %d", got, want)
			}
		}
	}
	sub := join(t, srv, mqtttest.Connect{ID: "sub", Properties: `11 00015180`})
	sub.Subscribe("t", 1)
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	for range 3 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1})
	}
	first := sub.Expect(3).PacketID
	sub.Expect(3)
	sub.Expect(3)
	cursor(0) // in flight
	sub.SendAck(4, first)
	sub.Ping()
	cursor(1)
	sub.SendAck(4, first+1)
	sub.SendAck(4, first+2)
	sub.Ping()
	cursor(3)
	sub.Disconnect()
	until(t, func() bool { return srv.Stats().Connections == 1 }) // it is away from now on
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1})
	pub.Ping()
	cursor(3)
	ahead.Store(int64(2 * time.Hour))
	cursor(5)
}

func TestDeepTopicsAreRefused(t *testing.T) {
	srv, _ := faulty(t, func(c *Config, _ *Options) { c.MaxTopicLevels = 3 })
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	c.Publish(mqtttest.Publish{Topic: "a/b/c", QoS: 1})
	c.SendPublish(mqtttest.Publish{Topic: "a/b/c/d", QoS: 1, ID: 9})
	c.ExpectAck(4, 9, 0x90)
	if reason := c.ExpectSuback(c.SendSubscribe("a/b/+/#", 1)); reason != 0x8F {
		t.Errorf("suback 0x%02x", reason)
	}
	c.Subscribe("$share/g/a/b/c", 1)
}

// What waits in memory for a slow client is bounded by its bytes too; the rest stays in the log and arrives.
func TestLargeMessagesDoNotWaitInMemory(t *testing.T) {
	srv, _ := faulty(t, func(c *Config, _ *Options) {
		c.OutputBuffer = 64 << 10
		c.MaxInflight = 1
	})
	sub := join(t, srv, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("t", 1)
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	big := string(make([]byte, 30<<10))
	for range 20 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: big})
	}
	srv.mu.Lock()
	s := srv.sessions["sub"]
	srv.mu.Unlock()
	s.mu.Lock()
	if s.waitingBytes > 64<<10 || s.feed.behind == 0 {
		t.Errorf("%d bytes wait, %d lanes are behind", s.waitingBytes, s.feed.behind)
	}
	s.mu.Unlock()
	for range 20 {
		sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: big})
	}
	sub.Ping()
}
