package mqtt_test

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// server is a gateway's MQTT side on a real spool, with real sockets. It can be stopped and started again on the same
// directory.
type server struct {
	tcp, ws net.Addr

	cfg     mqtt.Config
	access  mqtt.Access
	spool   spool.Config
	ahead   atomic.Int64 // of the system clock, nanoseconds
	stepped atomic.Int64 // how far its wall clock was set
	stop    func(t testing.TB)

	stats func() mqtt.Stats
}

// start starts a server that is stopped when the test ends. change may change its configuration first.
func start(t testing.TB, change ...func(*mqtt.Config)) *server {
	t.Helper()
	return startWith(t, nil, change...)
}

// startWith is start with somebody who decides what clients may do.
func startWith(t testing.TB, access mqtt.Access, change ...func(*mqtt.Config)) *server {
	t.Helper()
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.access = access
	for _, f := range change {
		f(&s.cfg)
	}
	s.run(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

func newServer(dir string) *server {
	s := &server{cfg: mqtt.DefaultConfig(), spool: spool.DefaultConfig()}
	s.cfg.Listeners = []mqtt.ListenerConfig{
		{Name: "tcp", Type: mqtt.ListenerTCP, Address: "127.0.0.1:0"},
		{Name: "ws", Type: mqtt.ListenerWebSocket, Address: "127.0.0.1:0", Path: "/mqtt"},
	}
	s.cfg.TakeOverInterval = 0 // tests take over as fast as they can
	s.spool.Dir = dir
	s.spool.Journal.FileSize = 1 << 20
	// One partition: what different publishers send has one order too, and a later message proves that an earlier one
	// does not come.
	s.spool.Streams = []spool.StreamConfig{{Name: spool.DefaultStream, Partitions: 1}}
	return s
}

func (s *server) run(t testing.TB) {
	t.Helper()
	log, err := spool.Open(s.spool, spool.Options{Now: s.now})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := mqtt.New(t.Context(), s.cfg, mqtt.Options{Log: mqtt.SpoolLog(log), Access: s.access, Now: s.now, Own: s.own})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	s.tcp, s.ws = srv.Addr("tcp"), srv.Addr("ws")
	s.stats = srv.Stats
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	s.stop = func(t testing.TB) {
		t.Helper()
		cancel()
		deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := srv.Close(deadline); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := log.Close(); err != nil {
			t.Errorf("close spool: %v", err)
		}
		s.stop = func(testing.TB) {}
	}
}

// now is the server's clock.
func (s *server) now() time.Time { return s.own().Add(time.Duration(s.stepped.Load())) }

// own is its time without the steps of the wall clock.
func (s *server) own() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// step sets the wall clock.
func (s *server) step(d time.Duration) { s.stepped.Add(int64(d)) }

// pass lets time pass for the server's clock. Timers that run do not notice.
func (s *server) pass(d time.Duration) { s.ahead.Add(int64(d)) }

// restart stops the server in an orderly way and starts it again.
func (s *server) restart(t testing.TB) {
	t.Helper()
	s.stop(t)
	s.run(t)
}

// dial returns a client that has sent nothing yet.
func (s *server) dial(t testing.TB) *mqtttest.Client {
	t.Helper()
	return mqtttest.Dial(t, s.tcp)
}

// connect returns a connected client.
func (s *server) connect(t testing.TB, o mqtttest.Connect) *mqtttest.Client {
	t.Helper()
	c := s.dial(t)
	c.Connect(o)
	return c
}

// both runs f with each version of the protocol.
func both(t *testing.T, f func(t *testing.T, version byte)) {
	t.Run("v5", func(t *testing.T) { f(t, 5) })
	t.Run("v311", func(t *testing.T) { f(t, 4) })
}
