package gateway

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/gateway/config"
)

func TestLoggerThrottlesRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := NewLogger(config.Log{Level: config.LevelDebug, Format: config.FormatText}, &out)
		count := func(want int, contains string) {
			t.Helper()
			if got := strings.Count(out.String(), contains); got != want {
				t.Errorf("%d lines with %q, want %d in\n%s", got, contains, want, &out)
			}
			out.Reset()
		}

		a, b := log.With("component", "bridge", "route", "a"), log.With("component", "bridge").With("route", "b")
		for i := range 100 {
			a.Warn("upstream is down", "err", errors.New("refused"), "attempt", i)
		}
		b.Warn("upstream is down")
		count(throttleBurst+1, "upstream is down")

		time.Sleep(throttleWindow)
		a.Warn("upstream is down")
		count(1, "repeats=95")

		a.Error("upstream is down") // a level up is another line
		a.Warn("upstream is up")
		count(2, "upstream is")

		for range 100 {
			log.Debug("published")
		}
		count(100, "published")
	})
}

func TestLoggerForgetsOldLines(t *testing.T) {
	s := &seen{lines: map[string]*line{}}
	now := time.Unix(0, 0)
	for i := range 3 * throttleKeys {
		if _, pass := s.take(strings.Repeat("x", i), now); !pass {
			t.Fatalf("the first line of message %d did not pass", i)
		}
		if len(s.lines) > throttleKeys {
			t.Fatalf("%d lines remembered", len(s.lines))
		}
		now = now.Add(time.Millisecond)
	}
}

func TestLoggerFormats(t *testing.T) {
	var out bytes.Buffer
	log := NewLogger(config.Log{Level: config.LevelWarn, Format: config.FormatJSON}, &out)
	log.Info("not written")
	log.With("component", "spool").Warn("spool is full", slog.Duration("for", time.Second))
	if got := out.String(); !strings.HasPrefix(got, `{"time":`) || !strings.Contains(got, `"component":"spool"`) || !strings.Contains(got, `"for":"1s"`) || strings.Contains(got, "not written") {
		t.Errorf("got %s", got)
	}
}
