package mqtt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// checkSize compares the sum that is kept with the sessions themselves.
func checkSize(t *testing.T, srv *Server) {
	t.Helper()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	want := int64(0)
	for _, s := range srv.sessions {
		s.mu.Lock()
		want += s.sizeLocked()
		s.mu.Unlock()
	}
	if got := srv.sessionBytes.Load(); got != want {
		t.Errorf("sessions weigh %d, and %d is what is counted", want, got)
	}
}

func try(t *testing.T, srv *Server, o mqtttest.Connect, reason byte) *mqtttest.Client {
	t.Helper()
	c := mqtttest.Dial(t, srv.Addr("tcp"))
	c.SendConnect(o)
	c.ExpectConnack(reason)
	return c
}

// A client that has a session is let in at any limit, others are not, and the session of a refused one is not touched.
func TestSessionsAreLimited(t *testing.T) {
	srv, _ := faulty(t, func(cfg *Config, _ *Options) { cfg.MaxSessions = 2 })
	try(t, srv, mqtttest.Connect{ID: "a", Properties: hour}, 0).Disconnect()
	away(srv, "a")
	try(t, srv, mqtttest.Connect{ID: "b"}, 0)
	try(t, srv, mqtttest.Connect{ID: "c"}, 0x97)
	try(t, srv, mqtttest.Connect{ID: "c", Version: 4}, 0x03)
	try(t, srv, mqtttest.Connect{ID: "a", Resume: true, Properties: hour}, 0).Disconnect()
	away(srv, "a")
	try(t, srv, mqtttest.Connect{ID: "a"}, 0).Disconnect() // a clean start, and its end with the connection
	for {
		c := mqtttest.Dial(t, srv.Addr("tcp"))
		c.SendConnect(mqtttest.Connect{ID: "c"})
		if c.Next().ReasonCode == 0 {
			break
		}
	}
	checkSize(t, srv)
}

func TestSizeOfSessionsIsLimited(t *testing.T) {
	big := strings.Repeat("x", 3000)
	will := func(payload string) *mqtttest.Publish { return &mqtttest.Publish{Topic: "w", Payload: payload} }
	srv, _ := faulty(t, func(cfg *Config, _ *Options) { cfg.MaxSessionsSize = 10_000 })
	try(t, srv, mqtttest.Connect{ID: "a", Properties: hour, Will: will(big)}, 0)
	checkSize(t, srv)
	b := try(t, srv, mqtttest.Connect{ID: "b", Properties: hour, Will: will(big)}, 0)
	try(t, srv, mqtttest.Connect{ID: "c", Will: will(big)}, 0x97)
	try(t, srv, mqtttest.Connect{ID: "b", Resume: true, Properties: hour, Will: will(big + big)}, 0x97)
	b.Ping() // it was not taken over
	b = try(t, srv, mqtttest.Connect{ID: "b", Resume: true, Properties: hour, Will: will("small")}, 0)
	checkSize(t, srv)

	granted := 0
	for i := range 30 {
		if reason := b.ExpectSuback(b.SendSubscribe(fmt.Sprint("f/", i), 1)); reason == 1 {
			granted++
		} else if reason != 0x97 {
			t.Fatalf("SUBACK 0x%02X", reason)
		}
	}
	if granted < 5 || granted > 25 {
		t.Errorf("%d subscriptions", granted)
	}
	b.Subscribe("f/0", 0) // one that is there may be sent again
	checkSize(t, srv)
	b.Unsubscribe("f/0")
	checkSize(t, srv)
	b.Subscribe("f/new", 1)
	try(t, srv, mqtttest.Connect{ID: "b"}, 0) // a clean start gives back what it held
	checkSize(t, srv)
	try(t, srv, mqtttest.Connect{ID: "c", Will: will(big)}, 0)
	checkSize(t, srv)
}
