package spool

import (
	"fmt"
	"strings"
	"testing"
)

func TestMatchedReaderSkipsByTheIndex(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	const n = 4000
	var last waiter
	for i := range n { // 4 MB: some thirty batches; one topic in the middle only
		r := testRecord(i)
		r.Payload = fmt.Appendf(nil, "value %d %s", i, strings.Repeat("x", 1000))
		if i%1000 == 555 {
			r.Topic, r.ClientID = "rare/one", "rare-client"
		}
		last = newWaiter()
		if err := s.Append(t.Context(), Entry{Record: r, Done: last}); err != nil {
			t.Fatal(err)
		}
		if i == n/2 {
			<-last
			rollAll(t, s)
		}
	}
	<-last
	rollAll(t, s)
	forgetTail(s)
	read := func(m Match, from Offset) (got []string, batches int) {
		t.Helper()
		r, _ := s.NewReader(DefaultStream, 0, from)
		defer r.Close()
		r.Match(m)
		next := from
		for {
			b, ok, err := r.TryNext()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				if next != n {
					t.Errorf("ends at %d", next)
				}
				return got, batches
			}
			if b.First != next || b.Gap != nil {
				t.Fatalf("batch %d..%d after %d, gap %v", b.First, b.Next, next, b.Gap)
			}
			next = b.Next
			batches++
			for i := range b.Records {
				got = append(got, fmt.Sprint(b.Records[i].Offset))
			}
		}
	}
	for name, m := range map[string]Match{"topic": {Filters: []string{"rare/+"}}, "client": {ClientID: "rare-client"}, "both": {Filters: []string{"rare/#"}, ClientID: "rare-client"}} {
		got, batches := read(m, 0)
		if strings.Join(got, " ") != "555 1555 2555 3555" || batches > 20 {
			t.Errorf("%s: %v in %d batches", name, got, batches)
		}
		if got, _ := read(m, 1555); strings.Join(got, " ") != "1555 2555 3555" {
			t.Errorf("%s from 1555: %v", name, got)
		}
	}
	if got, _ := read(Match{Filters: []string{"plant/#"}}, 0); len(got) != n-4 {
		t.Errorf("%d records of the others", len(got))
	}
	if got, _ := read(Match{Filters: []string{"none"}}, 17); len(got) != 0 {
		t.Errorf("%v of none", got)
	}
}
