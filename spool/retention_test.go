package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// fakeClock is a clock that a test moves.
type fakeClock struct{ at atomic.Int64 }

func newFakeClock() *fakeClock {
	c := new(fakeClock)
	c.at.Store(time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *fakeClock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *fakeClock) advance(d time.Duration) { c.at.Add(int64(d)) }

// settle moves everything to segments and runs the janitor until it has nothing left to do.
func settle(t testing.TB, s *Spool) {
	t.Helper()
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.clean(context.Background())
	}
}

// rollAll ends the active segment of every stream.
func rollAll(t testing.TB, s *Spool) {
	t.Helper()
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	for _, st := range s.streams {
		s.rollForRoom(st)
	}
	settle(t, s)
}

// forgetTail makes readers go to the segments.
func forgetTail(s *Spool) {
	limit := s.tail.limit
	s.tail.mu.Lock()
	s.tail.limit = 0
	s.tail.evictLocked()
	s.tail.limit = limit
	s.tail.mu.Unlock()
}

func TestRetentionRemovesDeliveredSegments(t *testing.T) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(time.Hour) }))
	s := mustOpen(t, cfg, Options{Now: clock.now})
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		putMany(t, s, i*100, (i+1)*100)
		rollAll(t, s)
	}
	clock.advance(2 * time.Hour)
	settle(t, s)
	if start, _ := s.Bounds(DefaultStream, 0); start != 0 {
		t.Fatalf("log start %d: a protected cursor was passed", start)
	}
	c.Commit(0, 250)
	settle(t, s)
	start, end := s.Bounds(DefaultStream, 0)
	if start != 200 || end != 500 {
		t.Fatalf("bounds %d..%d, want 200..500", start, end)
	}
	got, gaps := readAll(t, s, DefaultStream, 0, 100)
	wantPayloads(t, got, 200, 500)
	if len(gaps) != 1 || gaps[0] != (Gap{100, 200, GapRetention}) {
		t.Errorf("gaps %v", gaps)
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{Now: clock.now})
	if start, end := s.Bounds(DefaultStream, 0); start != 200 || end != 500 {
		t.Errorf("bounds %d..%d after restart", start, end)
	}
}

func TestOffsetsGoOnWhenAllSegmentsAreGone(t *testing.T) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(time.Hour) }))
	s := mustOpen(t, cfg, Options{Now: clock.now})
	putMany(t, s, 0, 100)
	rollAll(t, s)
	clock.advance(2 * time.Hour)
	settle(t, s)
	if n := s.Stats().Streams[0].Segments; n != 0 {
		t.Fatalf("%d segments left", n)
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{Now: clock.now})
	if start, end := s.Bounds(DefaultStream, 0); start != 100 || end != 100 {
		t.Fatalf("bounds %d..%d", start, end)
	}
	putMany(t, s, 100, 101)
	got, _ := readAll(t, s, DefaultStream, 0, 100)
	wantPayloads(t, got, 100, 101)
}

func TestExpiredRecordsNeverLeaveTheSpool(t *testing.T) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.MaxTTL = unit.Duration(time.Hour) }))
	s := mustOpen(t, cfg, Options{Now: clock.now})
	for i := range 100 { // the even ones live for 10 minutes, the odd ones as long as the stream allows
		r := testRecord(i)
		r.ReceivedAt = clock.now().UnixNano()
		if i%2 == 0 {
			r.ExpiresAt = clock.now().Add(10 * time.Minute).UnixNano()
		}
		put(t, s, Entry{Record: r})
	}
	check := func(where string, want int) {
		t.Helper()
		r, _ := s.NewReader(DefaultStream, 0, 0)
		defer r.Close()
		live, expired := 0, 0
		for {
			b, ok, err := r.TryNext()
			if err != nil || b.Gap != nil {
				t.Fatalf("%s: %v %v", where, err, b.Gap)
			}
			if !ok {
				break
			}
			live += len(b.Records)
			expired += b.Expired
		}
		if live != want || live+expired != 100 {
			t.Errorf("%s: %d live, %d expired, want %d live", where, live, expired, want)
		}
	}
	check("memory", 100)
	clock.advance(11 * time.Minute)
	check("memory", 50)
	rollAll(t, s)
	forgetTail(s)
	check("segment", 50)
	if n := s.Stats().Streams[0].Skipped; n != 100 {
		t.Errorf("%d counted as left out by two readers", n)
	}
	clock.advance(time.Hour)
	check("segment", 0)
	settle(t, s)
	if n := s.Stats().Streams[0].Segments; n != 0 {
		t.Errorf("%d segments of expired records are kept", n)
	}
	check("removed", 0)
	if n := s.Stats().Streams[0].Expired; n != 100 {
		t.Errorf("%d counted as expired", n)
	}
}

