package mqtt

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// fakeUpstream tells those who wait when the test says so.
type fakeUpstream struct {
	mu      sync.Mutex
	list    []*Awaited
	earlier []*Awaited
	away    string
	atOnce  string // told to everybody at once, "-" to nobody
}

func (u *fakeUpstream) Await(_ string, _ int, at spool.Offset, w *Awaited) {
	u.mu.Lock()
	u.list = append(u.list, w)
	tell := u.atOnce
	u.mu.Unlock()
	switch tell {
	case "-":
	case "", lateLost:
		w.Settled(tell)
	default:
		w.Doubt(tell)
	}
}

func (u *fakeUpstream) AwaitEarlier(_ string, w *Awaited) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.earlier = append(u.earlier, w)
}

func (u *fakeUpstream) Away(string, int) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.away
}

func (u *fakeUpstream) set(away, atOnce string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.away, u.atOnce = away, atOnce
}

// waits returns those who wait, once there are n of them.
func (u *fakeUpstream) waits(t *testing.T, n int) []*Awaited {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		u.mu.Lock()
		list := slices.Clone(u.list)
		u.mu.Unlock()
		if len(list) >= n {
			return list
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", len(list), n)
		}
	}
}

// upstreamed starts a server whose publishers wait for u.
func upstreamed(t *testing.T, fallback AckFallback, timeout time.Duration) (*Server, *fakeLog, *fakeUpstream) {
	t.Helper()
	u := &fakeUpstream{atOnce: "-"}
	srv, log := faulty(t, func(_ *Config, o *Options) {
		o.Upstream, o.Acks = u, map[string]AckRule{spool.DefaultStream: {Timeout: timeout, Fallback: fallback}}
	})
	return srv, log, u
}

const (
	never = time.Hour
	soon  = 100 * time.Millisecond
)

func publish1(c *mqtttest.Client, id uint16) {
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: id})
}

func publish2(c *mqtttest.Client, id uint16) {
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: id})
}

func (l *fakeLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.records)
}

func TestPubackWaitsForTheUpstreamAndKeepsItsOrder(t *testing.T) {
	srv, log, u := upstreamed(t, AckRefuse, never)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	for id := uint16(1); id <= 4; id++ {
		if id == 3 {
			publish2(c, id)
		} else {
			publish1(c, id)
		}
	}
	c.SendPublish(mqtttest.Publish{Topic: "t"}) // QoS 0 waits for nothing
	list := u.waits(t, 4)
	c.ExpectNothing(50 * time.Millisecond)
	for _, i := range []int{3, 1, 2} {
		list[i].Settled("")
	}
	c.ExpectNothing(50 * time.Millisecond)
	list[0].Settled(unrouted)
	c.ExpectAck(packets.Puback, 1, 0)
	c.ExpectAck(packets.Puback, 2, 0)
	c.ExpectAck(packets.Pubrec, 3, 0)
	c.ExpectAck(packets.Puback, 4, 0)
	c.SendAck(packets.Pubrel, 3)
	c.ExpectAck(packets.Pubcomp, 3, 0)
	c.Ping()
	if n := log.count(); n != 5 {
		t.Errorf("%d records, want 5", n)
	}
	m := srv.upstream.streams[spool.DefaultStream].metrics
	if a, b := value(m.arrived), value(m.unrouted); a != 3 || b != 1 {
		t.Errorf("%d arrived, %d unrouted, want 3 and 1", a, b)
	}
	list[0].Settled("") // told twice
	c.Ping()
}

