package demo

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

var escapes = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)

// busy is a view with large numbers everywhere.
func busy() view {
	v := view{
		phase: "publishing", elapsed: 754 * time.Second, duration: time.Hour, devices: 100_000, outage: 4200 * time.Millisecond,
		spooled: 123_456_789, disk: 3 << 30, lag: 1_234_567, memory: 300 << 20, shutdown: "Ctrl-C ends it",
		fleet: fleet.Snapshot{Published: 123_456_789, Acknowledged: 123_456_000, InFlight: 789, Delivered: 120_000_000, Bridged: 119_000_000},
		ack:   fleet.Latency{Count: 1, P50: 0.8, P99: 123456},
	}
	for i := range 100 {
		v.history, v.lags = keep(v.history, float64(i%7)), keep(v.lags, float64(i))
	}
	return v
}

func TestPictureFitsEveryWindow(t *testing.T) {
	for _, colour := range []bool{true, false} {
		s := &screen{colour: colour}
		for width := 1; width < 200; width++ {
			for _, height := range []int{1, 5, 24, 60} {
				out := s.compose(busy(), width, height)
				if n := strings.Count(out, "\n") + 1; n > height {
					t.Fatalf("%dx%d: %d lines", width, height, n)
				}
				text := escapes.ReplaceAllString(out, "")
				if strings.Contains(text, "\x1b") {
					t.Fatalf("%dx%d: a broken escape sequence: %q", width, height, text)
				}
				for l := range strings.SplitSeq(text, "\r\n") {
					if n := utf8.RuneCountInString(l); n >= width && n > 0 {
						t.Fatalf("%dx%d: a line of %d columns: %q", width, height, n, l)
					}
				}
			}
		}
	}
}

func TestPictureShowsTheNumbers(t *testing.T) {
	v := busy()
	text := escapes.ReplaceAllString((&screen{}).compose(v, 100, 40), "")
	for _, want := range []string{
		"publishing", "12:34 of 60:00", "100000 devices", "DOWN, back in 5 s", "published", "123,456,789", "3.0 GiB on disk", "1,234,567",
		"0.8 ms", "123.5 s", "memory 300.0 MiB", "▁", "█",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the picture:\n%s", want, text)
		}
	}
	v.outage, v.upstreamUp = 0, true
	if text := (&screen{}).compose(v, 100, 40); !strings.Contains(text, "Kafka up") {
		t.Errorf("the upstream is not up:\n%s", text)
	}
	if line := plain(v); strings.Contains(line, "\n") || !strings.Contains(line, "published 123456789") || !strings.Contains(line, "upstream up") {
		t.Errorf("plain line: %s", line)
	}
}

func TestRecorderCountsBySecondAndHoldsLatency(t *testing.T) {
	var r recorder
	at := time.Unix(0, 0)
	v := view{}
	for range 40 {
		at = at.Add(250 * time.Millisecond)
		v.fleet.Published += 500
		v.fleet.Ack = fleet.Latency{Count: 1, P50: 3}
		v = r.add(v, at)
	}
	if v.now.published < 1990 || v.now.published > 2010 {
		t.Errorf("rate %v, want 2000", v.now.published)
	}
	v.fleet.Ack = fleet.Latency{}
	if v = r.add(v, at.Add(time.Second)); v.ack.P50 != 3 {
		t.Errorf("p50 is %v after a quiet second, want the 3 from before", v.ack.P50)
	}
	if len(r.history) > maxHistory {
		t.Errorf("%d values kept", len(r.history))
	}
}

func TestFigures(t *testing.T) {
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f(number(0), "0")
	f(number(999), "999")
	f(number(1000), "1,000")
	f(number(1234567), "1,234,567")
	f(number(-1000), "-1,000")
	f(size(5), "5 B")
	f(size(1536), "1.5 KiB")
	f(size(5<<40), "5.0 TiB")
	f(millis(0), "-")
	f(millis(1.25), "1.2 ms")
	f(millis(2500), "2.5 s")
	f(clock(65*time.Second, 0), "1:05")
	f(clock(65*time.Second, time.Minute), "1:00 of 1:00")
	f(sparks([]float64{0, 7}, 5), "▁█")
	f(sparks([]float64{1, 2, 3}, 0), "")
}