func TestStreamTTLIsTheDefault(t *testing.T) {
	clock := newFakeClock()
	sc := oneStream(func(sc *StreamConfig) { sc.TTL, sc.MaxTTL = unit.Duration(time.Minute), unit.Duration(time.Hour) })
	s := mustOpen(t, smallConfig(t.TempDir(), sc), Options{Now: clock.now})
	r := testRecord(0)
	put(t, s, Entry{Record: r})
	if want := r.ReceivedAt + int64(time.Minute); r.ExpiresAt != want || !r.StreamTTL {
		t.Errorf("expires at %d, want %d; by the stream is %v", r.ExpiresAt, want, r.StreamTTL)
	}
	r = testRecord(1)
	r.ExpiresAt = clock.now().Add(48 * time.Hour).UnixNano()
	put(t, s, Entry{Record: r})
	if want := r.ReceivedAt + int64(time.Hour); r.ExpiresAt != want || r.StreamTTL {
		t.Errorf("expires at %d, want %d; by the stream is %v", r.ExpiresAt, want, r.StreamTTL)
	}
}

func TestSegmentOfFewLiveRecordsIsRewritten(t *testing.T) {
	clock := newFakeClock()
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{Now: clock.now})
	rnd := newRand(t)
	payload := make([]byte, 2000)
	var last waiter
	for i := range 2000 {
		r := testRecord(i)
		for k := range payload {
			payload[k] = byte(rnd.Uint32())
		}
		r.Payload = append([]byte(fmt.Sprintf("value %d ", i)), payload...)
		r.ReceivedAt = clock.now().UnixNano()
		if i%10 != 0 {
			r.ExpiresAt = clock.now().Add(time.Minute).UnixNano()
		}
		last = newWaiter()
		if err := s.Append(t.Context(), Entry{Record: r, Done: last}); err != nil {
			t.Fatal(err)
		}
	}
	<-last
	rollAll(t, s)
	before := s.Stats().Streams[0].Bytes
	clock.advance(time.Hour)
	for range 5 {
		settle(t, s)
	}
	if after := s.Stats().Streams[0].Bytes; after > before*2/3 {
		t.Errorf("%d bytes, %d before", after, before)
	}
	forgetTail(s)
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(got) != 200 || len(gaps) != 0 {
		t.Errorf("%d records, gaps %v", len(got), gaps)
	}
}

func TestClockOfANewRunIsNotBeforeTheLast(t *testing.T) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir())
	s := mustOpen(t, cfg, Options{Now: clock.now})
	clock.advance(time.Hour)
	put(t, s, Entry{Record: testRecord(0)})
	last := s.clock.now()
	mustClose(t, s)
	clock.advance(-24 * time.Hour) // a machine without a battery for its clock
	s = mustOpen(t, cfg, Options{Now: clock.now})
	if now := s.clock.now(); now < last {
		t.Errorf("time goes on at %v, was %v", now, last)
	}
	if got := s.Now(); !got.Equal(clock.now()) {
		t.Errorf("the wall clock says %v, the spool %v", clock.now(), got)
	}
}

// freeFS is the operating system with a disk whose free space the test sets.
type freeFS struct {
	vfs.FS
	free atomic.Int64
}

func (f *freeFS) DiskFree(string) (int64, error) { return f.free.Load(), nil }

func fullSpool(t *testing.T, policy FullPolicy) (*Spool, *freeFS) {
	fs := &freeFS{FS: vfs.OS}
	fs.free.Store(1 << 30)
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.WhenFull = policy })), Options{FS: fs})
	if _, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true}); err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 100)
	rollAll(t, s)
	putMany(t, s, 100, 200)
	rollAll(t, s)
	fs.free.Store(0)
	return s, fs
}

func TestFullSpoolBlocksAndGoesOnByItself(t *testing.T) {
	s, fs := fullSpool(t, FullBlock)
	s.checkRoom()
	if err := s.Health(); !errors.Is(err, ErrFull) {
		t.Errorf("health: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Append(ctx, Entry{Record: testRecord(200)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("append to a full spool: %v", err)
	}
	put(t, s, Entry{Changes: []Change{{"a", "k", []byte("v")}}}) // state goes on: sessions must not break
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { put(t, s, Entry{Record: testRecord(200 + i)}) })
	}
	fs.free.Store(1 << 30)
	wg.Wait() // the janitor notices within a second
	if _, end := s.Bounds(DefaultStream, 0); end != 220 {
		t.Errorf("end %d", end)
	}
	if err := s.Health(); err != nil {
		t.Errorf("health: %v", err)
	}
}