func TestFallbackWhenTheTimeIsOver(t *testing.T) {
	f := func(name string, fallback AckFallback, version byte, qos byte, check func(t *testing.T, c *mqtttest.Client)) {
		t.Run(name, func(t *testing.T) {
			srv, log, u := upstreamed(t, fallback, soon)
			c := join(t, srv, mqtttest.Connect{ID: "c", Version: version})
			c.SendPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: 7})
			check(t, c)
			if n := log.count(); n != 1 {
				t.Errorf("%d records, want 1: it stays in the spool", n)
			}
			s := srv.upstream.streams[spool.DefaultStream]
			if n := value(s.metrics.fallbacks[lateTimeout]); n != 1 {
				t.Errorf("%d fallbacks counted, want 1", n)
			}
			if err := srv.Health(); err == nil || !strings.Contains(err.Error(), "timeout, fallback "+string(fallback)) {
				t.Errorf("health %v", err)
			}
			u.waits(t, 1)[0].Settled("") // too late
		})
	}
	f("accept 1", AckAccept, 5, 1, func(_ *testing.T, c *mqtttest.Client) { c.ExpectAck(packets.Puback, 7, 0) })
	f("accept 2", AckAccept, 5, 2, func(_ *testing.T, c *mqtttest.Client) { c.ExpectAck(packets.Pubrec, 7, 0) })
	f("refuse 1", AckRefuse, 5, 1, func(t *testing.T, c *mqtttest.Client) {
		p := c.Expect(packets.Puback)
		if p.ReasonCode != 0x97 || p.PacketID != 7 || !strings.Contains(p.Properties.ReasonString, "may still be sent") {
			t.Errorf("got %+v", p)
		}
	})
	f("refuse 2", AckRefuse, 5, 2, func(_ *testing.T, c *mqtttest.Client) {
		c.ExpectAck(packets.Pubrec, 7, 0x97)
		c.SendAck(packets.Pubrel, 7)
		c.ExpectAck(packets.Pubcomp, 7, 0x92) // it is over
	})
	f("refuse 3.1.1", AckRefuse, 4, 1, func(_ *testing.T, c *mqtttest.Client) { c.ExpectClosed() })
	f("refuse 3.1.1 QoS 2", AckRefuse, 4, 2, func(_ *testing.T, c *mqtttest.Client) { c.ExpectClosed() })
	f("accept 3.1.1", AckAccept, 4, 1, func(_ *testing.T, c *mqtttest.Client) { c.ExpectAck(packets.Puback, 7, 0) })
	f("disconnect 1", AckDisconnect, 5, 1, func(_ *testing.T, c *mqtttest.Client) { c.ExpectDisconnect(0x89) })
	f("disconnect 2", AckDisconnect, 5, 2, func(_ *testing.T, c *mqtttest.Client) { c.ExpectDisconnect(0x89) })
}

func TestUpstreamTellsThatNobodyNeedWait(t *testing.T) {
	srv, _, u := upstreamed(t, AckAccept, never)
	u.set("", lateHeld)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	for id := uint16(1); id <= 100; id++ {
		publish1(c, id)
	}
	for id := uint16(1); id <= 100; id++ {
		c.ExpectAck(packets.Puback, id, 0)
	}
	if n := value(srv.upstream.streams[spool.DefaultStream].metrics.fallbacks[lateHeld]); n != 100 {
		t.Errorf("%d fallbacks, want 100", n)
	}
	// A record that is gone is not durable here either.
	u.set("", lateLost)
	publish1(c, 1)
	c.ExpectAck(packets.Puback, 1, 0x97)
}

// A client that would be disconnected waits to the end of its time, whatever is known, and its message may arrive until then: it would be
// back at once, and store its messages again.
func TestWhoWouldBeDisconnectedIsNotDisconnectedAtOnce(t *testing.T) {
	srv, _, u := upstreamed(t, AckRefuse, never)
	u.set("", lateHeld)
	old := join(t, srv, mqtttest.Connect{ID: "old", Version: 4})
	publish1(old, 1)
	w := u.waits(t, 1)[0]
	old.ExpectNothing(50 * time.Millisecond)
	w.Doubt(lateHeld)
	w.Settled("")
	old.ExpectAck(packets.Puback, 1, 0)

	srv, _, u = upstreamed(t, AckDisconnect, soon)
	u.set("", lateHeld)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	publish1(c, 1)
	c.ExpectDisconnect(0x89)
	if n := value(srv.upstream.streams[spool.DefaultStream].metrics.fallbacks[lateHeld]); n != 1 {
		t.Errorf("%d fallbacks of reason held, want 1", n)
	}
}

