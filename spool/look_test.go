package spool

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A file that somebody removes under a running spool is found: what is open can still be read and is copied, the rest is a gap.
func TestRemovedSegmentIsNoticedWhileRunning(t *testing.T) {
	open := func(t *testing.T) (*Spool, []string) {
		cfg, files := threeSegments(t)
		s := mustOpen(t, cfg, Options{})
		forgetTail(s)
		return s, files
	}
	t.Run("sealed and open", func(t *testing.T) {
		s, files := open(t)
		if err := os.Remove(files[1]); err != nil {
			t.Fatal(err)
		}
		s.clean(t.Context())
		if _, err := os.Stat(files[1]); err != nil {
			t.Fatal(err)
		}
		got, lost := wantAccounts(t, s, 400)
		if wantPayloads(t, got, 0, 400); lost != 0 {
			t.Errorf("%d lost", lost)
		}
	})
	t.Run("sealed and parked", func(t *testing.T) {
		s, files := open(t)
		s.cleanMu.Lock() // no round of the janitor opens it meanwhile
		s.pool.Park()
		err := os.Remove(files[1])
		s.cleanMu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		s.clean(t.Context())
		if _, lost := wantAccounts(t, s, 400); lost != 100 {
			t.Errorf("%d lost", lost)
		}
	})
	t.Run("parked, and a reader comes first", func(t *testing.T) {
		s, files := open(t)
		s.cleanMu.Lock()
		s.pool.Park()
		err := os.Remove(files[1])
		s.cleanMu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(got) != 300 || len(gaps) != 1 || gaps[0] != (Gap{100, 200, GapDamaged}) {
			t.Errorf("%d records, gaps %v", len(got), gaps)
		}
	})
	t.Run("active", func(t *testing.T) {
		s, files := open(t)
		putMany(t, s, 400, 500)
		if err := s.materialise(true); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(files[3]); err != nil {
			t.Fatal(err)
		}
		s.clean(t.Context())
		putMany(t, s, 500, 600)
		cfg := s.cfg
		mustClose(t, s)
		s = mustOpen(t, cfg, Options{})
		got, lost := wantAccounts(t, s, 600)
		if wantPayloads(t, got, 0, 600); lost != 0 {
			t.Errorf("%d lost", lost)
		}
	})
}

const limitEnv = "FOREBAY_SPOOL_TEST_FILES"

// TestManySegmentsInFewDescriptors opens, reads and goes on with many more segments than the process has descriptors. It is a
// process of its own: the limit cannot be raised again.
func TestManySegmentsInFewDescriptors(t *testing.T) {
	const segments, limit = 300, 128
	dir := os.Getenv(limitEnv)
	if dir == "" {
		cfg := smallConfig(t.TempDir(), oneStream(nil))
		s := mustOpen(t, cfg, Options{})
		for i := range segments {
			put(t, s, Entry{Record: testRecord(i)})
			if err := s.materialise(true); err != nil {
				t.Fatal(err)
			}
			s.cleanMu.Lock() // not beside the janitor
			s.rollForRoom(s.streams[0])
			s.sealRolled(t.Context(), s.streams[0])
			s.cleanMu.Unlock()
		}
		mustClose(t, s)
		cmd := exec.Command(os.Args[0], "-test.run", "^TestManySegmentsInFewDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), limitEnv+"="+cfg.Dir)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Skip(err)
	}
	s := mustOpen(t, smallConfig(dir, oneStream(nil)), Options{})
	for i := range 3 {
		forgetTail(s)
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(gaps) > 0 {
			t.Fatal(gaps)
		}
		wantPayloads(t, got, 0, segments+i)
		put(t, s, Entry{Record: testRecord(segments + i)})
		rollAll(t, s)
	}
	if page, err := s.ListSegments(t.Context(), SegmentsQuery{Limit: 1000}); err != nil || len(page.Segments) < segments {
		t.Fatalf("%d segments, %v", len(page.Segments), err)
	}
	if n := s.pool.Open(); n > openSegments() {
		t.Errorf("%d segments are open", n)
	}
	fmt.Println("in", limit, "descriptors")
}
