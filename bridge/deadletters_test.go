package bridge

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/spool"
)

// withLetters is a rig whose route has five dead letters, of clients c0 and c1 and topics big/0 to big/4.
func withLetters(t *testing.T) *rig {
	r := newRig(t, newMemLog(map[string]int{"default": 2, "dead": 1}), kfake.SeedTopics(4, "telemetry", "letters"))
	r.startWithLetters()
	r.publish(oneTopic("a"), 4, 10)
	for i := range 5 {
		r.log.add("default", 1, spool.Record{
			Topic: fmt.Sprintf("big/%d", i), ClientID: fmt.Sprintf("c%d", i%2), Payload: []byte(noise(1_500_000)), Retain: i == 0,
			ReceivedAt: time.Now().Add(-time.Hour).UnixNano(), ExpiresAt: time.Now().Add(time.Hour).UnixNano(),
			Properties: &spool.Properties{User: []spool.UserProperty{{Name: "forebay.dead_letter", Value: "forged"}, {Name: "n", Value: fmt.Sprint(i)}}},
		})
		r.drained(time.Minute)
	}
	r.publish(oneTopic("a"), 4, 10)
	r.drained(time.Minute)
	return r
}

func (r *rig) startWithLetters(routes ...RouteConfig) {
	cfg := oneRoute(RouteConfig{Topic: "telemetry"})
	cfg.Routes = append(cfg.Routes, routes...)
	cfg.DeadLetterStream = "dead"
	r.start(cfg)
}

func (r *rig) letters(q DeadLetterQuery) (ids []string) {
	r.t.Helper()
	for {
		page, err := r.b.DeadLetters().List(context.Background(), q)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, l := range page.Letters {
			ids = append(ids, l.ID)
		}
		if page.Next == "" {
			return ids
		}
		q.At = page.Next
	}
}

func TestDeadLettersAreListedByFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := withLetters(t)
		defer r.end()
		f := func(q DeadLetterQuery, want string) {
			t.Helper()
			if got := strings.Join(r.letters(q), " "); got != want {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
		f(DeadLetterQuery{}, "0:0 0:1 0:2 0:3 0:4")
		f(DeadLetterQuery{Limit: 2}, "0:0 0:1 0:2 0:3 0:4")
		f(DeadLetterQuery{Route: "all", Reason: "too_large", ClientID: "c1"}, "0:1 0:3")
		f(DeadLetterQuery{Filter: "big/3"}, "0:3")
		f(DeadLetterQuery{Filter: "small/#"}, "")
		f(DeadLetterQuery{Route: "other"}, "")
		f(DeadLetterQuery{Reason: "invalid_record"}, "")
		f(DeadLetterQuery{Until: time.Now().Add(-time.Hour)}, "")
		f(DeadLetterQuery{Since: time.Now().Add(-time.Hour)}, "0:0 0:1 0:2 0:3 0:4")
		f(DeadLetterQuery{ID: "0:2"}, "0:2")
		if _, err := r.b.DeadLetters().List(t.Context(), DeadLetterQuery{Filter: "a/#/b"}); !errors.Is(err, spool.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
		l, err := r.b.DeadLetters().Show(t.Context(), "0:0")
		if err != nil || l.Topic != "big/0" || l.ClientID != "c0" || l.Reason != "too_large" || l.Attempts < 1 || l.Record == nil ||
			!l.Record.Retain || l.Record.Expires.IsZero() || len(l.Record.Properties.User) != 2 || time.Since(l.ReceivedAt) < time.Hour {
			t.Errorf("%+v, %v", l, err)
		}
		if _, err := r.b.DeadLetters().Show(t.Context(), "0:99"); !errors.Is(err, ErrUnknownDeadLetter) {
			t.Errorf("%v, want ErrUnknownDeadLetter", err)
		}
	})
}

