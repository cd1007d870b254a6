package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

// wantAccounts checks that what is not read is told by a gap and counted, and returns what is read.
func wantAccounts(t testing.TB, s *Spool, end Offset) (payloads []string, lost int) {
	t.Helper()
	payloads, gaps := readAll(t, s, DefaultStream, 0, 0)
	for _, g := range gaps {
		lost += int(g.To - g.From)
	}
	counted := s.Stats().Streams[0].Dropped["damaged"]
	if _, got := s.Bounds(DefaultStream, 0); len(payloads)+lost != int(end) || counted != uint64(lost) || got != end {
		t.Errorf("end %d: %d records, gaps %v, %d counted", got, len(payloads), gaps, counted)
	}
	return payloads, lost
}

// The end of a partition is known to meta.db, and neither a segment nor the journal has what came before it.
func TestLostEndOfSegmentAndJournalIsAGap(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 100)
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 100, 200)
	mustClose(t, s)
	segments, _ := filepath.Glob(filepath.Join(cfg.Dir, "seg", DefaultStream, "*.db"))
	journals, _ := filepath.Glob(filepath.Join(cfg.Dir, "journal", "*.journal"))
	for _, path := range segments {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range journals {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.Index(string(b), "value 150"); i > 0 {
			clear(b[i/4096*4096:])
			if err := os.WriteFile(path, b, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	s = mustOpen(t, cfg, Options{})
	putMany(t, s, 200, 300)
	for range 2 {
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(gaps) != 1 || gaps[0].To != 200 || len(got)+int(gaps[0].To-gaps[0].From) != 300 {
			t.Fatalf("%d records, gaps %v", len(got), gaps)
		}
		if n := s.Stats().Streams[0].Dropped["damaged"]; n != uint64(gaps[0].To-gaps[0].From) {
			t.Errorf("%d counted", n)
		}
		rollAll(t, s)
		forgetTail(s)
	}
}

func TestRemovedDirectoryOfAStreamIsMadeAgain(t *testing.T) {
	a := DefaultStreamConfig("a")
	a.Filters = []string{"a/#"}
	cfg := smallConfig(t.TempDir(), a, oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "seg", "a")); err != nil {
		t.Fatal(err)
	}
	put(t, s, Entry{Record: &Record{Topic: "a/b", ClientID: "x"}})
	if err := s.materialise(true); err != nil {
		t.Error(err)
	}
}

func TestWhatTheJournalHasOfALostSegmentIsNotCountedAsLost(t *testing.T) {
	cfg, files := threeSegments(t)
	if err := os.Remove(files[3]); err != nil {
		t.Fatal(err)
	}
	got, _ := wantAccounts(t, mustOpen(t, cfg, Options{}), 400)
	wantPayloads(t, got, 0, 400)
}

func TestOlderCopyOfASegmentIsCountedOnce(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 50)
	mustClose(t, s)
	files, _ := filepath.Glob(filepath.Join(cfg.Dir, "seg", DefaultStream, "*.db"))
	old := filepath.Join(t.TempDir(), "old")
	copyFile(t, files[0], old)
	s = mustOpen(t, cfg, Options{})
	putMany(t, s, 50, 100)
	rollAll(t, s)
	putMany(t, s, 100, 200)
	rollAll(t, s)
	mustClose(t, s)
	copyFile(t, old, files[0])
	s = mustOpen(t, cfg, Options{})
	if _, lost := wantAccounts(t, s, 200); lost != 50 {
		t.Errorf("%d lost", lost)
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{})
	if n := s.Stats().Streams[0].Dropped["damaged"]; n != 0 {
		t.Errorf("%d counted again", n)
	}
}

func TestExpiredEndOfTheLogIsNoLoss(t *testing.T) {
	clock := newFakeClock()
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{Now: clock.now})
	putMany(t, s, 0, 100)
	rollAll(t, s)
	for i := range 100 {
		r := testRecord(i)
		r.ExpiresAt = s.clock.now() + int64(time.Minute)
		put(t, s, Entry{Record: r})
	}
	rollAll(t, s)
	clock.advance(time.Hour)
	s.clean(t.Context())
	if n := s.Stats().Streams[0].Segments; n != 1 {
		t.Fatalf("%d segments", n)
	}
	for i := range 1500 { // until the journal has nothing of it any more
		put(t, s, Entry{Changes: []Change{{"a", fmt.Sprint(i), make([]byte, 4000)}}})
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{Now: clock.now})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if n := s.Stats().Streams[0].Dropped["damaged"]; len(got) != 100 || len(gaps) != 0 || n != 0 {
		t.Errorf("%d records, gaps %v, %d counted", len(got), gaps, n)
	}
	if _, end := s.Bounds(DefaultStream, 0); end != 200 {
		t.Errorf("end %d", end)
	}
}

func TestRemovedSegmentThatStaysDoesNotStopTheStart(t *testing.T) {
	cfg, files := threeSegments(t)
	s := mustOpen(t, cfg, Options{})
	if err := s.tombstone(s.streams[0].segments()[0]); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	if err := errors.Join(os.Remove(files[0]), os.MkdirAll(filepath.Join(files[0], "x"), 0o750)); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, cfg, Options{})
	if got, _ := readAll(t, s, DefaultStream, 0, 100); len(got) != 300 {
		t.Errorf("%d records", len(got))
	}
}

func TestSomethingInThePlaceOfANewSegmentDoesNotStopTheStream(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	if err := os.WriteFile(filepath.Join(cfg.Dir, "seg", DefaultStream, segmentName(1)), []byte("junk"), 0o640); err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 100)
	_ = s.materialise(true)
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	got, _ := wantAccounts(t, mustOpen(t, cfg, Options{}), 100)
	wantPayloads(t, got, 0, 100)
}
