package mqtt_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// flood publishes n messages and returns how long it takes until the last is acknowledged.
func flood(c *mqtttest.Client, n int, payload string) time.Duration {
	began := time.Now()
	var last uint16
	for range n {
		last = c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload})
	}
	for {
		if pk := c.Expect(packets.Puback); pk.PacketID == last {
			return time.Since(began)
		}
	}
}

// Who sends more than he may is not read: nothing is refused and nothing is lost, it takes its time.
func TestRatesSlowTheReader(t *testing.T) {
	f := func(limit string, n int, payload string, change func(*mqtt.Config)) {
		t.Helper()
		g := limited(t, func(c *mqtt.Config) {
			c.RateBurst = unit.Duration(100 * time.Millisecond)
			change(c)
		})
		c := g.connect(t, mqtttest.Connect{ID: "c"})
		if took := flood(c, n, payload); took < 400*time.Millisecond {
			t.Errorf("%s: %d messages in %v, want half a second", limit, n, took)
		}
		// A client is told of once, not for each of its packets; on a machine that pauses it is within its rate meanwhile, and above it anew.
		if told := g.metric(t, "limits_reached_total", limit); told < 1 || int(told) > n/3 {
			t.Errorf("%s: told %v times of %d messages", limit, told, n)
		}
		if s := g.metric(t, "slowed_seconds_total", limit); s <= 0 { // time in which a busy machine did nothing is not among it
			t.Errorf("%s: slowed for %v s", limit, s)
		}
		c.Ping()
		c.Disconnect()
	}
	f("client_rate", 60, "x", func(c *mqtt.Config) { c.ClientRate.Messages = 100 })
	f("client_rate", 60, strings.Repeat("x", 1000), func(c *mqtt.Config) { c.ClientRate.Bytes = 100_000 })
	f("client_rate", 60, "x", func(c *mqtt.Config) {
		c.ClientRate.Messages = 1
		c.Listeners[0].ClientRate.Messages = 100 // instead
	})
	f("listener_rate", 60, "x", func(c *mqtt.Config) { c.Listeners[0].Rate.Messages = 100 })
	f("rate", 60, strings.Repeat("x", 1000), func(c *mqtt.Config) { c.Rate.Bytes = 100_000 })
}

// A rate for all is shared: two that send have half of it each, and one listener's is not another's.
func TestRatesAreSharedByThoseTheyAreFor(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) {
		c.RateBurst = unit.Duration(100 * time.Millisecond)
		c.Listeners[0].Rate.Messages = 30
	})
	done := make(chan time.Duration, 2)
	for i := range 2 {
		c := g.connect(t, mqtttest.Connect{ID: fmt.Sprint("c", i)})
		go func() { done <- flood(c, 30, "x") }()
	}
	ws := mqtttest.DialWebSocket(t, g.ws, "/mqtt")
	ws.Connect(mqtttest.Connect{ID: "ws"})
	flood(ws, 200, "x")
	if len(done) > 0 {
		t.Error("the other listener was slowed too, or the first was not")
	}
	if took := max(<-done, <-done); took < 1500*time.Millisecond {
		t.Errorf("60 messages of two clients in %v", took)
	}
}

