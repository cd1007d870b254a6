package mqtt

import (
	"testing"
	"time"
)

// After restarts, answered QoS 2 deliveries above the position must not keep the identifiers that the feed needs to get there; a further
// restart knows their places.
func TestAnsweredDeliveriesGiveTheirIdentifiersUp(t *testing.T) {
	ls := &lanes{list: []*lane{{stream: "s"}}, first: map[string]int{"s": 0}, count: map[string]int{"s": 1}}
	srv := &Server{lanes: ls, now: time.Now, own: time.Now, dirty: newDirtySet()}
	s := &session{srv: srv, id: "c", feed: newFeed(positions{10})}
	s.flights.list = []flight{{pid: 1, qos: 2, off: 50, state: flightSent}, {pid: 1<<15 + 1, qos: 2, off: 60, state: flightSent}}
	s.flights.last = 1<<15 + 1
	s.restored()
	s.flights.all(func(fl *flight) { s.flights.mark(fl, flightCompleted) })
	if s.flights.take() != 0 {
		t.Fatal("the identifiers lie too close")
	}
	changes := s.checkpointLocked()
	if s.flights.take() == 0 {
		t.Fatal("no identifier may be given after the checkpoint")
	}
	if len(changes) != 3 {
		t.Fatalf("%d changes, want two identifiers that go and the position", len(changes))
	}
	again := &session{srv: srv, id: "c"}
	if err := again.restorePosition(changes[2].Value, positions{0}); err != nil {
		t.Fatal(err)
	}
	again.restored()
	for _, at := range []place{{0, 50}, {0, 60}} {
		if pid, ok := again.again[at]; !ok || pid != answered {
			t.Errorf("%v is delivered again", at)
		}
	}
}
