package mqtt

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

type sharedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *sharedLog) lines(with ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		all := true
		for _, w := range with {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	return n
}

// What the gateway refuses or ends because of its client stands in the log at its default level, a few times and not for each
// client; what clients end themselves does not.
func TestEndsByTheGatewayAreTold(t *testing.T) {
	var log sharedLog
	srv, _ := faulty(t, func(_ *Config, o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	f := func(want int, with ...string) {
		t.Helper()
		for late := time.Now().Add(30 * time.Second); log.lines(with...) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("%d lines with %q, want %d:\n%s", log.lines(with...), with, want, &log.b)
			}
		}
	}
	for range 3 {
		c := join(t, srv, mqtttest.Connect{ID: "sys", Version: 4})
		c.SendPublish(mqtttest.Publish{Topic: "$SYS/x", QoS: 1, ID: 1})
		c.ExpectClosed()
	}
	f(3, `msg="connection closed"`, "client=sys", "remote=127.0.0.1")
	f(1, "level=INFO", `msg="connection closed"`, "client=sys")

	send := func(text string) {
		t.Helper()
		nc, err := net.Dial("tcp", srv.Addr("tcp").String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, _ = nc.Read(make([]byte, 10))
	}
	send("\x10\x11\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x03old") // MQTT 3.1
	f(1, "level=INFO", `msg="connection closed"`, "reason 0x84")
	send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	f(2, "level=INFO", `msg="connection closed"`, `client=""`)

	c := join(t, srv, mqtttest.Connect{ID: "polite"})
	c.Disconnect()
	f(1, "level=DEBUG", "client=polite", "by=DISCONNECT")
}