// Who goes on for too long is refused or disconnected, if that is the policy.
func TestWhoStaysAboveTheRateIsRefused(t *testing.T) {
	start := func(policy string, change func(*mqtt.Config)) *guarded {
		t.Helper()
		return limited(t, func(c *mqtt.Config) {
			c.RateBurst, c.OverRateTime = unit.Duration(100*time.Millisecond), unit.Duration(300*time.Millisecond)
			c.ClientRate.Messages, c.WhenOverRate = 100, policy
			change(c)
		})
	}
	send := func(c *mqtttest.Client, n int) {
		for range n {
			c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: strings.Repeat("x", 100)})
		}
	}
	answers := func(c *mqtttest.Client, n int) map[byte]int {
		got := map[byte]int{}
		for {
			pk, err := c.TryNext(30 * time.Second)
			if err != nil {
				got[0xFF]++ // closed
				return got
			}
			got[pk.ReasonCode]++
			if pk.FixedHeader.Type == packets.Disconnect || got[0]+got[0x97] == n {
				return got
			}
		}
	}
	nothing := func(*mqtt.Config) {}
	const many = 200 // so many that it is still above the rate after a second in which a busy machine did nothing

	g := start("refuse", nothing)
	c := g.connect(t, mqtttest.Connect{ID: "c"})
	send(c, many)
	if got := answers(c, many); got[0] < 20 || got[0x97] < 20 {
		t.Errorf("refuse: %v", got)
	}
	c.Ping()
	c = g.connect(t, mqtttest.Connect{ID: "old", Version: 4})
	send(c, many)
	if got := answers(c, many); got[0] < 20 || got[0xFF] != 1 {
		t.Errorf("refuse, 3.1.1: %v", got)
	}

	g = start("disconnect", nothing)
	c = g.connect(t, mqtttest.Connect{ID: "c"})
	send(c, many)
	if got := answers(c, many); got[0] < 20 || got[0x96] != 1 {
		t.Errorf("disconnect: %v", got)
	}
	g = start("disconnect", func(c *mqtt.Config) { c.ClientRate = mqtt.RateConfig{Bytes: 12_000} })
	c = g.connect(t, mqtttest.Connect{ID: "c"})
	send(c, many)
	if got := answers(c, many); got[0] < 20 || got[0x97] != 1 {
		t.Errorf("disconnect for bytes: %v", got)
	}

	// It is its own rate that a client answers for, not that of all.
	g = start("disconnect", func(c *mqtt.Config) { c.ClientRate, c.Rate.Messages = mqtt.RateConfig{}, 100 })
	c = g.connect(t, mqtttest.Connect{ID: "c"})
	send(c, 100)
	if got := answers(c, 100); got[0] != 100 {
		t.Errorf("rate of all: %v", got)
	}
}

// No way of connecting again brings a new burst.
func TestRateGoesWithTheClient(t *testing.T) {
	f := func(how string, next mqtttest.Connect, leave bool) {
		t.Helper()
		g := limited(t, func(c *mqtt.Config) {
			c.RateBurst = unit.Duration(time.Second)
			c.ClientRate.Messages = 100
		})
		began := time.Now()
		for range 3 {
			c := g.connect(t, next)
			flood(c, 70, "x")
			if leave {
				c.Disconnect()
				eventually(t, how+": the session is over", func() bool { return g.srv.Stats().Sessions == 0 })
			}
		}
		if took := time.Since(began); took < 800*time.Millisecond {
			t.Errorf("%s: 210 messages over three connections, 100 at once and 100 a second, took %v", how, took)
		}
	}
	f("a session is resumed", mqtttest.Connect{ID: "c", Resume: true, Properties: "11 00 00 00 ff"}, false)
	f("a session is replaced", mqtttest.Connect{ID: "c", Properties: "11 00 00 00 ff"}, false)
	f("a session ends with its connection, which is taken over", mqtttest.Connect{ID: "c"}, false)
	f("a session has ended", mqtttest.Connect{ID: "c"}, true)
}

// What waits for its turn can be ended, and a keep-alive is not missed by who is kept waiting.
func TestSlowedConnectionCanBeTakenOver(t *testing.T) {
	g := limited(t, func(c *mqtt.Config) {
		c.RateBurst = unit.Duration(10 * time.Millisecond)
		c.ClientRate.Bytes = 1000
	})
	c := g.connect(t, mqtttest.Connect{ID: "c", KeepAlive: 1})
	c.SendPublish(mqtttest.Publish{Topic: "t", Payload: strings.Repeat("x", 3000)}) // three seconds
	c.Ping()
	c.SendPublish(mqtttest.Publish{Topic: "t", Payload: strings.Repeat("x", 100_000)})
	eventually(t, "not slowed", func() bool { return g.metric(t, "slowed_seconds_total", "client_rate") > 50 })
	began := time.Now()
	g.connect(t, mqtttest.Connect{ID: "c"})
	c.ExpectDisconnect(0x8E)
	if took := time.Since(began); took > 30*time.Second { // its turn comes after a hundred
		t.Errorf("the take-over took %v", took)
	}
}