func TestNothingIsStoredWhileTheUpstreamIsAway(t *testing.T) {
	f := func(fallback AckFallback, version byte, stored int, check func(c *mqtttest.Client)) {
		t.Helper()
		srv, log, u := upstreamed(t, fallback, never)
		u.set(lateUnreachable, lateUnreachable)
		c := join(t, srv, mqtttest.Connect{ID: "c", Version: version})
		publish1(c, 1)
		check(c)
		if n := log.count(); n != stored {
			t.Errorf("%s: %d records, want %d", fallback, n, stored)
		}
		if n := value(srv.upstream.streams[spool.DefaultStream].metrics.fallbacks[lateUnreachable]); n != 1 {
			t.Errorf("%s: %d fallbacks, want 1", fallback, n)
		}
	}
	f(AckRefuse, 5, 0, func(c *mqtttest.Client) { c.ExpectAck(packets.Puback, 1, 0x97) })
	f(AckRefuse, 4, 0, func(c *mqtttest.Client) { c.ExpectClosed() })
	f(AckDisconnect, 5, 0, func(c *mqtttest.Client) { c.ExpectDisconnect(0x89) })
	f(AckAccept, 5, 1, func(c *mqtttest.Client) { c.ExpectAck(packets.Puback, 1, 0) })
}

func TestRepetitionAfterATakeOverIsAnsweredWithTheFirst(t *testing.T) {
	srv, log, u := upstreamed(t, AckRefuse, never)
	first := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	publish2(first, 1)
	w := u.waits(t, 1)[0]
	second := join(t, srv, mqtttest.Connect{ID: "c", Resume: true, Properties: hour})
	second.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 1, Dup: true})
	second.ExpectNothing(50 * time.Millisecond)
	w.Settled("")
	second.ExpectAck(packets.Pubrec, 1, 0)
	second.SendAck(packets.Pubrel, 1)
	second.ExpectAck(packets.Pubcomp, 1, 0)
	if n := log.count(); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

func TestRepetitionAfterADisconnectWaitsAgain(t *testing.T) {
	srv, log, u := upstreamed(t, AckDisconnect, soon)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	publish2(c, 1)
	c.ExpectDisconnect(0x89)
	for n := 2; n <= 3; n++ { // late once more
		c = join(t, srv, mqtttest.Connect{ID: "c", Resume: true, Properties: hour})
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 1, Dup: true})
		if u.waits(t, n)[n-1].at != 0 {
			t.Error("waits for another record")
		}
		c.ExpectDisconnect(0x89)
	}
	u.set("", "")
	c = join(t, srv, mqtttest.Connect{ID: "c", Resume: true, Properties: hour})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 1, Dup: true})
	c.ExpectAck(packets.Pubrec, 1, 0)
	c.SendAck(packets.Pubrel, 1)
	c.ExpectAck(packets.Pubcomp, 1, 0)
	if n := log.count(); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

// After a restart all that is known of an identifier is that its record is in the log: a repetition waits for everything that was in
// the stream, and is stored no second time.
func TestRepetitionAfterARestartWaitsForWhatWasThere(t *testing.T) {
	srv, log, _ := upstreamed(t, AckRefuse, never)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	publish2(c, 1)
	for log.count() == 0 {
		time.Sleep(time.Millisecond)
	}
	u := &fakeUpstream{atOnce: "-"}
	next, err := New(t.Context(), srv.cfg, Options{
		Log: log, Upstream: u, Acks: map[string]AckRule{spool.DefaultStream: {Timeout: never, Fallback: AckRefuse}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- next.Run(t.Context()) }()
	defer func() {
		if err := next.Close(t.Context()); err != nil {
			t.Error(err)
		}
		<-done
	}()
	c = join(t, next, mqtttest.Connect{ID: "c", Resume: true, Properties: hour})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 1, Dup: true})
	var earlier []*Awaited
	until(t, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		earlier = slices.Clone(u.earlier)
		return len(earlier) > 0
	})
	c.ExpectNothing(50 * time.Millisecond)
	if len(earlier) != 1 {
		t.Fatalf("%d wait, want 1", len(earlier))
	}
	earlier[0].Settled("")
	c.ExpectAck(packets.Pubrec, 1, 0)
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 1, Dup: true}) // known now
	c.ExpectAck(packets.Pubrec, 1, 0)
	if n := log.count(); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

