package spool_test

import (
	"path/filepath"
	"testing"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
)

// A spool that was marked as restored begins a fork when it is opened, once, at the offsets that it has then; a copy of a copy has both.
func TestARestoredSpoolBeginsAFork(t *testing.T) {
	cfg := spooltest.Config(filepath.Join(t.TempDir(), "spool"), spool.StreamConfig{Name: "alarms", Partitions: 2})
	add := func(s *spool.Spool, n int) {
		t.Helper()
		for range n {
			d := make(acknowledged, 1)
			if err := s.Append(t.Context(), spool.Entry{Record: &spool.Record{Topic: "a", ClientID: "c"}, Done: d}); err != nil {
				t.Fatal(err)
			}
			if err := <-d; err != nil {
				t.Fatal(err)
			}
		}
	}
	open := func(want int) *spool.Spool {
		t.Helper()
		s, err := spool.Open(cfg, spool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(s.Forks()); got != want {
			t.Fatalf("%d forks, want %d", got, want)
		}
		return s
	}
	s := open(0)
	add(s, 5)
	partition := 0
	for p := range 8 {
		if _, end := s.Bounds(spool.DefaultStream, p); end == 5 {
			partition = p
		}
	}
	for i, n := range []int{3, 4} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := spool.MarkRestored(cfg.Dir); err != nil {
			t.Fatal(err)
		}
		if v, err := spool.OpenView(cfg, spool.Options{}); err != nil { // looking at it begins none
			t.Fatal(err)
		} else if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(i + 1)
		add(s, n)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(i + 1) // the next start begins none
	}
	defer s.Close()
	forks := s.Forks()
	if forks[0].ID == forks[1].ID || forks[0].ID == "" {
		t.Errorf("IDs %q and %q", forks[0].ID, forks[1].ID)
	}
	for o, want := range map[spool.Offset]string{0: "", 4: "", 5: forks[0].ID, 7: forks[0].ID, 8: forks[1].ID, 11: forks[1].ID, 1 << 40: forks[1].ID} {
		if got := spool.ForkOf(forks, spool.DefaultStream, partition, o); got != want {
			t.Errorf("offset %d is of fork %q, want %q", o, got, want)
		}
	}
	// A stream, or a partition, that is younger than the restore is the fork's from its beginning.
	for _, name := range []string{"younger", spool.DefaultStream, "alarms"} {
		if got := spool.ForkOf(forks, name, 40, 0); got != forks[1].ID {
			t.Errorf("%s/40 is of fork %q", name, got)
		}
	}
}

type acknowledged chan error

func (a acknowledged) Durable(_ *spool.Record, err error) { a <- err }
