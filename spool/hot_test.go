package spool

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestHotPartitionIsTold(t *testing.T) {
	clock := newFakeClock()
	log, logger := logTo(t)
	reg := prometheus.NewRegistry()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Partitions = 8 }))
	s := mustOpen(t, cfg, Options{Now: clock.now, Logger: logger, Registerer: reg})
	ratio := func() float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "forebay_spool_stream_hot_partition_ratio" {
				if labels := f.GetMetric()[0].GetLabel(); len(labels) != 1 || labels[0].GetValue() != DefaultStream {
					t.Errorf("labels %v", labels)
				}
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("no metric")
		return 0
	}
	fill := func(n int, clients int) {
		t.Helper()
		var last waiter
		for i := range n {
			r := testRecord(1)
			r.ClientID = strings.Repeat("c", 1+i%clients)
			r.Payload = make([]byte, 100<<10)
			last = newWaiter()
			if err := s.Append(t.Context(), Entry{Record: r, Done: last}); err != nil {
				t.Fatal(err)
			}
		}
		<-last
	}
	minute := func() { // the janitor looks every ten seconds
		for range 6 {
			clock.advance(hotStep)
			s.clean(t.Context())
		}
	}
	told := func() int {
		log.mu.Lock()
		defer log.mu.Unlock()
		return strings.Count(log.b.String(), "far more than its share")
	}
	s.clean(t.Context())
	if got := ratio(); got != 0 {
		t.Errorf("share is %v before anything came", got)
	}
	fill(400, 1)
	minute()
	if got := ratio(); got != 1 || told() != 1 {
		t.Errorf("share %v, told %d times", got, told())
	}
	l, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hot := 0
	for _, p := range l.Streams[0].Partitions {
		if p.Hot {
			hot++
			if p.Share != 1 || p.Appended != 400 || p.RecordRate < 5 || p.RecordRate > 8 || p.ByteRate < 400*100<<10/80 {
				t.Errorf("%+v", p)
			}
		}
	}
	if hot != 1 {
		t.Errorf("%d hot partitions", hot)
	}
	fill(400, 1)
	minute()
	if told() != 1 {
		t.Errorf("told %d times in two minutes", told())
	}
	minute() // the old minute goes out of the window
	if got := ratio(); got != 0 {
		t.Errorf("share is %v after a quiet minute", got)
	}
	fill(400, 40)
	minute()
	if got := ratio(); got == 0 || got > 0.5 || told() != 1 {
		t.Errorf("share %v of 40 clients, told %d times", got, told())
	}
	clock.advance(hotRepeat)
	s.clean(t.Context())
	fill(400, 1)
	minute()
	if told() != 2 {
		t.Errorf("told %d times, when it is hot again later", told())
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{Now: clock.now})
	for _, p := range s.Stats().Streams[0].Partitions {
		if p.Appended != 0 || p.Bytes != 0 {
			t.Errorf("what was replayed counts as new: %+v", p)
		}
	}
}

func TestWhatHotMeans(t *testing.T) {
	f := func(share float64, partitions int, want bool) {
		t.Helper()
		if got := isHot(share, 10<<20, partitions); got != want {
			t.Errorf("%v of %d partitions: %v, want %v", share, partitions, got, want)
		}
	}
	f(1, 1, false)
	f(0.9, 2, false) // not twice its even share
	f(1, 2, true)
	f(0.6, 3, false)
	f(0.7, 3, true)
	f(0.5, 8, false)
	f(0.51, 8, true)
	f(0.3, 100, false) // many times its share, but not what everything waits for
	if isHot(1, hotMinRate-1, 8) {
		t.Error("a quiet stream is hot")
	}
}
