package mqtt

import (
	"net"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

func TestOpenFilesLimitConnections(t *testing.T) {
	f := func(configured int, files uint64, want int64) {
		t.Helper()
		if got := openLimit(configured, files); got != want {
			t.Errorf("max_connections %d, %d files: %d, want %d", configured, files, got, want)
		}
	}
	f(0, 100, 50)
	f(0, 1024, 768)
	f(0, 1<<20, 1<<20-1<<16)
	f(500, 1024, 500)
	f(5000, 1024, 768)
	f(0, 0, 0)
	f(7, 0, 7)
	f(0, 1<<63, 0) // no limit
}

// What does not come as far as MQTT counts, on every listener, and gives its place back.
func TestConnectionsCountFromTheirFirstByte(t *testing.T) {
	srv, _ := faulty(t, func(cfg *Config, _ *Options) {
		cfg.MaxConnections = 3
		cfg.Listeners = append(cfg.Listeners, ListenerConfig{Name: "ws", Type: ListenerWebSocket, Address: "127.0.0.1:0", Path: "/mqtt"})
	})
	dial := func(listener string) net.Conn {
		nc, err := net.Dial("tcp", srv.Addr(listener).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	opened := func(n int64) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); srv.opened.Load() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d places are taken, want %d", srv.opened.Load(), n)
			}
		}
	}
	idle := dial("ws")
	half := dial("ws")
	if _, err := half.Write([]byte("GET /mqtt HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	opened(2)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	opened(3)
	for _, listener := range []string{"tcp", "ws"} {
		nc := dial(listener)
		_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := nc.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: a connection too many got %d bytes", listener, n)
		}
	}
	if n := value(srv.metrics.overLimit); n != 2 {
		t.Errorf("%d refused", n)
	}
	c.Ping()
	idle.Close()
	half.Close()
	opened(1)
	ws := mqtttest.DialWebSocket(t, srv.Addr("ws"), "/mqtt")
	ws.Connect(mqtttest.Connect{ID: "ws"})
	opened(2)
	ws.Disconnect()
	c.Disconnect()
	opened(0)
	for _, l := range srv.listeners {
		if n := l.n.Load(); n != 0 {
			t.Errorf("%s: %d places are taken", l.cfg.Name, n)
		}
	}
}
