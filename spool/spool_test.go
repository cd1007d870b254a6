package spool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestAppendedRecordIsReadBack(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	putMany(t, s, 0, 100)
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	wantPayloads(t, got, 0, 100)
	if len(gaps) > 0 {
		t.Errorf("gaps %v", gaps)
	}
}

func TestRecordsSurviveRestart(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	for round := range 4 {
		s := mustOpen(t, cfg, Options{})
		got, _ := readAll(t, s, DefaultStream, 0, 0)
		wantPayloads(t, got, 0, round*500)
		putMany(t, s, round*500, (round+1)*500)
		if _, end := s.Bounds(DefaultStream, 0); end != Offset((round+1)*500) {
			t.Fatalf("end %d", end)
		}
		mustClose(t, s)
	}
}

func TestCompletionsComeInOrderOfAcceptance(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir()), Options{})
	var mu sync.Mutex
	var got []int
	groups := 0
	s.OnGroup(func() { groups++ })
	done := make(chan struct{})
	const n = 5000
	for i := range n {
		if err := s.Append(t.Context(), Entry{Record: testRecord(i), Done: completionFunc(func(r *Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("durable: %v", err)
			}
			got = append(got, i)
			if i == n-1 {
				close(done)
			}
		})}); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	if !slices.IsSorted(got) || len(got) != n {
		t.Errorf("%d completions, sorted %v", len(got), slices.IsSorted(got))
	}
	mustClose(t, s)
	if groups == 0 || groups > n {
		t.Errorf("%d groups", groups)
	}
}

type completionFunc func(*Record, error)

func (f completionFunc) Durable(r *Record, err error) { f(r, err) }

func TestChangesAreLoadedAfterRestart(t *testing.T) {
	cfg := smallConfig(t.TempDir())
	s := mustOpen(t, cfg, Options{})
	put(t, s, Entry{Changes: []Change{{"a", "k1", []byte("v1")}, {"a", "k2", []byte("v2")}, {"b", "k", []byte{}}}})
	put(t, s, Entry{Record: testRecord(1), Changes: []Change{{"a", "k1", nil}, {"a", "k3", []byte("v3")}}})
	check := func(s *Spool) {
		t.Helper()
		got := map[string]string{}
		for _, space := range []string{"a", "b", "none"} {
			if err := s.Load(space, func(k string, v []byte) error { got[space+"/"+k] = string(v); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if want := "map[a/k2:v2 a/k3:v3 b/k:]"; fmt.Sprint(got) != want {
			t.Errorf("loaded %v, want %v", got, want)
		}
	}
	check(s)
	mustClose(t, s)
	check(mustOpen(t, cfg, Options{}))
}

func TestCursorSurvivesRestart(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 100)
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Position(0); p != 0 {
		t.Errorf("new cursor at %d", p)
	}
	c.Commit(0, 40)
	c.Commit(0, 30) // never back
	if p := c.Position(0); p != 40 {
		t.Errorf("position %d", p)
	}
	c.Commit(0, 1000) // never past the end
	if p := c.Position(0); p != 100 {
		t.Errorf("position %d", p)
	}
	end, err := s.OpenCursor(t.Context(), "end", DefaultStream, CursorOptions{From: End})
	if err != nil || end.Position(0) != 100 {
		t.Errorf("cursor at the end: %d, %v", end.Position(0), err)
	}
	gone, err := s.OpenCursor(t.Context(), "gone", DefaultStream, CursorOptions{})
	if err != nil || gone.Flush(t.Context()) != nil {
		t.Error(err)
	}
	if err := s.DropCursor(t.Context(), "gone"); err != nil {
		t.Error(err)
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	mustClose(t, s)

	s = mustOpen(t, cfg, Options{})
	infos := s.Cursors()
	if len(infos) != 2 || infos[1].Name != "route" || infos[1].Positions[0] != 100 || !infos[1].Protect || infos[1].Lag != 0 {
		t.Errorf("cursors %+v", infos)
	}
}

func TestReaderWaitsAtTheTail(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	r, err := s.NewReader(DefaultStream, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, ok, err := r.TryNext(); ok || err != nil {
		t.Fatal(ok, err)
	}
	go func() { _ = s.Append(context.Background(), Entry{Record: testRecord(0)}) }()
	b, err := r.Next(t.Context())
	if err != nil || len(b.Records) != 1 || b.Stream != DefaultStream || b.Next != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("next: %v", err)
	}
	go r.Close()
	if _, err := r.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("next of a closed reader: %v", err)
	}
}

func TestReaderComesFromSegmentsToTheTail(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.TailSize = 1 << 20
	s := mustOpen(t, cfg, Options{})
	const n = 60000
	go func() {
		for i := range n {
			if err := s.Append(context.Background(), Entry{Record: testRecord(i)}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			r, _ := s.NewReader(DefaultStream, 0, 0)
			defer r.Close()
			for i := 0; i < n; {
				b, err := r.Next(context.Background())
				if err != nil || b.Gap != nil {
					t.Errorf("next: %+v %v", b.Gap, err)
					return
				}
				for j := range b.Records {
					if want := fmt.Sprintf("value %d", i); string(b.Records[j].Payload) != want || b.Records[j].Offset != Offset(i) {
						t.Errorf("offset %d: %s, want %s", b.Records[j].Offset, b.Records[j].Payload, want)
						return
					}
					i++
				}
				if k == 1 && i%7 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	got, _ := readAll(t, s, DefaultStream, 0, 0)
	wantPayloads(t, got, 0, n)
	if tail := s.Stats().TailBytes; tail > 2<<20 {
		t.Errorf("tail holds %d bytes", tail)
	}
}

func TestSecondOpenNamesTheDirectory(t *testing.T) {
	cfg := smallConfig(t.TempDir())
	mustOpen(t, cfg, Options{})
	_, err := Open(cfg, Options{})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("open: %v", err)
	}
	t.Log(err)
}

func TestAppendAfterCloseIsRefused(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir()), Options{})
	mustClose(t, s)
	if err := s.Append(t.Context(), Entry{Record: testRecord(0)}); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
}

func TestGroupsThatQueueBehindEachOtherKeepOffsetsDense(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	gate := make(chan struct{})
	if err := s.Append(t.Context(), Entry{Record: testRecord(0), Done: completionFunc(func(*Record, error) { <-gate })}); err != nil {
		t.Fatal(err)
	}
	// While the committer stands still, several groups fill up.
	const n = 200
	var last waiter
	for i := 1; i < n; i++ {
		r := testRecord(i)
		r.Payload = append(r.Payload, make([]byte, 4<<10)...)
		last = newWaiter()
		if err := s.Append(t.Context(), Entry{Record: r, Done: last}); err != nil {
			t.Fatal(err)
		}
		if i == n/2 {
			close(gate)
		}
	}
	if err := <-last; err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(t, s, DefaultStream, 0, 0)
	if _, end := s.Bounds(DefaultStream, 0); len(got) != n || end != n {
		t.Errorf("%d records, end %d", len(got), end)
	}
}
