package proof

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// spoolLog is what the spool has of machines' messages, by a dump.
type spoolLog struct {
	payloads []string
	count    map[string]int
	last     map[string]int // number of each machine's last message
}

// newSpoolLog reads a dump. Each machine's messages are in order, none is missing up to its last, and none of QoS 2 is there twice.
func newSpoolLog(t *testing.T, dump string) *spoolLog {
	t.Helper()
	l := &spoolLog{count: make(map[string]int), last: make(map[string]int)}
	for line := range strings.Lines(dump) {
		var r struct{ Topic, Payload string }
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Topic == "" {
			t.Fatalf("dump: %s: %v", line, err)
		}
		l.payloads = append(l.payloads, r.Payload)
		id, n := numberOf(r.Payload)
		next, seen := l.last[id], l.count[r.Payload] > 0
		if l.count[r.Payload]++; l.count[id+"/0"] > 0 && n > 0 {
			next++
		}
		switch {
		case seen && n%2 == 1:
			t.Errorf("%s, of QoS 2, is in the spool twice", r.Payload)
		case !seen && n != next:
			t.Errorf("%s comes behind number %d", r.Payload, l.last[id])
		}
		l.last[id] = max(l.last[id], n)
	}
	if len(l.payloads) == 0 {
		t.Fatal("the dump is empty")
	}
	return l
}

// wantIn waits until a subscriber that was away has all, in order, and of QoS 2 nothing twice. What it had before it went counts.
func (l *spoolLog) wantIn(t *testing.T, s *rawSubscriber) {
	t.Helper()
	var got map[string]int
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		got = make(map[string]int)
		for _, p := range s.all() {
			got[p]++
		}
		missing := ""
		for p := range l.count {
			if got[p] == 0 {
				missing = p
			}
		}
		if missing == "" {
			break
		}
		if time.Since(began) > time.Minute {
			t.Errorf("%s has %d of %d messages; %s is missing", s.id, len(got), len(l.count), missing)
			return
		}
	}
	last := make(map[string]int)
	for _, p := range s.all() {
		id, n := numberOf(p)
		if n < last[id] && got[p] == 1 {
			t.Errorf("%s got %s behind number %d", s.id, p, last[id])
		}
		last[id] = max(last[id], n)
		if s.qos == 2 && n%2 == 1 && got[p] > 1 {
			t.Errorf("%s got %s, of QoS 2, %d times", s.id, p, got[p])
		}
		if l.count[p] == 0 {
			t.Errorf("%s got %s, which is not in the spool", s.id, p)
		}
	}
}

// wantRetained wants a new subscriber to get each machine's last message that was retained.
func (l *spoolLog) wantRetained(t *testing.T, s *rawSubscriber) {
	t.Helper()
	want := make(map[string]bool)
	for id, n := range l.last {
		m := machine{id: id}
		want[m.payload(n-n%retainEvery)] = true
	}
	for began := time.Now(); len(s.all()) < len(want) && time.Since(began) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
	}
	got := s.all()
	for _, p := range got {
		if !want[p] {
			t.Errorf("%s is retained", p)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d messages are retained, want %d", len(got), len(want))
	}
}

// wantDelivered waits until a topic has all that is in the spool, each machine's in order. What it had well before comes not again behind
// ends, in the topic once nothing comes twice, and no two messages have one forebay.id.
func (l *spoolLog) wantDelivered(t *testing.T, k *kafka, topic string, ends map[int32]int64, before map[string]bool) {
	t.Helper()
	var all []delivery
	got := make(map[string]int)
	for began := time.Now(); ; time.Sleep(time.Second) {
		clear(got)
		all = deliveries(t, k, topic, ends)
		for _, d := range all {
			got[d.payload]++
		}
		missing := 0
		for p := range l.count {
			if got[p] == 0 {
				missing++
			}
		}
		if missing == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Errorf("%s: %d of %d messages are missing", topic, missing, len(l.count))
			break
		}
	}
	again, late, shared := 0, 0, 0
	ids := make(map[string]string)
	last := make(map[string]int)
	for _, d := range all {
		if was := ids[d.id]; was != "" && was != d.payload {
			if shared++; shared < 5 {
				t.Errorf("%s: %s and %s have one forebay.id, %s", topic, was, d.payload, d.id)
			}
		}
		ids[d.id] = d.payload
		if !d.late {
			continue
		}
		late++
		if got[d.payload] > 1 {
			again++
		}
		if before[d.payload] {
			t.Errorf("%s: %s was delivered well before the backup, and comes again", topic, d.payload)
		}
		id, n := numberOf(d.payload)
		if n < last[id] && got[d.payload] == 1 {
			t.Errorf("%s: %s comes behind number %d", topic, d.payload, last[id])
		}
		last[id] = max(last[id], n)
	}
	t.Logf("%s: %d records, %d of them of the restored gateway, of which %d had been delivered before", topic, len(all), late, again)
	if topic != "once" {
		return
	}
	for p, n := range got {
		if n != 1 && l.count[p] == 1 {
			t.Errorf("once: %s is there %d times", p, n)
		}
	}
}
