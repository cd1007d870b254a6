package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

// threeSegments is a closed spool of 300 records in three sealed segments and 100 in the active one, and a cursor.
func threeSegments(t *testing.T) (Config, []string) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	if _, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		putMany(t, s, i*100, (i+1)*100)
		rollAll(t, s)
	}
	putMany(t, s, 300, 400)
	put(t, s, Entry{Changes: []Change{{"a", "k", []byte("v")}}})
	mustClose(t, s)
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "seg", DefaultStream, "*.db"))
	if err != nil || len(files) != 4 {
		t.Fatalf("segments %v, %v", files, err)
	}
	return cfg, files
}

func quarantined(t *testing.T, cfg Config) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "quarantine", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestMissingSegmentIsAGap(t *testing.T) {
	cfg, files := threeSegments(t)
	if err := os.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start remembers
		s := mustOpen(t, cfg, Options{})
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(gaps) != 1 || gaps[0] != (Gap{100, 200, GapDamaged}) {
			t.Errorf("gaps %v", gaps)
		}
		wantPayloads(t, got[:100], 0, 100)
		wantPayloads(t, got[100:], 200, 400)
		mustClose(t, s)
	}
}

func TestTruncatedSegmentIsSetAside(t *testing.T) {
	cfg, files := threeSegments(t)
	if err := os.Truncate(files[1], 5000); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg, Options{})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(gaps) != 1 || gaps[0] != (Gap{100, 200, GapDamaged}) || len(got) != 300 {
		t.Errorf("%d records, gaps %v", len(got), gaps)
	}
	if q := quarantined(t, cfg); len(q) != 1 {
		t.Errorf("quarantine %v", q)
	}
	putMany(t, s, 400, 500)
	if _, end := s.Bounds(DefaultStream, 0); end != 500 {
		t.Errorf("end %d", end)
	}
}

func TestDamagedActiveSegmentComesBackFromTheJournal(t *testing.T) {
	cfg, files := threeSegments(t)
	if err := os.Truncate(files[3], 5000); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg, Options{})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	// The journal has not been recycled yet: nothing is lost at all.
	if len(gaps) != 0 {
		t.Errorf("gaps %v", gaps)
	}
	wantPayloads(t, got, 0, 400)
}

func TestLostActiveSegmentAndJournalNeverGiveAnOffsetTwice(t *testing.T) {
	cfg, files := threeSegments(t)
	if err := errors.Join(os.Remove(files[3]), os.RemoveAll(filepath.Join(cfg.Dir, "journal"))); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg, Options{})
	if _, end := s.Bounds(DefaultStream, 0); end != 400 {
		t.Fatalf("end %d", end)
	}
	putMany(t, s, 400, 450)
	put(t, s, Entry{Changes: []Change{{"a", "k2", []byte("v2")}}})
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(gaps) != 1 || gaps[0] != (Gap{300, 400, GapDamaged}) || len(got) != 350 {
		t.Errorf("%d records, gaps %v", len(got), gaps)
	}
	n := 0
	if err := s.Load("a", func(string, []byte) error { n++; return nil }); err != nil || n != 2 {
		t.Errorf("%d keys, %v: a change after the loss of the journal was taken for an old one", n, err)
	}
}

func TestDamagedMetaIsRebuilt(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"empty pages": func(t *testing.T, path string) {
			if err := os.WriteFile(path, make([]byte, 32<<10), 0o640); err != nil {
				t.Fatal(err)
			}
		},
		"cut": func(t *testing.T, path string) {
			if err := os.Truncate(path, 6000); err != nil {
				t.Fatal(err)
			}
		},
		"noise": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 8192; i < len(b); i += 7 {
				b[i] ^= 0x5a
			}
			if err := os.WriteFile(path, b, 0o640); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := threeSegments(t)
			damage(t, filepath.Join(cfg.Dir, "meta.db"))
			log, logger := logTo(t)
			s := mustOpen(t, cfg, Options{Logger: logger})
			got, gaps := readAll(t, s, DefaultStream, 0, 0)
			wantPayloads(t, got, 0, 400)
			if len(gaps) != 0 {
				t.Errorf("gaps %v", gaps)
			}
			if !log.contains("meta.db is damaged") || len(quarantined(t, cfg)) != 1 {
				t.Error("nothing was said or kept")
			}
			putMany(t, s, 400, 500)
			mustClose(t, s)
			s = mustOpen(t, cfg, Options{})
			got, _ = readAll(t, s, DefaultStream, 0, 0)
			wantPayloads(t, got, 0, 500)
		})
	}
}

