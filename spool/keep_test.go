package spool

import (
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

func keepSpool(t *testing.T, keep *atomic.Int32, edit func(*Config)) (*Spool, *fakeClock) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(time.Hour) }))
	if edit != nil {
		edit(&cfg)
	}
	s := mustOpen(t, cfg, Options{Now: clock.now, Keep: func(SegmentID) Keep { return Keep(keep.Load()) }})
	for i := range 5 {
		putMany(t, s, i*100, (i+1)*100)
		rollAll(t, s)
	}
	settle(t, s)
	return s, clock
}

func TestWhatIsNotStoredElsewhereOutlivesItsRetention(t *testing.T) {
	var keep atomic.Int32
	keep.Store(int32(KeepForNow))
	s, clock := keepSpool(t, &keep, nil)
	clock.advance(2 * time.Hour)
	settle(t, s)
	if start, _ := s.Bounds(DefaultStream, 0); start != 0 {
		t.Fatalf("log start %d: retention has passed what is not stored", start)
	}
	keep.Store(int32(KeepNot))
	settle(t, s)
	if start, _ := s.Bounds(DefaultStream, 0); start != 500 {
		t.Errorf("log start %d after it was stored, want 500", start)
	}
}

// Removed by a size limit, it is a counted loss with a name; kept always, not even the limit takes it.
func TestSizeLimitTakesWhatIsNotStoredByPolicyOnly(t *testing.T) {
	var keep atomic.Int32
	keep.Store(int32(KeepAlways))
	s, _ := keepSpool(t, &keep, nil)
	st := s.streams[0]
	s.cleanMu.Lock()
	st.cfg.MaxSize = 1
	s.cleanMu.Unlock()
	settle(t, s)
	if start, _ := s.Bounds(DefaultStream, 0); start != 0 || !st.full.Load() {
		t.Fatalf("log start %d, full %v: want all of it, and no room", start, st.full.Load())
	}
	keep.Store(int32(KeepForNow))
	settle(t, s)
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(got) != 0 || len(gaps) != 1 || gaps[0].Reason != GapNotStored || gaps[0].To != 500 {
		t.Errorf("%d records, gaps %v", len(got), gaps)
	}
	if n := s.Stats().Streams[0].Dropped[GapNotStored]; n != 500 {
		t.Errorf("%d records counted, want 500", n)
	}
}

// What is stored elsewhere goes by the numbers of segments: they go on although no segment is left, and after a restart.
func TestNumbersOfSegmentsAreNotGivenOutAgain(t *testing.T) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(time.Hour) }))
	seen := map[uint64]bool{}
	for i := range 4 {
		s := mustOpen(t, cfg, Options{Now: clock.now})
		for j := range 2 {
			putMany(t, s, (2*i+j)*10, (2*i+j+1)*10)
			rollAll(t, s)
		}
		list, err := s.Sealed(DefaultStream)
		if err != nil || len(list) != 2 {
			t.Fatalf("%d segments: %v", len(list), err)
		}
		for _, se := range list {
			if seen[se.Sequence] {
				t.Errorf("number %d comes again", se.Sequence)
			}
			seen[se.Sequence] = true
		}
		clock.advance(2 * time.Hour)
		settle(t, s)
		kept := 0
		if err := s.meta.view(func(tx *bolt.Tx) error { kept = tx.Bucket(bucketSegments).Stats().KeyN; return nil }); err != nil || kept != 1 {
			t.Errorf("the catalog keeps %d numbers of removed segments, want 1: %v", kept, err)
		}
		mustClose(t, s)
	}
}
