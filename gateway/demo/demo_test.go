package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brief is a demo that is over soon.
func brief(out *bytes.Buffer) Options {
	o := DefaultOptions()
	o.Devices, o.Rate, o.Duration, o.Out = 10, 500, 2*time.Second, out
	return o
}

func TestDemoReconcilesThroughAnOutage(t *testing.T) {
	var out bytes.Buffer
	o := brief(&out)
	o.Duration, o.Outage = 3*time.Second, time.Second
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, want := range []string{"publishing", "upstream down", "upstream up", "reconciled: every acknowledged message"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, &out)
		}
	}
}

func TestDemoStopsWhenItsContextEnds(t *testing.T) {
	var out bytes.Buffer
	o := brief(&out)
	o.Duration, o.JSON, o.DataDir = 0, true, t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	o.Logger = slog.New(atMessage{slog.DiscardHandler, "segment begun", cancel}) // records are durable
	if err := Run(ctx, o); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	var r fleet.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || !r.Verdict.Reconciled || r.Verdict.Acknowledged.Total() == 0 {
		t.Errorf("%v: %+v", err, r.Verdict)
	}
}

// atMessage does something when a message is logged.
type atMessage struct {
	slog.Handler
	msg string
	do  func()
}

func (h atMessage) Enabled(context.Context, slog.Level) bool { return true }
func (h atMessage) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h atMessage) WithGroup(string) slog.Handler            { return h }
func (h atMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.msg {
		h.do()
	}
	return nil
}

func TestOptionsThatShowNothingAreRefused(t *testing.T) {
	f := func(change func(*Options), want string) {
		t.Helper()
		o := DefaultOptions()
		change(&o)
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	f(func(o *Options) { o.Duration, o.Outage = time.Second, time.Second }, "an outage of 1s does not fit into 1s")
	f(func(o *Options) { o.Duration = -time.Second }, "negative")
	f(func(o *Options) { o.Devices = 0 }, "0 devices")
	f(func(o *Options) { o.Rate = 0 }, "0 messages a second")
}

func TestBrokenPromiseIsAnError(t *testing.T) {
	f := func(spooled int64, faults []string, want string) {
		t.Helper()
		var out bytes.Buffer
		r := &fleet.Report{Verdict: fleet.Verdict{Reconciled: len(faults) == 0, Faults: faults, Acknowledged: fleet.ByQoS{0, 90, 10}}}
		err := (&demo{o: Options{Out: &out}}).conclude(r, spooled)
		if (err == nil) != (want == "") || !strings.Contains(out.String(), want) {
			t.Errorf("error %v, output %s; want %q", err, &out, want)
		}
	}
	f(100, nil, "")
	f(101, nil, "") // a publish that was repeated after a lost connection
	f(99, nil, "100 messages were acknowledged, and the spool took 99")
	f(100, []string{"1 acknowledged messages are missing: kafka"}, "NOT RECONCILED: 1 acknowledged messages are missing: kafka")
}

func TestTakenPortIsReplacedAndTold(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := ln.Addr().String()
	d := &demo{}
	if got := d.address("MQTT", taken); got == taken || len(d.notes) != 1 || !strings.Contains(d.notes[0], taken+" is taken, using "+got) {
		t.Errorf("%s is taken: got %s, notes %q", taken, got, d.notes)
	}
	ln.Close()
	if got := d.address("MQTT", taken); got != taken || len(d.notes) != 1 {
		t.Errorf("%s is free: got %s, notes %q", taken, got, d.notes)
	}
}

func TestOutageHappensOnce(t *testing.T) {
	u := &switchable{}
	o := outage{at: 5 * time.Second, length: 2 * time.Second}
	for now := time.Duration(0); now < 20*time.Second; now += 50 * time.Millisecond {
		o.step(now, u)
		if down, want := u.suspended > u.resumed, now >= o.at && now < o.at+o.length; down != want {
			t.Fatalf("at %v: down %t, want %t", now, down, want)
		}
	}
	if u.suspended != 1 || u.resumed != 1 {
		t.Errorf("suspended %d times, resumed %d times", u.suspended, u.resumed)
	}
}

// switchable counts instead of going away.
type switchable struct{ suspended, resumed int }

func (s *switchable) Suspend() { s.suspended++ }

func (s *switchable) Resume() error {
	s.resumed++
	return nil
}
