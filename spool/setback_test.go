package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool/segment"
)

// damagedSegment is a closed spool of 1001 records in one sealed segment, one batch of which is damaged.
func damagedSegment(t *testing.T) (cfg Config, path string) {
	cfg = smallConfig(t.TempDir(), oneStream(nil))
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	for i := range 1000 {
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
	return cfg, files[0]
}

// A full disk, or a process without a descriptor left, must not cost what can still be read.
func TestDamagedSegmentWaitsUntilItCanBeSaved(t *testing.T) {
	cfg, path := damagedSegment(t)
	inTheWay := path + ".rewrite.tmp"
	if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o750); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg, Options{})
	s.cleanMu.Lock()
	err := s.quarantineSegment(t.Context(), s.streams[0].segments()[0])
	s.cleanMu.Unlock()
	if err == nil || len(s.streams[0].segments()) != 1 {
		t.Fatal("given up")
	}
	s.clean(t.Context())
	r, err := s.NewReader(DefaultStream, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for err == nil { // what can be read comes first
		_, _, err = r.TryNext()
	}
	if !errors.Is(err, ErrRepairing) {
		t.Fatalf("reader of a segment that cannot be replaced: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("next: %v", err)
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	if b, err := r.Next(t.Context()); err != nil || b.First == b.Next && b.Gap == nil {
		t.Fatalf("next once there is room: %+v, %v", b, err)
	}
	got, lost := wantAccounts(t, s, 1001)
	if lost > 200 || len(quarantined(t, cfg)) != 1 {
		t.Errorf("%d records, %d lost, quarantine %v", len(got), lost, quarantined(t, cfg))
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{})
	if got, _ := readAll(t, s, DefaultStream, 0, 0); len(got) != 1001-lost {
		t.Errorf("%d records", len(got))
	}
}

func TestLargerSegmentOfAnEarlierConfigurationIsSaved(t *testing.T) {
	cfg, _ := damagedSegment(t)
	cfg.MaxSize, cfg.Segment.MaxSize = 1<<30, 1<<20
	s := mustOpen(t, cfg, Options{})
	if _, lost := wantAccounts(t, s, 1001); lost > 200 {
		t.Errorf("%d lost", lost)
	}
}

func TestSegmentThatFailedIsCopiedAndSealed(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 100)
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	f := s.streams[0].active()
	// What writeBatches does when a write has failed: no later one can succeed, sealing neither.
	f.bad.Store(true)
	s.roll(f)
	putMany(t, s, 100, 200)
	rollAll(t, s)
	forgetTail(s)
	got, _ := wantAccounts(t, s, 200)
	wantPayloads(t, got, 0, 200)
	for _, f := range s.streams[0].segments() {
		if !f.sealed.Load() || f.bad.Load() {
			t.Errorf("%s sealed: %v, bad: %v", f.path, f.sealed.Load(), f.bad.Load())
		}
	}
}

func TestReadersGoOnWhenASealedSegmentCannotBeOpened(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	putMany(t, s, 0, 100)
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	f := s.streams[0].active()
	if err := os.Rename(f.path, f.path+".away"); err != nil {
		t.Fatal(err)
	}
	s.rollForRoom(s.streams[0])
	s.clean(t.Context())
	if err := os.Rename(f.path+".away", f.path); err != nil {
		t.Fatal(err)
	}
	s.clean(t.Context())
	forgetTail(s)
	got, _ := wantAccounts(t, s, 100)
	wantPayloads(t, got, 0, 100)

	// A rewrite whose result cannot be opened leaves the segment as it was.
	f = s.streams[0].segments()[0]
	junk := f.path + ".rewrite"
	if err := os.WriteFile(junk, []byte("junk"), 0o640); err != nil {
		t.Fatal(err)
	}
	copyFile(t, f.path, f.path+".good")
	s.cleanMu.Lock()
	err := s.replaceFile(f, junk)
	s.cleanMu.Unlock()
	if err == nil {
		t.Fatal("junk was taken")
	}
	got, _ = wantAccounts(t, s, 100)
	wantPayloads(t, got, 0, 100)
	if err := os.Rename(f.path+".good", f.path); err != nil {
		t.Fatal(err)
	}
}

func TestRewriteDoesNotBeginRetentionAnew(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Retention = unit.Duration(10 * time.Hour) }))
	cfg.Segment.MaxSize = 4 << 20
	cfg.Segment.Codec = "none"
	clock := newFakeClock()
	s := mustOpen(t, cfg, Options{Now: clock.now})
	for i := range 1500 {
		r := testRecord(i)
		r.Payload = make([]byte, 1000)
		if i%10 != 0 {
			r.ExpiresAt = s.clock.now() + int64(time.Hour)
		}
		if err := s.Append(t.Context(), Entry{Record: r}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, Entry{Record: testRecord(1500)})
	rollAll(t, s)
	clock.advance(9 * time.Hour)
	s.clean(t.Context())
	clock.advance(2 * time.Hour)
	s.clean(t.Context())
	if n := s.Stats().Streams[0].Segments; n != 0 {
		t.Errorf("%d segments after their time", n)
	}
}

