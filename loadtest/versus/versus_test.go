package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAcknowledgementBelongsToAFlight(t *testing.T) {
	f := func(qos byte, kinds []byte, pid uint16, want string) {
		t.Helper()
		fl := newFlights(qos, 2)
		if got := fl.take(time.Now()); got != 1 {
			t.Fatalf("the first identifier is %d", got)
		}
		var err error
		complete := false
		for _, kind := range kinds {
			if complete, err = fl.answered(kind, pid); err != nil {
				break
			}
		}
		got := "open"
		switch {
		case err != nil:
			got = "refused"
		case complete:
			got = "complete"
		}
		if got != want {
			t.Errorf("QoS %d, packets %v for identifier %d: %s, want %s", qos, kinds, pid, got, want)
		}
	}
	f(1, []byte{puback}, 1, "complete")
	f(1, []byte{puback}, 2, "refused")         // never sent
	f(1, []byte{puback}, 9, "refused")         // outside the window
	f(1, []byte{puback, puback}, 1, "refused") // twice
	f(1, []byte{pubrec}, 1, "refused")
	f(2, []byte{pubrec}, 1, "open")
	f(2, []byte{pubrec, pubcomp}, 1, "complete")
	f(2, []byte{pubcomp}, 1, "refused") // before its PUBREC
	f(2, []byte{pubrec, pubrec}, 1, "refused")
	f(2, []byte{puback}, 1, "refused")
}

func TestDeliveriesAreCountedByNumber(t *testing.T) {
	payloads, err := telemetry(200)
	if err != nil {
		t.Fatal(err)
	}
	f := func(seqs []uint64, received, skipped, again uint64) {
		t.Helper()
		s := &subscriber{qos: 1, next: make([]uint64, 300)}
		for _, seq := range seqs {
			number(payloads[7], 258, seq)
			if err := s.count(payloads[7]); err != nil {
				t.Fatal(err)
			}
		}
		if s.received.Load() != received || s.skipped.Load() != skipped || s.again.Load() != again {
			t.Errorf("%v: %d received, %d skipped, %d again", seqs, s.received.Load(), s.skipped.Load(), s.again.Load())
		}
	}
	f([]uint64{0, 1, 2}, 3, 0, 0)
	f([]uint64{0, 2, 3}, 3, 1, 0)
	f([]uint64{0, 1, 1}, 3, 0, 1)
	f([]uint64{0, 2, 1}, 3, 1, 1)
	if err := (&subscriber{}).count([]byte("something else that is long enough to hold a number")); err == nil {
		t.Error("a foreign message is counted")
	}
	if err := (&subscriber{next: make([]uint64, 5)}).count(payloads[7]); err == nil {
		t.Error("a message of an unknown publisher is counted")
	}
}

func TestTelemetryIsJSONAndVaries(t *testing.T) {
	payloads, err := telemetry(200)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for i, p := range payloads {
		number(p, i, uint64(i)<<20)
		var v map[string]any
		if err := json.Unmarshal(p, &v); err != nil || len(p) != 200 {
			t.Fatalf("%d bytes, %v: %s", len(p), err, p)
		}
		if from, seq, err := numberOf(p); err != nil || from != i || seq != uint64(i)<<20 {
			t.Fatalf("number %d of %d reads as %d of %d: %v", i<<20, i, seq, from, err)
		}
		seen[string(p[len(payloadHead):])] = true
	}
	if len(seen) != len(payloads) {
		t.Errorf("%d of %d payloads are alike", len(payloads)-len(seen), len(payloads))
	}
	if _, err := telemetry(20); err == nil {
		t.Error("a payload without room for its number is made")
	}
}

func TestPacketsReadBack(t *testing.T) {
	for _, v := range []dialect{version311, version5} {
		for qos := range byte(3) {
			head, idAt := v.publishHead("bench/1", qos, 5)
			packet := append(head, "hello"...)
			if qos > 0 {
				packet[idAt], packet[idAt+1] = 1, 2
			}
			got, pid, payload, err := v.delivery(packet[0], packet[2:])
			if err != nil || got != qos || string(payload) != "hello" || qos > 0 && pid != 258 {
				t.Errorf("version %d: QoS %d, identifier %d, payload %q: %v", v, got, pid, payload, err)
			}
		}
	}
}

func TestGateHoldsThePublisherBack(t *testing.T) {
	s := new(subscriber)
	g := &gate{ahead: 10, subs: []*subscriber{s}}
	now := time.Now()
	if !g.open(9, now) || g.open(10, now) {
		t.Error("the gate does not close after ten messages")
	}
	s.passed.Store(5)
	if !g.open(14, now) || g.open(15, now) {
		t.Error("the gate does not follow the subscriber")
	}
	if !g.open(15, now.Add(2*gateStall)) {
		t.Error("lost messages keep the gate closed")
	}
}

func TestRowsAreChosenByPattern(t *testing.T) {
	f := func(patterns string, want ...string) {
		t.Helper()
		chosen, held, err := chooseRows(patterns)
		var got []string
		for _, r := range chosen {
			got = append(got, r.name)
		}
		for _, i := range held {
			got = append(got, i.name)
		}
		if err != nil && len(want) > 0 || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %v, %v", patterns, got, err)
		}
	}
	f("q2-w1-s0", "q2-w1-s0")
	f("one-w1,idle", "one-w1", "idle")
	f("fan10-*", "fan10-q0", "fan10-q1", "fan10-q1-kept")
	f("idle*", "idle", "idle-sub", "idle-tls", "idle-50k")
	if _, _, err := chooseRows("q2-w1-s0,nothing"); err == nil {
		t.Error("a pattern that no row has is accepted")
	}
}
