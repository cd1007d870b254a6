package mqtt

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

func TestCutMovesTheLanesThatAreFurthestBehind(t *testing.T) {
	f := func(l behindLimit, pos, want positions, over [3]uint64) {
		t.Helper()
		got, n := l.cut(pos)
		if !slices.Equal(got, want) || n != over {
			t.Errorf("cut to %v, over %v; want %v, %v", got, n, want, over)
		}
	}
	ends := positions{100, 1000, 50}
	f(behindLimit{ends: ends}, positions{0, 0, 0}, nil, [3]uint64{})
	f(behindLimit{ends: ends, records: 1150}, positions{0, 0, 0}, nil, [3]uint64{})
	f(behindLimit{ends: ends, records: 250}, positions{0, 0, 0}, positions{0, 900, 0}, [3]uint64{0, 900, 0})
	f(behindLimit{ends: ends, records: 60}, positions{90, 0, 50}, positions{90, 950, 50}, [3]uint64{0, 950, 0})
	f(behindLimit{ends: ends, oldest: positions{10, 1000, 0}}, positions{0, 0, 0}, positions{10, 1000, 0}, [3]uint64{1010, 0, 0})
	f(behindLimit{ends: ends, size: 200, each: []int64{10, 1, 1}}, positions{90, 900, 50}, nil, [3]uint64{})
	f(behindLimit{ends: ends, size: 100, each: []int64{10, 1, 1}}, positions{90, 900, 50}, positions{95, 950, 50}, [3]uint64{0, 0, 55})
	f(behindLimit{ends: ends, records: 1}, positions{2000, 2000, 2000}, nil, [3]uint64{}) // above the end: nothing is behind
}

// away waits until a client is off its session: it has seen the end of its connection before.
func away(srv *Server, id string) *session {
	for {
		for _, s := range srv.allSessions() {
			s.mu.Lock()
			offline := s.conn == nil
			s.mu.Unlock()
			if s.id == id && offline {
				return s
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// limited starts a server with limits and puts n messages into the log for a session that is away.
func limited(t *testing.T, n int, change func(*Config)) (*Server, *fakeLog) {
	t.Helper()
	srv, log := faulty(t, func(cfg *Config, _ *Options) { change(cfg) })
	sub := join(t, srv, mqtttest.Connect{ID: "sub", Properties: hour})
	sub.Subscribe("t", 1)
	sub.Disconnect()
	away(srv, "sub")
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	for i := range n {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: fmt.Sprint(i)})
	}
	pub.Disconnect()
	return srv, log
}

func TestSessionTooFarBehindLosesTheOldest(t *testing.T) {
	for _, c := range []struct {
		reason string
		set    func(*Config)
	}{
		{behindRecords, func(cfg *Config) { cfg.MaxBehindRecords = 3 }},
		{behindSize, func(cfg *Config) { cfg.MaxBehindSize = 399 }},
	} {
		srv, _ := limited(t, 10, c.set)
		srv.limitBehind()
		srv.limitBehind() // within the limits: nothing more is lost
		sub := mqtttest.Dial(t, srv.Addr("tcp"))
		sub.SendConnect(mqtttest.Connect{ID: "sub", Resume: true, Properties: hour})
		if !sub.ExpectConnack(0).SessionPresent {
			t.Error("the session is gone")
		}
		for i := 7; i < 10; i++ {
			sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: fmt.Sprint(i)})
		}
		sub.Ping()
		if got := srv.Stats().Skipped[c.reason]; got != 7 {
			t.Errorf("%s: %d skipped, want 7", c.reason, got)
		}
	}
}

func TestSessionTooLongBehindLosesTheOldest(t *testing.T) {
	srv, _ := faulty(t, func(cfg *Config, _ *Options) { cfg.MaxBehindTime = unit.Duration(time.Minute) })
	sub := join(t, srv, mqtttest.Connect{ID: "sub", Properties: hour})
	sub.Subscribe("t", 1)
	sub.Disconnect()
	away(srv, "sub")
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "old"})
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "new"})
	if got := srv.behindLimit().oldest; !slices.Equal(got, positions{0}) {
		t.Errorf("records of this minute begin at %v", got)
	}
	l := &behindLimit{ends: srv.lanes.ends(), oldest: positions{1}} // as a minute later
	away(srv, "sub").limitBehind(l)
	sub = mqtttest.Dial(t, srv.Addr("tcp"))
	sub.Connect(mqtttest.Connect{ID: "sub", Resume: true, Properties: hour})
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "new"})
	if got := srv.Stats().Skipped[behindTime]; got != 1 {
		t.Errorf("%d skipped", got)
	}
}

func TestSessionTooFarBehindEnds(t *testing.T) {
	srv, log := limited(t, 10, func(cfg *Config) { cfg.MaxBehindRecords, cfg.WhenBehind, cfg.MaxQueued = 3, behindEndSession, 0 })
	srv.limitBehind()
	for _, s := range srv.allSessions() {
		if s.id == "sub" {
			t.Error("the session is still there")
		}
	}
	sub := join(t, srv, mqtttest.Connect{ID: "sub", Resume: true, Properties: hour})
	sub.Subscribe("t", 1)
	// A connected one that does not acknowledge is told.
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	slow := mqtttest.Dial(t, srv.Addr("tcp"))
	slow.Connect(mqtttest.Connect{ID: "slow", Properties: hour + `21 0001`})
	slow.Subscribe("t", 1)
	for i := range 10 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: fmt.Sprint(i)})
		sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: fmt.Sprint(i)})
	}
	srv.limitBehind()
	slow.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "0"})
	slow.ExpectDisconnect(0x97)
	sub.Ping()
	log.mu.Lock()
	defer log.mu.Unlock()
	if _, ok := log.state[spaceSession]["slow"]; ok {
		t.Error("its state is still there")
	}
}