func TestBitFlipCostsOneBatch(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	for i := range 1000 { // about eight batches
		r := testRecord(i)
		r.Payload = fmt.Appendf(nil, "value %d %s", i, strings.Repeat("x", 1000))
		if err := s.Append(t.Context(), Entry{Record: r}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, Entry{Record: testRecord(1000)})
	rollAll(t, s)
	mustClose(t, s)
	files, _ := filepath.Glob(filepath.Join(cfg.Dir, "seg", DefaultStream, "*.db"))
	flip(t, files[0], []byte("value 400 "))

	s = mustOpen(t, cfg, Options{})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if len(gaps) != 1 || gaps[0].Reason != GapDamaged || gaps[0].From > 400 || gaps[0].To <= 400 || gaps[0].To-gaps[0].From > 300 {
		t.Fatalf("gaps %v", gaps)
	}
	if lost := int(gaps[0].To - gaps[0].From); len(got)+lost != 1001 {
		t.Errorf("%d records, %d lost", len(got), lost)
	}
	if q := quarantined(t, cfg); len(q) != 1 {
		t.Errorf("quarantine %v", q)
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{})
	again, gaps2 := readAll(t, s, DefaultStream, 0, 0)
	if len(again) != len(got) || len(gaps2) != 1 || gaps2[0] != gaps[0] {
		t.Errorf("%d records, gaps %v after restart", len(again), gaps2)
	}
}

func flip(t *testing.T, path string, near []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(b, near)
	if i < 0 {
		t.Fatalf("%q is not in %s", near, path)
	}
	b[i+len(near)+3] ^= 1
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestNewerMetaIsUnsupportedAndUntouched(t *testing.T) {
	cfg, _ := threeSegments(t)
	path := filepath.Join(cfg.Dir, "meta.db")
	db, err := bolt.Open(path, 0o640, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte{metaSealed + 1}) }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	_, err = Open(cfg, Options{})
	if !errors.Is(err, ErrUnsupported) {
		t.Fatalf("open: %v", err)
	}
	after, _ := os.ReadFile(path)
	if !bytes.Equal(before, after) || len(quarantined(t, cfg)) != 0 {
		t.Error("a newer format was touched")
	}
}

func TestStreamThatLeftTheConfigurationStaysReadable(t *testing.T) {
	a := DefaultStreamConfig("a")
	a.Filters, a.Partitions = []string{"plant/#"}, 3
	cfg := smallConfig(t.TempDir(), a, oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 100)
	mustClose(t, s)
	cfg.Streams = cfg.Streams[1:]
	s = mustOpen(t, cfg, Options{})
	n := 0
	for p := range 3 {
		got, _ := readAll(t, s, "a", p, 0)
		n += len(got)
	}
	if n != 100 {
		t.Errorf("%d records", n)
	}
	if got := s.StreamFor("plant/1"); got != DefaultStream {
		t.Errorf("stream %s", got)
	}
	if err := s.Append(t.Context(), Entry{Record: testRecord(1), Stream: "a"}); !errors.Is(err, ErrUnknownStream) {
		t.Errorf("append: %v", err)
	}
}

// What its retention was is not known any more: nothing goes before somebody has decided, and everybody is told.
func TestStreamThatLeftTheConfigurationKeepsItsRecords(t *testing.T) {
	a := DefaultStreamConfig("a")
	a.Filters, a.Partitions = []string{"plant/#"}, 3
	cfg := smallConfig(t.TempDir(), a, oneStream(nil))
	clock := newFakeClock()
	s := mustOpen(t, cfg, Options{Now: clock.now})
	putMany(t, s, 0, 100)
	rollAll(t, s)
	mustClose(t, s)
	cfg.Streams = cfg.Streams[1:]
	log, logger := logTo(t)
	s = mustOpen(t, cfg, Options{Now: clock.now, Logger: logger})
	fs := &freeFS{FS: s.fs}
	s.fs = fs // a full disk
	clock.advance(1000 * time.Hour)
	for range 3 {
		s.clean(t.Context())
	}
	if n := s.byName["a"].kept(); n != 100 {
		t.Errorf("%d records are left", n)
	}
	if err := s.Worry(); err == nil || !strings.Contains(err.Error(), "a (100 records") {
		t.Errorf("worry: %v", err)
	}
	if !log.contains("not in the configuration") {
		t.Error("the log does not name it")
	}
	if l := s.byName["a"].list(); l.Configured {
		t.Error("listed as configured")
	}
	mustClose(t, s)

	a.Retention = unit.Duration(time.Hour)
	cfg.Streams = append(cfg.Streams, a)
	s = mustOpen(t, cfg, Options{Now: clock.now})
	s.clean(t.Context())
	if n := s.byName["a"].kept(); n != 0 {
		t.Errorf("listed again with a short retention it keeps %d records", n)
	}
	if err := s.Worry(); err != nil {
		t.Errorf("worry: %v", err)
	}
}

func TestPartitionsMayGrowAndShrink(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Partitions = 4 }))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 100)
	mustClose(t, s)
	for _, n := range []int{2, 8} {
		cfg.Streams[0].Partitions = n
		s = mustOpen(t, cfg, Options{})
		if got := s.Streams()[0].Partitions; got != max(n, 4) {
			t.Errorf("%d partitions with %d configured", got, n)
		}
		putMany(t, s, 0, 100)
		mustClose(t, s)
	}
}

