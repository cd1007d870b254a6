package spool

import (
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// What everybody has had goes before what somebody still waits for, also when it is newer.
func TestDeliveredSegmentsGoFirstOnAFullDisk(t *testing.T) {
	a := DefaultStreamConfig("a")
	a.Filters, a.Partitions, a.WhenFull = []string{"plant/#"}, 1, FullDropOldest
	cfg := smallConfig(t.TempDir(), a, oneStream(nil))
	fs := &freeFS{FS: vfs.OS}
	fs.free.Store(1 << 30)
	s := mustOpen(t, cfg, Options{FS: fs})
	held, err := s.OpenCursor(t.Context(), "slow", "a", CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 100) // to stream a, and older
	rollAll(t, s)
	for i := range 100 {
		r := testRecord(i)
		r.Topic = "other"
		put(t, s, Entry{Record: r})
	}
	rollAll(t, s)

	fs.free.Store(int64(cfg.MinFree) + 1<<10) // room, but little: trimming begins
	s.clean(t.Context())
	if n := s.byName["a"].kept(); n != 100 {
		t.Fatalf("%d records are left of a stream that has a protected cursor", n)
	}
	if n := s.byName[DefaultStream].kept(); n != 0 {
		t.Errorf("%d records are left that nobody waits for", n)
	}
	fs.free.Store(0) // full: now the policy has its turn
	s.clean(t.Context())
	if n := s.byName["a"].kept(); n != 0 {
		t.Errorf("%d records are left under drop_oldest", n)
	}
	r, err := s.NewReader("a", 0, held.Position(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, ok, err := r.TryNext()
	if err != nil || !ok || b.Gap == nil || *b.Gap != (Gap{0, 100, GapDropped}) {
		t.Errorf("the reader is told %+v, %v, %v", b.Gap, ok, err)
	}
	if got := s.Stats().Streams[0].Dropped["drop_oldest"]; got != 100 {
		t.Errorf("%d counted", got)
	}
}

// The spool is full below the floor, and has room again only some way above it: it does not flap.
func TestRoomComesBackOnlyAboveTheMark(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.MinFree = 80 << 20
	fs := &freeFS{FS: vfs.OS}
	fs.free.Store(1 << 30)
	s := mustOpen(t, cfg, Options{FS: fs})
	f := func(free int64, want bool) {
		t.Helper()
		fs.free.Store(free)
		s.checkRoom()
		if got := s.full.Load(); got != want {
			t.Errorf("with %d MiB free: full is %v", free>>20, got)
		}
	}
	f(81<<20, false)
	f(79<<20, true)
	f(81<<20, true) // between the marks: as it was
	f(89<<20, true)
	f(90<<20, false) // an eighth of min_free above it
	f(85<<20, false)
	f(80<<20-1, true)
}