func TestPurgedDeadLettersAreGoneAfterARestartToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := withLetters(t)
		defer r.end()
		purge := func(q DeadLetterQuery, dry bool, want int) {
			t.Helper()
			w, err := r.b.DeadLetters().Purge(t.Context(), q, dry)
			if err != nil || w.Selected != want || w.Done != want && !dry || dry && w.Done != 0 {
				t.Errorf("purge %+v: %+v, %v, want %d", q, w, err, want)
			}
		}
		left := func(want string, cursor spool.Offset, entries int) {
			t.Helper()
			got := strings.Join(r.letters(DeadLetterQuery{}), " ")
			if n := len(strings.Fields(got)); got != want || r.b.DeadLetters().Waiting() != uint64(n) {
				t.Errorf("left %q (%d), want %q", got, r.b.DeadLetters().Waiting(), want)
			}
			if at := r.log.cursors["deadletter"].Position(0); at != cursor || r.log.stored(marksSpace) != entries {
				t.Errorf("cursor at %d with %d marks, want %d and %d", at, r.log.stored(marksSpace), cursor, entries)
			}
		}
		purge(DeadLetterQuery{}, true, 5)
		left("0:0 0:1 0:2 0:3 0:4", 0, 0)
		purge(DeadLetterQuery{ClientID: "c1"}, false, 2)
		left("0:0 0:2 0:4", 0, 2)
		purge(DeadLetterQuery{ID: "0:2"}, false, 1)
		left("0:0 0:4", 0, 1)
		r.stop()
		r.startWithLetters()
		left("0:0 0:4", 0, 1)
		purge(DeadLetterQuery{ID: "0:0"}, false, 1)
		left("0:4", 4, 0)
		purge(DeadLetterQuery{ID: "0:0"}, false, 0)
		purge(DeadLetterQuery{}, false, 1)
		left("", 5, 0)
	})
}

func TestRedriveSendsWithTheirOwnTimeAndKeepsWhatIsRefusedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := withLetters(t)
		defer r.end()
		d := r.b.DeadLetters()
		if w, err := d.Redrive(t.Context(), DeadLetterQuery{}, true); err != nil || w.Selected != 5 || w.Done != 0 {
			t.Fatalf("dry run: %+v, %v", w, err)
		}
		w, err := d.Redrive(t.Context(), DeadLetterQuery{}, false)
		if err != nil || w.Selected != 5 || w.Done != 0 || len(w.Failed) != 5 || w.Failed[0].Reason != "too_large" {
			t.Fatalf("too large still: %+v, %v", w, err)
		}
		r.setMaxMessage("telemetry", "3000000")
		if w, err = d.Redrive(t.Context(), DeadLetterQuery{Filter: "big/+", ClientID: "c0"}, false); err != nil || w.Done != 3 || len(w.Failed) != 0 {
			t.Fatalf("%+v, %v, want 3 redriven", w, err)
		}
		if got := strings.Join(r.letters(DeadLetterQuery{}), " "); got != "0:1 0:3" {
			t.Errorf("left %q", got)
		}
		n := 0
		for _, rec := range r.consume("telemetry") {
			h := headers(rec)
			if h["forebay.redrive"] == "" {
				continue
			}
			n++
			if string(rec.Key) != "c0" || h["mqtt.topic"] != "big/"+h["n"] || time.Since(rec.Timestamp) < time.Hour ||
				!strings.HasPrefix(h["forebay.id"], "gw1/default/1/") || h["user.forebay.dead_letter"] != "forged" {
				t.Errorf("redriven record with key %s at %v: %v", rec.Key, rec.Timestamp, h)
			}
		}
		if redriven, purged := d.counted("all"); n != 3 || redriven != 3 || purged != 0 {
			t.Errorf("%d in Kafka, %d counted, want 3", n, redriven)
		}
	})
}

func TestRedriveSaysWhyItCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := withLetters(t)
		defer r.cluster.Close()
		r.stop()
		cfg := oneRoute(RouteConfig{Name: "another", Topic: "telemetry"})
		cfg.DeadLetterStream = "dead"
		r.start(cfg)
		w, err := r.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{Limit: 2}, false)
		if err != nil || w.Done != 0 || len(w.Failed) != 2 || w.Failed[0].Reason != "route" || w.Next != "0:2" {
			t.Errorf("%+v, %v", w, err)
		}
		r.stop()
	})
}

func TestRouteOfTheDeadLetterStreamCopiesThemToKafka(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := withLetters(t)
		defer r.end()
		r.stop()
		r.setMaxMessage("letters", "3000000")
		r.startWithLetters(RouteConfig{Name: "letters", Stream: "dead", Topic: "letters", Filters: []string{"big/#"}})
		r.drained(time.Minute)
		records := r.consume("letters")
		if len(records) != 5 {
			t.Fatalf("%d records, want 5", len(records))
		}
		seen := make(map[string]bool)
		for _, rec := range records {
			h := headers(rec)
			seen[h["forebay.dead.id"]] = true
			want := map[string]string{"forebay.dead.reason": "too_large", "forebay.dead.route": "all", "forebay.dead.topic": "telemetry"}
			for k, v := range want {
				if h[k] != v {
					t.Errorf("%s is %q, want %q", k, h[k], v)
				}
			}
			if h["mqtt.topic"] != "big/"+h["n"] || !strings.HasPrefix(h["forebay.id"], "gw1/dead/0/") || h["forebay.topic"] != "" {
				t.Errorf("headers %v", h)
			}
		}
		if len(seen) != 5 {
			t.Errorf("ids %v", seen)
		}
	})
}

// What Kafka refuses of the dead letters themselves stays where it is and holds nothing.
func TestRefusedCopyOfADeadLetterIsPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := withLetters(t)
		defer r.end()
		r.stop()
		r.startWithLetters(RouteConfig{Name: "letters", Stream: "dead", Topic: "letters"})
		r.drained(time.Minute)
		if got := len(r.letters(DeadLetterQuery{})); got != 5 || r.b.Stats()[1].DeadLettered != 5 {
			t.Errorf("%d dead letters, %d counted, want 5", got, r.b.Stats()[1].DeadLettered)
		}
	})
}

func TestMarksMergeAndPass(t *testing.T) {
	m, next := new(marks).with([]span{{5, 6}, {7, 9}, {6, 7}, {20, 21}}, 3)
	if want := []span{{5, 9}, {20, 21}}; !reflect.DeepEqual(m.ranges, want) || next != 3 {
		t.Fatalf("%v %d", m.ranges, next)
	}
	for o, want := range map[spool.Offset]bool{4: false, 5: true, 8: true, 9: false, 20: true, 21: false, 0: false} {
		if m.has(o) != want {
			t.Errorf("has %d: %v", o, !want)
		}
	}
	n, next := m.with([]span{{3, 5}}, 3)
	if want := []span{{20, 21}}; !reflect.DeepEqual(n.ranges, want) || next != 9 {
		t.Errorf("%v %d, want %v 9", n.ranges, next, want)
	}
	got := m.changes(&n)
	if len(got) != 1 || got[0].Key != "0/5" || got[0].Value != nil {
		t.Errorf("changes %+v", got)
	}
	for key, value := range map[string]string{"0/5": "1 5", "x/5": "1 6", "0": "1 6", "0/5 ": "1 6"} {
		if _, _, err := loadMark(key, []byte(value)); err == nil {
			t.Errorf("mark %q = %q was taken", key, value)
		}
	}
	if _, _, err := loadMark("0/5", []byte("2 6")); !errors.Is(err, spool.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

func headers(rec *kgo.Record) map[string]string {
	h := make(map[string]string)
	for _, x := range rec.Headers {
		h[x.Key] = string(x.Value)
	}
	return h
}