// With a disk on which no sync works, the journal fails for ever when it had a second file to try, or else has none to
// write to and waits for one. Neither acknowledges anything, and both are unhealthy.
func TestFailedSyncsAcknowledgeNothing(t *testing.T) {
	faults := vfstest.NewFaults(vfs.OS)
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{FS: faults})
	putMany(t, s, 0, 100)
	faults.Add(vfstest.Fault{Kind: vfstest.Datasync, Err: syscall.EIO, Times: -1})
	w := newWaiter()
	if err := s.Append(t.Context(), Entry{Record: testRecord(100), Done: w}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "unhealthy", func() bool { return s.Health() != nil })
	got, _ := readAll(t, s, DefaultStream, 0, 0)
	wantPayloads(t, got, 0, 100)
	if s.failure() == nil {
		select {
		case err := <-w:
			t.Fatalf("durable: %v", err)
		default:
		}
		faults.Clear() // it goes on by itself
		if err := <-w; err != nil {
			t.Fatalf("durable: %v", err)
		}
		return
	}
	if err := <-w; !errors.Is(err, ErrFailed) {
		t.Fatalf("durable: %v", err)
	}
	if err := s.Append(t.Context(), Entry{Record: testRecord(101)}); !errors.Is(err, ErrFailed) {
		t.Errorf("append: %v", err)
	}
	faults.Clear()
	_ = s.Close()
	s = mustOpen(t, cfg, Options{})
	got, _ = readAll(t, s, DefaultStream, 0, 0)
	wantPayloads(t, got[:100], 0, 100)
}

func TestOneFailedSyncIsSurvived(t *testing.T) {
	faults := vfstest.NewFaults(vfs.OS)
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{FS: faults})
	putMany(t, s, 0, 100)
	faults.Add(vfstest.Fault{Kind: vfstest.Datasync, Err: syscall.EIO, N: 1})
	putMany(t, s, 100, 200)
	got, _ := readAll(t, s, DefaultStream, 0, 0)
	wantPayloads(t, got, 0, 200)
	if err := s.Health(); err != nil {
		t.Errorf("health: %v", err)
	}
}

// Records that nobody waits for, such as those of QoS 0, are lost without a word to anybody: the counter has them.
func TestRecordsThatNobodyWaitsForAreCountedWhenTheJournalFails(t *testing.T) {
	faults := vfstest.NewFaults(vfs.OS)
	b := DefaultStreamConfig("b")
	b.Filters = []string{"b/#"}
	s := mustOpen(t, smallConfig(t.TempDir(), b, oneStream(nil)), Options{FS: faults})
	put(t, s, Entry{Record: testRecord(0)})
	// Without another file to try the journal does not fail, it waits for one.
	eventually(t, "the spare files of the journal are there", func() bool { return s.journal.Stats().Created >= uint64(s.cfg.Journal.Files-1) })
	faults.Add(vfstest.Fault{Kind: vfstest.Write, Err: syscall.EIO, Times: -1})
	faults.Add(vfstest.Fault{Kind: vfstest.Datasync, Err: syscall.EIO, Times: -1})
	accepted := map[string]uint64{}
	for i := range 10 {
		r := testRecord(i)
		if i%3 == 0 {
			r.Topic = "b/1"
		}
		if s.Append(t.Context(), Entry{Record: r}) == nil {
			accepted[s.StreamFor(r.Topic)]++
		}
	}
	w := newWaiter()
	if s.Append(t.Context(), Entry{Record: testRecord(10), Done: w}) == nil {
		if err := <-w; err == nil {
			t.Fatal("durable without a sync")
		}
	}
	eventually(t, "all of the queue has ended", func() bool { return s.failure() != nil && s.Stats().QueueBytes == 0 })
	for _, st := range s.Stats().Streams {
		if got := st.Dropped["journal_failed"]; got != accepted[st.Name] {
			t.Errorf("%s: %d counted, %d were accepted", st.Name, got, accepted[st.Name])
		}
	}
	if accepted["b"]+accepted[DefaultStream] == 0 {
		t.Fatal("nothing was accepted")
	}
	faults.Clear()
	_ = s.Close()
}
