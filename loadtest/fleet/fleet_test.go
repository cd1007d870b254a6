package fleet

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a run that takes a fraction of a second.
func small(b *fakeBroker) Config {
	return Config{
		Broker: b.ln.Addr().String(), Devices: 4, Count: 400, Mix: Mix{1, 6, 3}, Payload: 200, Window: 10,
		Subscribers: 1, SubscriberQoS: 2, Drain: 30 * time.Second, Settle: 100 * time.Millisecond,
	}
}

func run(t *testing.T, cfg Config) *Report {
	t.Helper()
	f, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantFault fails unless the verdict names the fault, and an offender of that kind.
func wantFault(t *testing.T, r *Report, text, kind string) {
	t.Helper()
	if r.Verdict.Reconciled || !slices.ContainsFunc(r.Verdict.Faults, func(s string) bool { return strings.Contains(s, text) }) {
		t.Errorf("faults %q do not tell %q", r.Verdict.Faults, text)
	}
	if kind != "" && !slices.ContainsFunc(r.Verdict.Offenders, func(o Offender) bool { return o.Fault == kind }) {
		t.Errorf("no offender is %s: %v", kind, r.Verdict.Offenders)
	}
}

func TestHonestBrokerReconciles(t *testing.T) {
	b := newFakeBroker(t)
	r := run(t, small(b))
	v := r.Verdict
	if !v.Reconciled || v.Sent.Total() != 400 || v.Acknowledged.Total() != v.Sent[1]+v.Sent[2] || v.Checks[0].Unique.Total() != 400 {
		t.Errorf("%s", r.Text())
	}
	if l := r.Latency["acknowledged"]; l.Count != v.Acknowledged.Total() || l.P50 <= 0 || l.Max > 10_000 {
		t.Errorf("latency to the acknowledgement: %+v", l)
	}
}

func TestLostMessageIsMissing(t *testing.T) {
	b := newFakeBroker(t)
	n := 0
	b.take = func(p *packets.Publish) []*packets.Publish {
		if p.QoS > 0 {
			if n++; n == 50 {
				return nil
			}
		}
		return []*packets.Publish{p}
	}
	cfg := small(b)
	cfg.Drain = 2 * time.Second
	wantFault(t, run(t, cfg), "acknowledged messages are missing: subscriber 0", "missing")
}

func TestLostQoS0IsNoFault(t *testing.T) {
	b := newFakeBroker(t)
	b.take = func(p *packets.Publish) []*packets.Publish {
		if p.QoS == 0 {
			return nil
		}
		return []*packets.Publish{p}
	}
	if r := run(t, small(b)); !r.Verdict.Reconciled || r.Verdict.Checks[0].Unique[0] != 0 {
		t.Errorf("%s", r.Text())
	}
}

func TestDoubledQoS2IsAFaultAndQoS1IsNot(t *testing.T) {
	f := func(qos byte, subscriber uint8, fault bool) {
		t.Helper()
		b := newFakeBroker(t)
		n := 0
		b.take = func(p *packets.Publish) []*packets.Publish {
			if p.QoS == qos {
				if n++; n == 20 {
					return []*packets.Publish{p, p}
				}
			}
			return []*packets.Publish{p}
		}
		cfg := small(b)
		cfg.SubscriberQoS = subscriber
		r := run(t, cfg)
		if fault {
			wantFault(t, r, "1 messages came twice that may come once", "doubled")
		} else if !r.Verdict.Reconciled {
			t.Errorf("QoS %d: %s", qos, r.Text())
		}
		if r.Verdict.Checks[0].Doubled[qos] != 1 {
			t.Errorf("doubled: %v", r.Verdict.Checks[0].Doubled)
		}
	}
	f(2, 2, true)
	f(2, 1, false) // lowered to QoS 1
	f(1, 2, false)
}

func TestReorderIsAFaultAndRepetitionIsNot(t *testing.T) {
	b := newFakeBroker(t)
	var held *packets.Publish
	n := 0
	b.take = func(p *packets.Publish) []*packets.Publish {
		if p.QoS != 1 || !strings.Contains(p.Topic, "/00002/") {
			return []*packets.Publish{p}
		}
		switch n++; n {
		case 10:
			held = p
			return nil
		case 11:
			return []*packets.Publish{p, held}
		}
		return []*packets.Publish{p}
	}
	wantFault(t, run(t, small(b)), "1 messages came out of order", "reordered")

	b = newFakeBroker(t)
	var before []*packets.Publish
	b.take = func(p *packets.Publish) []*packets.Publish {
		if p.QoS != 1 {
			return []*packets.Publish{p}
		}
		before = append(before, p)
		if len(before) == 60 { // a session that resumes: all that was in flight comes again
			return before
		}
		return []*packets.Publish{p}
	}
	if r := run(t, small(b)); !r.Verdict.Reconciled || r.Verdict.Checks[0].Doubled[1] != 59 {
		t.Errorf("%s", r.Text())
	}
}

func TestChangedContentIsInvented(t *testing.T) {
	b := newFakeBroker(t)
	n := 0
	b.take = func(p *packets.Publish) []*packets.Publish {
		if n++; n == 50 {
			c := *p
			c.Payload = slices.Clone(p.Payload)
			c.Payload[len(c.Payload)/2] ^= 1
			return []*packets.Publish{p, &c}
		}
		return []*packets.Publish{p}
	}
	wantFault(t, run(t, small(b)), "1 messages came that were never sent like that", "invented")
}

func TestRefusalIsSettledAndNotMissing(t *testing.T) {
	b := newFakeBroker(t)
	n := 0
	b.tell = func(p *packets.Publish) byte {
		if n++; n%10 == 0 && p.QoS > 0 {
			return 0x97
		}
		return 0
	}
	r := run(t, small(b))
	if !r.Verdict.Reconciled || r.Verdict.Refused.Total() == 0 || r.Refusals["0x97"] != r.Verdict.Refused.Total() {
		t.Errorf("refusals %v: %s", r.Refusals, r.Text())
	}
}

func TestBrokenConnectionKeepsTheSession(t *testing.T) {
	b := newFakeBroker(t)
	for _, n := range []int{50, 51, 120, 200, 201, 300} {
		b.breaks[n] = true
	}
	r := run(t, small(b))
	if !r.Verdict.Reconciled || r.Reconnects == 0 || r.SessionsLost != 0 || r.Verdict.Sent.Total() != 400 {
		t.Errorf("%d reconnects, %d sessions lost: %s", r.Reconnects, r.SessionsLost, r.Text())
	}
	if r.Verdict.Checks[0].Doubled[2] != 0 {
		t.Errorf("QoS 2 doubled %d times", r.Verdict.Checks[0].Doubled[2])
	}
}

func TestForgottenSessionIsAFault(t *testing.T) {
	b := newFakeBroker(t)
	b.breaks[100] = true
	b.tell = func(*packets.Publish) byte {
		if b.taken == 99 {
			for id := range b.sessions {
				if strings.Contains(id, "device") {
					delete(b.sessions, id)
				}
			}
		}
		return 0
	}
	wantFault(t, run(t, small(b)), "1 sessions were lost by the broker", "")
}

func TestStopEndsPublishingAndDrains(t *testing.T) {
	b := newFakeBroker(t)
	cfg := small(b)
	cfg.Count, cfg.Rate = 0, 1000
	f, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for f.Snapshot().Acknowledged < 50 {
			time.Sleep(time.Millisecond)
		}
		f.Stop()
		f.Stop()
	}()
	r, err := f.Run(t.Context())
	if err != nil || !r.Verdict.Reconciled || r.Verdict.Acknowledged.Total() < 50 {
		t.Errorf("%v: %s", err, r.Text())
	}
}

func TestUnreachableBrokerIsAnError(t *testing.T) {
	f, err := New(Config{Broker: "127.0.0.1:1", Devices: 2, Count: 1, Drain: 50 * time.Millisecond}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("error %v", err)
	}
}

func TestAbortReturnsAtOnce(t *testing.T) {
	b := newFakeBroker(t)
	b.tell = func(p *packets.Publish) byte { return 0 }
	b.breaks[10] = true
	cfg := small(b)
	cfg.Count, cfg.Rate = 0, 500
	f, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := f.Run(ctx); err != nil || time.Since(begin) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}
