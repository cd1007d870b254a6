package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/spool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kept is a spool that remembers.
type kept struct {
	mu   sync.Mutex
	recs []*spool.Record
	fail error
	hold chan struct{} // not nil: Append waits for it, or for the end of its context
}

func (k *kept) Append(ctx context.Context, e spool.Entry) error {
	k.mu.Lock()
	hold := k.hold
	k.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		return k.fail
	}
	if e.Stream != "audit" {
		return fmt.Errorf("stream %q", e.Stream)
	}
	k.recs = append(k.recs, e.Record)
	return nil
}

// events are those of the stream.
func (k *kept) events(t *testing.T) (list []Event) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.recs {
		var e Event
		if err := json.Unmarshal(r.Payload, &e); err != nil {
			t.Fatal(err)
		}
		if r.Topic != TopicPrefix+e.Name || r.ReceivedAt != e.Time.UnixNano() {
			t.Errorf("record of %s at %v: topic %s, received at %d", e.Name, e.Time, r.Topic, r.ReceivedAt)
		}
		list = append(list, e)
	}
	return list
}

type bench struct {
	*Recorder
	kept kept
	log  bytes.Buffer
	reg  *prometheus.Registry
	stop func()
}

// start must be called in a bubble: its time is virtual.
func start(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{reg: prometheus.NewRegistry()}
	r, err := New(cfg, Options{Logger: slog.New(slog.NewTextHandler(&b.log, nil)), Spool: &b.kept, Registerer: b.reg})
	if err != nil {
		t.Fatal(err)
	}
	b.Recorder = r
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	b.stop = func() { cancel(); <-done }
	t.Cleanup(r.Close)
	return b
}

func (b *bench) metric(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "forebay_mqtt_audit_"+name && (label == "" || labelled(m, label)) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func labelled(m *dto.Metric, value string) bool {
	for _, l := range m.GetLabel() {
		if l.GetValue() == value {
			return true
		}
	}
	return false
}

func streaming() Config {
	c := DefaultConfig()
	c.Stream = "audit"
	return c
}

func TestEventsAreLinesAndRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, streaming())
		b.Record(Event{Name: Connected, Client: "press-7", User: "ann", Remote: "192.0.2.1:5", Listener: "tls", Method: "password"})
		b.Record(Event{Name: Refused, Client: "a\nevent=ban.added", Reason: "0x86"})
		b.Record(Event{Name: Denied, Client: strings.Repeat("ä", 300), Action: "publish", Topic: "x/" + strings.Repeat("y", 70_000)})
		b.stop()
		got := b.kept.events(t)
		if len(got) != 3 || got[0].Client != "press-7" || got[0].Method != "password" || got[1].Client != "a\nevent=ban.added" {
			t.Fatalf("stream: %+v", got)
		}
		if n := len(got[2].Client); n > maxText+3 || !strings.HasSuffix(got[2].Client, "ä…") || len(got[2].Topic) > maxText+3 {
			t.Errorf("a client ID of %d bytes, a topic of %d", n, len(got[2].Topic))
		}
		lines := strings.Split(strings.TrimSpace(b.log.String()), "\n")
		if len(lines) != 2 {
			t.Fatalf("log:\n%s", b.log.String())
		}
		if !strings.Contains(lines[0], `level=WARN msg=audit event=client.refused client="a\nevent=ban.added" reason=0x86`) {
			t.Errorf("log: %s", lines[0])
		}
	})
}

func TestLogHasWhatIsConfigured(t *testing.T) {
	f := func(log string, want int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := start(t, Config{Log: log, Rate: 1})
			b.Record(Event{Name: Connected})
			b.Record(Event{Name: Refused})
			b.stop()
			if n := strings.Count(b.log.String(), "msg=audit"); n != want {
				t.Errorf("log %s: %d lines, want %d", log, n, want)
			}
			if len(b.kept.recs) > 0 {
				t.Errorf("log %s: a stream that nobody asked for", log)
			}
		})
	}
	f(LogNone, 0)
	f(LogImportant, 1)
	f(LogAll, 2)
}

