package mqtt

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// A search that is stopped after any number of nodes, again and again, finds what one in a single walk finds.
func TestRetainedSearchGoesOnWhereItStopped(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	names := []string{"", "a", "b", "c", "$x"}
	var store retainedStore
	for range 300 {
		var levels []string
		for range 1 + r.IntN(5) {
			levels = append(levels, names[r.IntN(len(names))])
		}
		if topic := strings.Join(levels, "/"); topic != "" {
			store.apply(&spool.Record{Topic: topic, Payload: []byte("x")})
		}
	}
	search := func(filter string, budget int) (topics []string) {
		for last := ""; ; {
			rec, at, left := store.next(filter, last, budget)
			switch {
			case left == 0:
				last = at
			case rec == nil:
				return topics
			default:
				topics = append(topics, rec.Topic)
				last = rec.Topic
			}
		}
	}
	for _, filter := range []string{"#", "+", "+/a", "a/#", "+/+/b", "+/#", "/+", "$x/#", "a/b/c", "+/b/+/#", "z"} {
		want := search(filter, 1<<30)
		for _, budget := range []int{2, 3, 7, 100} {
			if got := search(filter, budget); !slices.Equal(got, want) {
				t.Errorf("%s, %d nodes at a time: %d topics, want %d", filter, budget, len(got), len(want))
			}
		}
	}
}

// Filters that match nothing cost a turn of bounded length, however many messages are retained.
func TestRetainedSearchForNothingTakesTurns(t *testing.T) {
	srv, _ := faulty(t, nil)
	for i := range 20_000 {
		srv.retained.apply(&spool.Record{Topic: fmt.Sprintf("r/%d/a", i), Payload: []byte("x")})
	}
	s := &session{srv: srv, id: "s", conn: &conn{}}
	for i := range 10 {
		sub := &subscription{sess: s, filter: fmt.Sprintf("r/+/z%d", i), topic: fmt.Sprintf("r/+/z%d", i)}
		s.subs.put(sub)
		s.addRetainedLocked([]retainedJob{{sub: sub}})
	}
	turns := 1
	for ; turns < 1000; turns++ {
		more, parked := s.serveRetained(new(encoder))
		if parked {
			t.Fatal("parked")
		}
		if !more {
			break
		}
	}
	if least := 10 * 20_000 / retainedNodes; turns < least || turns > 2*least || len(s.retained) > 0 {
		t.Errorf("%d turns for 200,000 nodes of at most %d each, %d searches left", turns, retainedNodes, len(s.retained))
	}
}

// The search for expired messages holds the store's lock for a part of it at a time, and leaves nothing out.
func TestExpiredRetainedMessagesAreFound(t *testing.T) {
	now := time.Unix(1000, 0)
	var store retainedStore
	want := make(map[string]bool)
	for i := range 5 * retainedSteps {
		for _, topic := range []string{fmt.Sprintf("a/%d", i%700), fmt.Sprintf("$x/%d/y", i), fmt.Sprintf("/%d//z", i)} {
			rec := &spool.Record{Topic: topic, Payload: []byte("x")}
			if i%3 == 0 {
				rec.ExpiresAt = now.UnixNano()
			} else if i%3 == 1 {
				rec.ExpiresAt = now.UnixNano() + 1
			}
			store.apply(rec)
			delete(want, topic)
			if i%3 == 0 {
				want[topic] = true
			}
		}
	}
	for _, topic := range store.expired(now) {
		if !want[topic] {
			t.Errorf("%s is not over, or came twice", topic)
		}
		delete(want, topic)
	}
	if len(want) > 0 {
		t.Errorf("%d are left out", len(want))
	}
	later := now.Add(time.Hour)
	for _, topic := range store.expired(later) {
		store.removeExpired(topic, later)
	}
	for i := range 5 * retainedSteps {
		for _, topic := range []string{fmt.Sprintf("a/%d", i%700), fmt.Sprintf("$x/%d/y", i), fmt.Sprintf("/%d//z", i)} {
			store.apply(&spool.Record{Topic: topic})
		}
	}
	if len(store.root.children) > 0 || store.n != 0 || store.size != 0 {
		t.Errorf("an empty store has %d children, %d messages, %d bytes", len(store.root.children), store.n, store.size)
	}
}
