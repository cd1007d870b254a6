package spool

import (
	"testing"
	"time"
)

func TestHotPartitionIsTold(t *testing.T) {
	clock := newFakeClock()
	log, logger := logTo(t)
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Partitions = 8 })), Options{Now: clock.now, Logger: logger})
	s.clean(t.Context())
	var last waiter
	for range 300 { // all of one client
		r := testRecord(1)
		r.Payload = make([]byte, 100<<10)
		last = newWaiter()
		if err := s.Append(t.Context(), Entry{Record: r, Done: last}); err != nil {
			t.Fatal(err)
		}
	}
	<-last
	clock.advance(2 * time.Minute)
	s.clean(t.Context())
	if !log.contains("far more than its share") {
		t.Error("not told")
	}
}