// A storm costs a bounded number of events, says how many are missing, and one address leaves room for the others.
func TestStormsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streaming()
		cfg.Rate = 8
		b := start(t, cfg)
		const burst = 8 * burstSeconds
		for range 100_000 {
			b.Record(Event{Name: Refused, Remote: "192.0.2.1:7"})
		}
		b.Record(Event{Name: Refused, Remote: "198.51.100.1:7"}) // or it shares a bucket with the first
		b.Record(Event{Name: Banned})
		synctest.Wait()
		n := len(b.kept.events(t))
		if n < burst/sourceShare+1 || n > burst/sourceShare+2 {
			t.Errorf("%d events of a storm from one address", n)
		}
		for i := range 100_000 {
			b.Record(Event{Name: Refused, Remote: fmt.Sprintf("[2001:db8:%x:%x::1]:7", i>>8, i&255)})
		}
		time.Sleep(tellAfter + time.Second)
		synctest.Wait()
		got := b.kept.events(t)
		if len(got) > burst+2+tallied { // the ban, and the summaries of the sources and of the rest
			t.Errorf("%d events of a storm from everywhere", len(got))
		}
		missing := uint64(0)
		for _, e := range got {
			if e.Name == Refused || e.Name == Suppressed {
				missing += e.Missing
			}
		}
		recorded := b.metric(t, "events_total", Refused)
		if missing == 0 || float64(missing) != b.metric(t, "missing_total", Refused) || float64(missing)+recorded != 200_001 {
			t.Errorf("%v recorded, %d missing", recorded, missing)
		}
		told := map[string]Event{}
		for _, e := range got {
			if e.Name == Suppressed {
				told[e.Remote] = e
			}
		}
		if len(told) != tallied+1 {
			t.Errorf("%d summaries of what is missing, want one for each of %d sources and one for the rest", len(told), tallied)
		}
		for source, name := range map[string]string{"192.0.2.1": "192.0.2.1", "": "elsewhere"} {
			e := told[source]
			if want := fmt.Sprintf("%d more of %s from %s in 10 s", e.Missing, Refused, name); e.What != Refused || e.Detail != want || e.Missing < 90_000 {
				t.Errorf("summary %+v, want %q", e, want)
			}
		}
		b.Record(Event{Name: Refused, Remote: "192.0.2.1:7"}) // 11 seconds later
		b.stop()
		if after := b.kept.events(t); len(after) != len(got)+1 {
			t.Errorf("%d events after the storm", len(after)-len(got))
		}
	})
}

// A stream that does not take them costs events, and nobody waits.
func TestStreamThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streaming()
		cfg.Rate = maxRate
		b := start(t, cfg)
		hold := make(chan struct{})
		b.kept.mu.Lock()
		b.kept.hold = hold
		b.kept.mu.Unlock()
		began := time.Now()
		for range 3 * queueLength {
			b.Record(Event{Name: Connected})
		}
		if time.Since(began) != 0 {
			t.Error("recording waits")
		}
		synctest.Wait()
		if lost := b.metric(t, "lost_total", ""); lost < 2*queueLength-1 {
			t.Errorf("%v lost", lost)
		}
		b.kept.mu.Lock()
		b.kept.fail = errors.New("full")
		b.kept.mu.Unlock()
		close(hold)
		b.stop()
		if lost := b.metric(t, "lost_total", ""); lost < 3*queueLength-1 {
			t.Errorf("%v lost", lost)
		}
	})
}

func TestNilRecorderTakesNothing(*testing.T) { (*Recorder)(nil).Record(Event{Name: Refused}) }

func TestConfigFaultsNameTheKey(t *testing.T) {
	f := func(c Config, want string) {
		t.Helper()
		err := c.Validate()
		if err == nil && want != "" || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	f(DefaultConfig(), "")
	f(Config{Log: "some", Rate: 1}, "audit.log")
	f(Config{Log: LogAll}, "audit.rate")
}
