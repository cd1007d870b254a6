package mqtt

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// randomName builds a topic, or with wild a filter, of few different levels, so that much matches.
func randomName(rnd *rand.Rand, wild bool) string {
	levels := []string{"a", "b", "", "long level"}
	var parts []string
	for range 1 + rnd.IntN(4) {
		parts = append(parts, levels[rnd.IntN(len(levels))])
		if wild && rnd.IntN(3) == 0 {
			parts[len(parts)-1] = "+"
		}
	}
	if wild && rnd.IntN(3) == 0 {
		parts = append(parts, "#")
	}
	if rnd.IntN(8) == 0 {
		parts[0] = "$SYS"
	}
	if name := strings.Join(parts, "/"); name != "" {
		return name
	}
	return "a"
}

func TestIndexMatchesLikeTheFiltersOneByOne(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	x := &index{}
	cache := newMatchCache(x)
	sessions := []*session{{id: "0"}, {id: "1"}, {id: "2"}}
	var subs []*subscription
	var groups []*group
	for range 3000 {
		switch n := rnd.IntN(10); {
		case n < 5:
			s := &subscription{sess: sessions[rnd.IntN(3)], topic: randomName(rnd, true)}
			subs = append(subs, s)
			x.add(s)
		case n < 8 && len(subs) > 0:
			i := rnd.IntN(len(subs))
			x.remove(subs[i])
			subs = slices.Delete(subs, i, i+1)
		case n == 8:
			g := &group{topic: randomName(rnd, true)}
			groups = append(groups, g)
			x.addGroup(g)
		case len(groups) > 0:
			i := rnd.IntN(len(groups))
			x.removeGroup(groups[i])
			groups = slices.Delete(groups, i, i+1)
		}
		topic := randomName(rnd, false)
		m := cache.get(topic)
		got := 0
		for _, target := range m.targets {
			got += len(target.subs)
			for _, s := range target.subs {
				if s.sess != target.sess || !spool.MatchFilter(s.topic, topic) {
					t.Fatalf("%q matches %q", s.topic, topic)
				}
			}
		}
		want, wantGroups := 0, 0
		for _, s := range subs {
			if spool.MatchFilter(s.topic, topic) {
				want++
			}
		}
		for _, g := range groups {
			if spool.MatchFilter(g.topic, topic) {
				wantGroups++
			}
		}
		if got != want || len(m.groups) != wantGroups {
			t.Fatalf("%q: %d subscriptions and %d groups, want %d and %d", topic, got, len(m.groups), want, wantGroups)
		}
	}
	for _, s := range subs {
		x.remove(s)
	}
	for _, g := range groups {
		x.removeGroup(g)
	}
	if !x.root.empty() {
		t.Error("the empty index still has nodes")
	}
}

func TestRetainedStoreGoesOnAfterTheLastTopic(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	r := &retainedStore{}
	model := make(map[string]bool)
	for range 400 {
		topic := randomName(rnd, false)
		rec := &spool.Record{Topic: topic, Payload: []byte("x")}
		if rnd.IntN(3) == 0 {
			rec.Payload = nil
		}
		r.apply(rec)
		if len(rec.Payload) > 0 {
			model[topic] = true
		} else {
			delete(model, topic)
		}
		if r.len() != len(model) {
			t.Fatalf("%d topics, want %d", r.len(), len(model))
		}
		filter := randomName(rnd, true)
		seen := make(map[string]bool)
		for rec := r.find(filter, ""); rec != nil; rec = r.find(filter, rec.Topic) {
			if seen[rec.Topic] || !spool.MatchFilter(filter, rec.Topic) || !model[rec.Topic] {
				t.Fatalf("filter %q: got %q", filter, rec.Topic)
			}
			seen[rec.Topic] = true
		}
		for topic := range model {
			if spool.MatchFilter(filter, topic) && !seen[topic] {
				t.Fatalf("filter %q: %q is missing", filter, topic)
			}
		}
	}
}

// A walk that stopped goes on although the topic where it stopped is gone and others have come.
func TestRetainedStoreGoesOnAfterChanges(t *testing.T) {
	r := &retainedStore{}
	put := func(topic, payload string) { r.apply(&spool.Record{Topic: topic, Payload: []byte(payload)}) }
	for i := range 100 {
		put(fmt.Sprintf("t/%02d/x", i), "x")
	}
	var got []string
	last := ""
	for rec := r.find("#", last); rec != nil; rec = r.find("#", last) {
		last = rec.Topic
		got = append(got, last)
		put(last, "")
		put(last+"/below", "") // removing what is not there does nothing
		put("t/!", "before")
	}
	if len(got) != 100 || !slices.IsSorted(got) {
		t.Errorf("%d topics, sorted %t", len(got), slices.IsSorted(got))
	}
}

func TestFlightsAgainstAModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	var f flights
	f.last = uint16(rnd.Uint32())
	model := make(map[uint16]flightState)
	var order []uint16
	for range 200_000 {
		if len(model) < 500 && rnd.IntN(2) == 0 {
			pid := f.take()
			if pid == 0 {
				t.Fatal("no identifier")
			}
			if _, used := model[pid]; used {
				t.Fatalf("identifier %d is in use", pid)
			}
			f.add(flight{pid: pid, state: flightSent, qos: 1})
			model[pid] = flightSent
			order = append(order, pid)
			continue
		}
		if len(order) == 0 {
			continue
		}
		i := rnd.IntN(min(len(order), 20))
		pid := order[i]
		fl := f.find(pid)
		if fl == nil || fl.pid != pid {
			t.Fatalf("identifier %d is not found", pid)
		}
		f.set(fl, flightDone)
		delete(model, pid)
		order = slices.Delete(order, i, i+1)
		if f.find(pid) != nil {
			t.Fatalf("identifier %d is found after its end", pid)
		}
		if f.window != len(model) {
			t.Fatalf("window %d, want %d", f.window, len(model))
		}
	}
	var got []uint16
	f.all(func(fl *flight) { got = append(got, fl.pid) })
	if !slices.Equal(got, order) {
		t.Error("the order of sending is lost")
	}
}

// A client that never answers one delivery cannot make its identifier be given twice.
func TestFlightsStopBeforeAnIdentifierComesAgain(t *testing.T) {
	var f flights
	f.add(flight{pid: f.take(), state: flightSent, qos: 1})
	n := 0
	for pid := f.take(); pid != 0; pid = f.take() {
		f.add(flight{pid: pid, state: flightSent, qos: 1})
		f.set(f.find(pid), flightDone)
		n++
	}
	if n != 1<<15-1 {
		t.Errorf("%d deliveries while one is unanswered", n)
	}
	f.set(f.find(1), flightDone)
	if f.take() == 0 {
		t.Error("no identifier after the answer")
	}
}

func TestStateOfAnotherVersionIsUnsupported(t *testing.T) {
	s := &session{srv: &Server{}}
	if err := s.restoreRecord([]byte{stateVersion + 1, 5, 0, 0}); err == nil || !strings.Contains(err.Error(), "newer format") {
		t.Errorf("error %v", err)
	}
	if err := s.restoreRecord([]byte{stateVersion, 5}); err == nil {
		t.Error("a cut value is accepted")
	}
}

func FuzzState(f *testing.F) {
	rec := &spool.Record{Topic: "t", ClientID: "c", Payload: []byte("p"), Properties: &spool.Properties{
		ContentType: "x", CorrelationData: []byte{}, User: []spool.UserProperty{{Name: "n", Value: "v"}},
	}}
	f.Add((&will{rec: rec, delay: 3}).change("c").Value)
	f.Add(retainedChange(rec).Value)
	f.Fuzz(func(t *testing.T, value []byte) {
		ls := &lanes{list: []*lane{{stream: "s"}}, first: map[string]int{"s": 0}, count: map[string]int{"s": 1}}
		srv := &Server{lanes: ls, now: time.Now, own: time.Now}
		_, _ = restoreWill(value)
		s := &session{srv: srv}
		_ = s.restorePosition(value, make(positions, 1))
		_ = s.restoreOutbound(1, value)
		_ = openState(value).message()
		g := &group{srv: srv}
		_ = g.restore(value, make(positions, 1))
	})
}

func BenchmarkMatch(b *testing.B) {
	x := &index{}
	s := &session{}
	for i := range 100_000 {
		x.add(&subscription{sess: s, topic: fmt.Sprintf("cmd/device%d/#", i)})
	}
	b.ReportAllocs()
	for i := range b.N {
		x.lookup(fmt.Sprintf("cmd/device%d/set", i%100_000))
	}
}

// find is next without a limit.
func (r *retainedStore) find(filter, last string) *spool.Record {
	rec, _, _ := r.next(filter, last, math.MaxInt)
	return rec
}