// The identifier of a refused message is free: the next message with it is another one, after a crash too.
func TestRefusedIdentifierIsFreeBeforeItsPubrec(t *testing.T) {
	srv, log, u := upstreamed(t, AckRefuse, soon)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	publish2(c, 1)
	c.ExpectAck(packets.Pubrec, 1, 0x97)
	log.mu.Lock()
	left := len(log.state[spaceInbound])
	log.mu.Unlock()
	if left != 0 {
		t.Errorf("%d identifiers are durable after the refusal", left)
	}
	u.set("", "")
	publish2(c, 1)
	c.ExpectAck(packets.Pubrec, 1, 0)
	if n := log.count(); n != 2 {
		t.Errorf("%d records, want 2", n)
	}
}

func TestClientThatIsGoneIsNoFallback(t *testing.T) {
	srv, _, u := upstreamed(t, AckRefuse, never)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	publish1(c, 1)
	publish2(c, 2)
	list := u.waits(t, 2)
	c.Close()
	until(t, func() bool { return srv.Stats().Connections == 0 })
	for _, w := range list {
		w.Doubt(lateHeld)
	}
	m := srv.upstream.streams[spool.DefaultStream].metrics
	until(t, func() bool { return value(m.abandoned) == 2 })
	for reason, n := range m.fallbacks {
		if value(n) != 0 {
			t.Errorf("%d fallbacks of reason %s", value(n), reason)
		}
	}
}

func TestTooManyWaitingFallBackAtOnce(t *testing.T) {
	srv, _, u := upstreamed(t, AckAccept, never)
	srv.upstream.mu.Lock()
	srv.upstream.waiting = maxAwaited
	srv.upstream.mu.Unlock()
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	publish1(c, 1)
	c.ExpectAck(packets.Puback, 1, 0)
	if n := value(srv.upstream.streams[spool.DefaultStream].metrics.fallbacks[lateTooMany]); n != 1 {
		t.Errorf("%d fallbacks, want 1", n)
	}
	srv.upstream.mu.Lock()
	srv.upstream.waiting = 0
	srv.upstream.mu.Unlock()
	u.set("", "")
	publish1(c, 2)
	c.ExpectAck(packets.Puback, 2, 0)
}

// Receive Maximum bounds what one client makes wait.
func TestWaitingCountsAgainstReceiveMaximum(t *testing.T) {
	srv, _, u := upstreamed(t, AckRefuse, never)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	for id := range srv.cfg.ReceiveMaximum + 1 {
		publish1(c, uint16(id+1))
	}
	c.ExpectDisconnect(0x93)
	if n := len(u.waits(t, srv.cfg.ReceiveMaximum)); n != srv.cfg.ReceiveMaximum {
		t.Errorf("%d wait", n)
	}
}

func TestStopWaitsForTheUpstream(t *testing.T) {
	srv, _, u := upstreamed(t, AckRefuse, never)
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	publish1(c, 1)
	w := u.waits(t, 1)[0]
	srv.stop()
	c.ExpectNothing(20 * time.Millisecond)
	w.Settled("")
	c.ExpectAck(packets.Puback, 1, 0)
	c.ExpectDisconnect(0x8B)
}

func TestAckSeriesAreThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	faulty(t, func(_ *Config, o *Options) {
		o.Registerer = reg
		o.Upstream, o.Acks = &fakeUpstream{}, map[string]AckRule{"a": {Timeout: never, Fallback: AckRefuse}, "b": {Timeout: never, Fallback: AckAccept}}
	})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]int)
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"forebay_mqtt_upstream_acks_waiting": 2, "forebay_mqtt_upstream_ack_seconds": 2, "forebay_mqtt_upstream_acks_total": 6,
		"forebay_mqtt_upstream_ack_fallbacks_total": 2 * len(lateReasons),
	} {
		if series[name] != want {
			t.Errorf("%s: %d series, want %d", name, series[name], want)
		}
	}
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s")
		}
	}
}