// What must not wait takes from a reserve, at any policy, and is refused when that is used up.
func TestFullSpoolHasAReserve(t *testing.T) {
	for _, policy := range []FullPolicy{FullBlock, FullReject, FullDropNew} {
		s, fs := fullSpool(t, policy)
		s.checkRoom()
		n := 0
		for ; n < 1_000_000; n++ {
			r := testRecord(200 + n)
			r.Payload = make([]byte, 64<<10)
			if err := s.Append(t.Context(), Entry{Record: r, Reserve: true}); errors.Is(err, ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n == 0 || n > maxReserve>>16 {
			t.Errorf("%s: %d records of 64 KiB found room", policy, n)
		}
		put(t, s, Entry{Changes: []Change{{"a", "k", []byte("v")}}})
		fs.free.Store(1 << 40)
		s.checkRoom()
		put(t, s, Entry{Record: testRecord(0)})
		if _, end := s.Bounds(DefaultStream, 0); end != Offset(200+n+1) {
			t.Errorf("%s: end %d, want %d", policy, end, 200+n+1)
		}
		fs.free.Store(0)
		s.checkRoom()
		put(t, s, Entry{Record: testRecord(1), Reserve: true}) // the reserve is whole again
	}
}

func TestFullSpoolRejects(t *testing.T) {
	s, _ := fullSpool(t, FullReject)
	s.checkRoom()
	if err := s.Append(t.Context(), Entry{Record: testRecord(200)}); !errors.Is(err, ErrFull) {
		t.Errorf("append: %v", err)
	}
	if n := s.Stats().Streams[0].Dropped["rejected"]; n != 1 {
		t.Errorf("%d rejected", n)
	}
}

func TestFullSpoolDropsNew(t *testing.T) {
	s, _ := fullSpool(t, FullDropNew)
	s.checkRoom()
	r := testRecord(200)
	put(t, s, Entry{Record: r})
	if r.Offset != NoOffset {
		t.Errorf("offset %d", r.Offset)
	}
	if n := s.Stats().Streams[0].Dropped["drop_new"]; n != 1 {
		t.Errorf("%d dropped", n)
	}
}

func TestFullSpoolDropsOldestWithGap(t *testing.T) {
	s, fs := fullSpool(t, FullDropOldest)
	s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	go func() {
		eventually(t, "start moves", func() bool { start, _ := s.Bounds(DefaultStream, 0); return start >= 100 })
		fs.free.Store(1 << 30)
	}()
	s.checkRoom()
	put(t, s, Entry{Record: testRecord(200)})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(gaps) == 0 || gaps[0].From != 0 || gaps[0].Reason != GapDropped || len(got) == 0 {
		t.Errorf("gaps %v, %d records", gaps, len(got))
	}
	start, _ := s.Bounds(DefaultStream, 0)
	if n := s.Stats().Streams[0].Dropped["drop_oldest"]; n != uint64(start) {
		t.Errorf("%d dropped, log starts at %d", n, start)
	}
}

func TestMaxSizeIsKept(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.MaxSize = 16 << 20
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	payload := make([]byte, 4000)
	for i := range 10000 { // 40 MB
		r := testRecord(i)
		r.Payload = append([]byte(nil), payload...)
		if err := s.Append(t.Context(), Entry{Record: r}); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 0 {
			if used := dirBytes(cfg.Dir); used > int64(cfg.MaxSize)+int64(cfg.Segment.MaxSize)+4<<20 {
				t.Fatalf("%d bytes on disk", used)
			}
		}
	}
	put(t, s, Entry{Record: testRecord(1)})
	if start, end := s.Bounds(DefaultStream, 0); start == 0 || end != 10001 {
		t.Errorf("bounds %d..%d", start, end)
	}
}

func TestStreamMaxSizeIsKept(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.MaxSize = 16 << 20 }))
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 4000)
	n := 0
	for ; ; n++ {
		r := testRecord(n)
		r.Payload = append([]byte(nil), payload...)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		err := s.Append(ctx, Entry{Record: r})
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if s.Health() == nil {
				continue // only slow
			}
			break
		}
		if n > 20000 {
			t.Fatal("a protected stream takes more than its size")
		}
	}
	if err := s.Health(); !errors.Is(err, ErrFull) {
		t.Errorf("health: %v", err)
	}
	_, end := s.Bounds(DefaultStream, 0)
	c.Commit(0, end)
	put(t, s, Entry{Record: testRecord(n)})
}

func TestSeekTimeFindsTheFirstRecord(t *testing.T) {
	clock := newFakeClock()
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{Now: clock.now})
	began := clock.now()
	for i := range 300 {
		put(t, s, Entry{Record: testRecord(i)})
		clock.advance(time.Second)
		if i == 99 || i == 199 {
			rollAll(t, s)
		}
	}
	for _, i := range []int{0, 1, 50, 99, 100, 150, 199, 200, 250, 299, 300} {
		o, err := s.SeekTime(DefaultStream, 0, began.Add(time.Duration(i)*time.Second))
		if err != nil || o != Offset(i) {
			t.Errorf("seek to %d s: %d, %v", i, o, err)
		}
	}
	for at, want := range map[time.Time]Offset{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC): 300, time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC): 0} {
		if o, err := s.SeekTime(DefaultStream, 0, at); err != nil || o != want {
			t.Errorf("seek to %v: %d, %v, want %d", at, o, err, want)
		}
	}
}

func TestUnusedSpoolLeavesNothingOpen(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, smallConfig(dir), Options{})
	mustClose(t, s)
	mustClose(t, s)
	if _, err := os.Stat(dir + "/meta.db"); err != nil {
		t.Error(err)
	}
}
