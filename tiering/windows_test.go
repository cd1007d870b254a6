package tiering

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// A window of time has every record that was received in it by the clock of then, however often that was set, between segments and in
// the middle of one, and no other: in the spool, in the store, and half in each.
func TestWindowsAreExactOverStepsOfTheClock(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	r := newRig(t, nil)
	at := time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)
	received := map[string]time.Time{}
	segment := func() {
		const n = 200
		done := make(durable, n)
		for range n {
			switch at = at.Add(time.Duration(rng.Int64N(int64(2 * time.Second)))); rng.IntN(60) {
			case 0:
				at = at.Add(-time.Duration(rng.Int64N(int64(20 * time.Minute))))
			case 1:
				at = at.Add(time.Duration(rng.Int64N(int64(20 * time.Minute))))
			}
			rec := record(r.n)
			rec.ReceivedAt = at.UnixNano()
			received[string(rec.Payload)] = at
			if err := r.s.Append(t.Context(), spool.Entry{Record: rec, Done: done}); err != nil {
				t.Fatal(err)
			}
			r.n++
		}
		for range n {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		r.seal()
	}
	check := func(where string) {
		t.Helper()
		first, last := at, at
		for _, a := range received {
			if a.Before(first) {
				first = a
			}
			if a.After(last) {
				last = a
			}
		}
		moment := func() time.Time { return first.Add(time.Duration(rng.Int64N(int64(last.Sub(first) + time.Second)))) }
		for i := range 60 {
			q := spool.DumpQuery{Partition: -1}
			if i%3 != 0 {
				q.Since = moment()
			}
			if i%3 != 1 {
				q.Until = moment()
			}
			if i%7 == 0 { // exactly that of a record
				q.Since = received[string(record(rng.IntN(r.n)).Payload)]
			}
			got, gaps := r.dump(q)
			want := 0
			for p, a := range received {
				in := (q.Since.IsZero() || !a.Before(q.Since)) && (q.Until.IsZero() || a.Before(q.Until))
				if in {
					want++
				}
				if in != got[p] {
					t.Fatalf("%s: a record of %v: found %v in the window from %v to %v", where, a, got[p], q.Since, q.Until)
				}
			}
			if gaps != 0 || len(got) != want {
				t.Fatalf("%s: %d records, want %d, %d gaps", where, len(got), want, gaps)
			}
		}
	}
	for range 4 {
		segment()
	}
	check("in the spool")
	r.round()
	r.advance(2 * time.Hour)
	r.round()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		t.Fatalf("%d segments are still local", len(list))
	}
	check("in the store")
	for range 4 {
		segment()
	}
	check("in both")
}
