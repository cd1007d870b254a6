package bridge

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// A route that waits for an upstream says so from the start, while its patience lasts.
func TestRouteSaysThatItsUpstreamDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.stop()
		r.cluster.Close()
		r.publish(oneTopic("a"), 1, 1)
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.until("unreachable", stuckAfter/2, func() bool { return r.b.Health()[0].Reason == "unreachable" })
		if h := r.b.Health()[0]; h.State != OK || h.Since.IsZero() || h.Error == "" {
			t.Errorf("%+v", h)
		}
	})
}

// An upstream that was never there shows as one that goes away later does: in the log within seconds, and in the health.
func TestUpstreamThatIsAwayAtTheStartIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.cluster.Close()
		var log bytes.Buffer
		r.handler = slog.NewTextHandler(&log, nil)
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		f := func(down bool, lines int) {
			t.Helper()
			if u := r.b.Upstreams()[0]; u.Upstream != "main" || u.Down.IsZero() == down || down && (u.Error == "" || u.Reason == "") {
				t.Errorf("upstream %+v, want down %v", u, down)
			}
			if n := strings.Count(log.String(), "upstream is not reachable; records wait in the spool"); n != lines {
				t.Errorf("told %d times, want %d:\n%s", n, lines, &log)
			}
		}
		time.Sleep(5 * time.Second)
		f(true, 1)
		time.Sleep(30 * time.Minute)
		f(true, 1)
		if n := strings.Count(log.String(), "producer: "); n > 40 {
			t.Errorf("%d lines of the producer in half an hour", n)
		}
		r.startCluster(kfake.SeedTopics(1, "telemetry"))
		time.Sleep(time.Minute)
		f(false, 1)
		r.cluster.Close()
		time.Sleep(time.Minute)
		f(true, 2)
		r.startCluster(kfake.SeedTopics(1, "telemetry"))
		time.Sleep(time.Minute)
		f(false, 2)
	})
}

// A port that somebody else has is said to be that, and not for each try.
func TestPortThatIsNotKafkaIsToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.cluster.Close()
		var web []net.Listener
		for _, broker := range r.brokers {
			l, err := r.net.Listen("tcp", broker)
			if err != nil {
				t.Fatal(err)
			}
			web = append(web, l)
			go func() {
				for {
					c, err := l.Accept()
					if errors.Is(err, net.ErrClosed) || err != nil {
						return
					}
					_, _ = c.Read(make([]byte, 100))
					_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
					_ = c.Close()
				}
			}()
		}
		var log bytes.Buffer
		r.handler = slog.NewTextHandler(&log, nil)
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		time.Sleep(50 * time.Second)
		if u := r.b.Upstreams()[0]; u.Reason != "not_kafka" || !strings.Contains(u.Hint, "check the port") {
			t.Errorf("upstream %+v", u)
		}
		if n := strings.Count(log.String(), "producer: "); n > 3 {
			t.Errorf("%d lines of the producer:\n%s", n, &log)
		}
		for _, l := range web {
			_ = l.Close()
		}
		r.startCluster(kfake.SeedTopics(1, "telemetry"))
		time.Sleep(time.Minute)
	})
}