// Files that do not belong where they lie would put offsets out of order.
func TestMisplacedSegmentIsSetAside(t *testing.T) {
	name := func(files []string, seq uint64) string {
		return filepath.Join(filepath.Dir(files[0]), segmentName(seq))
	}
	for what, c := range map[string]struct {
		do          func(t *testing.T, files []string)
		lost, aside int
	}{
		"a second name": {func(t *testing.T, files []string) { copyFile(t, files[0], name(files, 9)) }, 0, 1},
		"swapped": {func(t *testing.T, files []string) {
			if err := errors.Join(os.Rename(files[0], files[0]+"x"), os.Rename(files[2], files[0]), os.Rename(files[0]+"x", files[2])); err != nil {
				t.Fatal(err)
			}
		}, 200, 2},
		"of another stream": {func(t *testing.T, files []string) {
			seg, err := segment.Create(name(files, 9), segment.Options{Stream: "other", Sequence: 9})
			if err == nil {
				err = errors.Join(seg.Write(1, []segment.Batch{{Base: 0, Next: 5000}}), seg.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}, 0, 1},
		"a directory": {func(t *testing.T, files []string) {
			if err := errors.Join(os.Remove(files[1]), os.Mkdir(files[1], 0o750)); err != nil {
				t.Fatal(err)
			}
		}, 100, 1},
	} {
		t.Run(what, func(t *testing.T) {
			cfg, files := threeSegments(t)
			c.do(t, files)
			s := mustOpen(t, cfg, Options{})
			if _, lost := wantAccounts(t, s, 400); lost != c.lost || len(quarantined(t, cfg)) != c.aside {
				t.Errorf("%d lost, quarantine %v", lost, quarantined(t, cfg))
			}
			putMany(t, s, 400, 500)
			rollAll(t, s)
			forgetTail(s)
			wantAccounts(t, s, 500)
		})
	}
}

func TestMissingMetaIsToldAndRebuilt(t *testing.T) {
	for _, empty := range []bool{false, true} {
		cfg, _ := threeSegments(t)
		path := filepath.Join(cfg.Dir, "meta.db")
		err := os.Remove(path)
		if empty && err == nil {
			err = os.WriteFile(path, nil, 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
		log, logger := logTo(t)
		s := mustOpen(t, cfg, Options{Logger: logger})
		got, _ := wantAccounts(t, s, 400)
		wantPayloads(t, got, 0, 400)
		if !log.contains("meta.db is missing") {
			t.Error("nothing was said")
		}
		mustClose(t, s)
	}
}

func TestWhatWasLostBeforeIsNotCountedAgain(t *testing.T) {
	cfg, path := damagedSegment(t)
	s := mustOpen(t, cfg, Options{})
	_, first := wantAccounts(t, s, 1001)
	mustClose(t, s)
	flip(t, path, []byte("value 900 "))
	s = mustOpen(t, cfg, Options{})
	_, gaps := readAll(t, s, DefaultStream, 0, 0)
	lost := 0
	for _, g := range gaps {
		lost += int(g.To - g.From)
	}
	if n := s.Stats().Streams[0].Dropped["damaged"]; lost <= first || int(n) != lost-first {
		t.Errorf("%d lost, %d before, %d counted", lost, first, n)
	}
}
