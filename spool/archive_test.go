package spool

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// archiveOf is a copy of the only sealed segment of s.
func archiveOf(t *testing.T, s *Spool, edit func([]byte)) *Archive {
	t.Helper()
	list, err := s.Sealed(DefaultStream)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d sealed segments: %v", len(list), err)
	}
	f, err := s.SealedFile(DefaultStream, list[0].Sequence)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Bytes))
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(b)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := OpenArchive(path, s.keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func readArchive(t *testing.T, a *Archive, from Offset, m *Match) (payloads []string, gaps []Gap, next Offset) {
	t.Helper()
	r := a.NewReader(0, from, m, WallClock)
	next = max(from, a.Partitions[0].First)
	for {
		b, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return payloads, gaps, next
		}
		if b.Gap != nil {
			gaps = append(gaps, *b.Gap)
			next = b.Gap.To
		}
		if b.First != next {
			t.Fatalf("a batch begins at %d, want %d", b.First, next)
		}
		for _, rec := range b.Records {
			payloads = append(payloads, string(rec.Payload))
		}
		next = b.Next
	}
}

// A copy of a segment reads as the spool does, from any offset, with a filter and without.
func TestArchiveReadsAsTheSpool(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	for i := range 40 { // batches of their own
		putMany(t, s, i*50, (i+1)*50)
		if err := s.materialise(true); err != nil {
			t.Fatal(err)
		}
	}
	rollAll(t, s)
	forgetTail(s)
	a := archiveOf(t, s, nil)
	if err := a.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Match{nil, {Filters: []string{"plant/3/#"}}, {ClientID: "device-2"}, {Filters: []string{"plant/3/temp"}, ClientID: "device-2"}, {Filters: []string{"none"}}} {
		for _, from := range []Offset{0, 1, 49, 50, 777, 1999, 2000} {
			got, gaps, next := readArchive(t, a, from, m)
			var want []string
			for i := int(from); i < 2000; i++ {
				if r := testRecord(i); m == nil || m.record(r) {
					want = append(want, string(r.Payload))
				}
			}
			if len(gaps) != 0 || next != 2000 || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%+v from %d: %d records of %d up to %d, gaps %v", m, from, len(got), len(want), next, gaps)
			}
		}
	}
	var dumped []string
	q := DumpQuery{Filter: "plant/3/#", Limit: 100}
	next, enough, err := a.Dump(t.Context(), 0, 0, q, WallClock, func(i DumpItem) error { dumped = append(dumped, string(i.Record.Payload)); return nil })
	if err != nil || !enough || len(dumped) != 100 {
		t.Fatalf("%d records, next %d, enough %v: %v", len(dumped), next, enough, err)
	}
	q.Limit = 0
	if _, enough, err = a.Dump(t.Context(), 0, next, q, WallClock, func(i DumpItem) error { dumped = append(dumped, string(i.Record.Payload)); return nil }); err != nil || enough {
		t.Fatalf("enough %v: %v", enough, err)
	}
	if want, _, _ := readArchive(t, a, 0, &Match{Filters: []string{"plant/3/#"}}); fmt.Sprint(dumped) != fmt.Sprint(want) {
		t.Errorf("dump has %d records, the reader %d", len(dumped), len(want))
	}
}

func TestCopyOfASegmentThatIsRemovedMeanwhileFails(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	putMany(t, s, 0, 100)
	rollAll(t, s)
	list, _ := s.Sealed(DefaultStream)
	f, err := s.SealedFile(DefaultStream, list[0].Sequence)
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := s.RemoveSealed(t.Context(), DefaultStream, list[0].Sequence); !gone || err != nil {
		t.Fatalf("removed: %v, %v", gone, err)
	}
	if _, err := f.ReadAt(make([]byte, 10), 0); err != ErrChanged { // as it is
		t.Errorf("got %v", err)
	}
	if start, _ := s.Bounds(DefaultStream, 0); start != 100 {
		t.Errorf("log start %d", start)
	}
	var m dto.Metric
	if err := s.metrics.removed.WithLabelValues(removedStored).Write(&m); err != nil || m.GetCounter().GetValue() != 1 {
		t.Errorf("%v segments are counted as removed because they are stored: %v", m.GetCounter().GetValue(), err)
	}
}

// What a protected cursor still needs does not go, whoever asks.
func TestRemoveSealedWaitsForCursors(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	if _, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true}); err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 100)
	rollAll(t, s)
	list, _ := s.Sealed(DefaultStream)
	if gone, err := s.RemoveSealed(t.Context(), DefaultStream, list[0].Sequence); gone || err != nil {
		t.Errorf("removed: %v, %v", gone, err)
	}
}

// What an archive has is expired in the time in which it was written, and tells expiries by the wall clock, as the spool does.
func TestArchiveKeepsToTheClockOfItsSpool(t *testing.T) {
	m := newWallClock()
	m.pass(0, -year) // the wall clock is behind when the records come, right a start later
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, m.options())
	mustClose(t, s)
	m.pass(time.Minute, year)
	s = mustOpen(t, cfg, m.options())
	r := testRecord(1)
	r.ExpiresAt = s.Now().Add(time.Hour).UnixNano()
	want := r.ExpiresAt
	put(t, s, Entry{Record: r})
	rollAll(t, s)
	a := archiveOf(t, s, nil)
	for _, c := range []struct {
		after time.Duration
		there bool
	}{{59 * time.Minute, true}, {61 * time.Minute, false}} {
		clock := func() (time.Time, time.Duration) {
			own, ahead := s.Clock()
			return own.Add(c.after), ahead
		}
		b, _, err := a.NewReader(0, 0, nil, clock).Next()
		if err != nil || len(b.Records) == 1 != c.there {
			t.Fatalf("after %v the reader has %d records, %v", c.after, len(b.Records), err)
		}
		dumped := 0
		if _, _, err := a.Dump(t.Context(), 0, 0, DumpQuery{}, clock, func(i DumpItem) error {
			dumped++
			b.Records = append(b.Records, *i.Record)
			return nil
		}); err != nil || dumped == 1 != c.there {
			t.Fatalf("after %v a dump has %d records, %v", c.after, dumped, err)
		}
		for _, got := range b.Records {
			if got.ExpiresAt != want {
				t.Errorf("expires at %v, want %v", time.Unix(0, got.ExpiresAt), time.Unix(0, want))
			}
		}
	}
}
