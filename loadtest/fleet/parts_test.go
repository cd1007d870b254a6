package fleet

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func TestPayloadIsJSONAndReadsBack(t *testing.T) {
	f := func(size int, m message) {
		t.Helper()
		p := appendPayload(nil, "abc234", m, time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), size)
		if len(p) != size {
			t.Errorf("size %d: got %d bytes: %s", size, len(p), p)
		}
		if !json.Valid(p) {
			t.Errorf("size %d: not JSON: %s", size, p)
		}
		if got, err := parsePayload(p, "abc234"); err != nil || got != m {
			t.Errorf("size %d: read %+v, %v", size, got, err)
		}
		if _, err := parsePayload(p, "other2"); err != errForeign {
			t.Errorf("another run: %v", err)
		}
		for i := range p {
			p[i] ^= 0x20
			if _, err := parsePayload(p, "abc234"); err == nil {
				t.Errorf("size %d: a change at byte %d is not noticed", size, i)
			}
			p[i] ^= 0x20
		}
	}
	for size := minPayload; size < 300; size++ {
		f(size, message{17, 42, 81234567})
	}
	f(minPayload, message{maxDevices - 1, maxMessages - 1, 30 * 24 * time.Hour})
	f(5000, message{0, 0, 0})
}

func TestParsePayloadSurvivesAnything(t *testing.T) {
	for _, s := range []string{"", "{", `{"run":"`, `{"run":"abc234`, `{"run":"abc234"}`, `{"run":"abc234","device":`, `{"run":"abc234","device":1,"seq":2,"at":3`, strings.Repeat("x", 500)} {
		if _, err := parsePayload([]byte(s), "abc234"); err == nil {
			t.Errorf("%q is taken for a message", s)
		}
	}
}

func TestProfilesKeepTheRate(t *testing.T) {
	f := func(p Profile, rate float64) {
		t.Helper()
		n, last := 0, time.Duration(-1)
		for at := p.due(n, rate, 0.5); at < 100*time.Second; at = p.due(n, rate, 0.5) {
			if at < last {
				t.Fatalf("%v: message %d is due before the one ahead of it", p, n)
			}
			if p.Bursty() {
				if within := math.Mod(at.Seconds(), p.Period.Seconds()) / p.Period.Seconds(); within > p.Active+1e-6 {
					t.Fatalf("%v: message %d is due %.3f into its cycle", p, n, within)
				}
			}
			last = at
			n++
		}
		if want := 100 * rate; math.Abs(float64(n)-want) > want/100+2 {
			t.Errorf("%v at %v/s: %d messages in 100 s", p, rate, n)
		}
	}
	f(Steady, 10)
	f(Steady, 0.1)
	f(Bursty, 10)
	f(Bursty, 333.3)
	f(Bursty, 0.1)
	f(Profile{Name: "bursty", Period: 5 * time.Second, Active: 0.1}, 7)
}

func TestParseProfile(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		p, err := ParseProfile(in)
		if got := p.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	f("steady", "steady")
	f("bursty", "bursty:2s:0.25")
	f("bursty:5s", "bursty:5s:0.25")
	f("bursty:5s:0.1", "bursty:5s:0.1")
	f("bursty:5", "")
	f("bursty:5s:2", "")
	f("bursty:-5s", "")
	f("steady:1s", "")
	f("", "")
}

func TestMixKeepsItsShares(t *testing.T) {
	m, err := ParseMix("0:10,1:80,2:10")
	if err != nil {
		t.Fatal(err)
	}
	var n [3]int
	for d := range 100 {
		for s := range 1000 {
			n[m.QoS(d, s)]++
		}
	}
	for q, want := range []int{10_000, 80_000, 10_000} {
		if math.Abs(float64(n[q]-want)) > 1000 {
			t.Errorf("QoS %d: %d of 100000, want about %d", q, n[q], want)
		}
	}
	for _, s := range []string{"", "3:1", "1:x", "0:0", "1:-1", "a"} {
		if m, err := ParseMix(s); err == nil {
			t.Errorf("%q is read as %v", s, m)
		}
	}
	if m, err := ParseMix("2"); err != nil || m != (Mix{0, 0, 1}) {
		t.Errorf("a lone level: %v, %v", m, err)
	}
}

func TestConfigNamesAllFaults(t *testing.T) {
	_, err := New(Config{Broker: "nohost", Devices: -1, Rate: -1, Payload: 1, Window: 1e6, Count: -1, SubscriberQoS: 3, Kafka: []string{"x:1"}}, Options{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"broker:", "devices:", "rate:", "payload:", "window:", "count:", "subscribers:", "kafka:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in %v", want, err)
		}
	}
}

func TestBrokerURL(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		u, err := brokerURL(in)
		if err != nil && want != "" || err == nil && u.String() != want {
			t.Errorf("%q: %v, %v; want %q", in, u, err, want)
		}
	}
	f("127.0.0.1:1883", "tcp://127.0.0.1:1883")
	f("localhost:1883", "tcp://localhost:1883")
	f("mqtt://h:1", "tcp://h:1")
	f("ws://h:8083", "ws://h:8083/mqtt")
	f("ws://h:8083/x", "ws://h:8083/x")
	f("http://h:1", "")
	f("h", "")
	f("", "")
}

func TestBitmap(t *testing.T) {
	var b bitmap
	for _, n := range []int{0, 63, 64, 1000} {
		if b.has(n) || !b.set(n) || b.set(n) || !b.has(n) {
			t.Errorf("%d is not set once", n)
		}
	}
	if b.has(1) || b.has(1<<20) {
		t.Error("a number is in the set that nobody added")
	}
}
