package tiering

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
)

// A full disk of the cache is waited for, with a name; it costs no record.
func TestFullCacheDiskIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() { // before the directory goes, after the tier is closed
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, func(r *rig) { r.cfg.CacheDir = filepath.Join(dir, "cache") })
	r.cold(2)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	rd, err := r.tier.NewReader(stream, 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	if b, ok, err := rd.try(t.Context()); ok || !errors.Is(err, ErrNoRoom) || !passes(err) {
		t.Errorf("a reader is told %+v: %v", b, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.all(0)
}

// Each segment gets one Parquet file, once, also when writing it has failed; it goes with its segment.
func TestParquetPolicyWritesOneFileASegment(t *testing.T) {
	calls, failing := 0, true
	r := newRig(t, func(r *rig) {
		r.cfg.Streams[0].Parquet, r.cfg.Streams[0].Retention = true, 10*unit.Hour
		r.parquet = func(_ context.Context, a *spool.Archive, path string) error {
			calls++
			if failing {
				return errors.New("injected")
			}
			return os.WriteFile(path, fmt.Appendf(nil, "segment %d", a.Sequence), 0o640)
		}
	})
	r.segment(500)
	r.segment(500)
	r.round()
	r.round()
	if calls != 2 {
		t.Errorf("%d tries within a moment, want one a segment", calls)
	}
	if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 2 {
		t.Fatalf("%d segments are stored: what Parquet cannot do has held them", len(m.Segments))
	}
	failing, calls = false, 0
	r.restart(nil)
	r.round()
	r.round()
	if calls != 2 {
		t.Errorf("%d files were written, want 2", calls)
	}
	files, _ := filepath.Glob(r.file("parquet", "date=2031-05-01", "*.parquet"))
	if len(files) != 2 {
		t.Fatalf("files: %v", files)
	}
	var parquet int64
	for _, seg := range r.tier.byName[stream].m.Load().Segments {
		entry, err := manifest.ReadEntry(t.Context(), r.faults, stream, seg.Sequence)
		if err != nil || len(entry.Parquet) != 1 || len(seg.Parquet) != 1 {
			t.Fatalf("segment %d: %v, its entry %+v: %v", seg.Sequence, seg.Parquet, entry, err)
		}
		parquet += seg.ParquetBytes
		if b := readFile(t, r.file(filepath.FromSlash(seg.Parquet[0]))); string(b) != fmt.Sprintf("segment %d", seg.Sequence) || seg.ParquetBytes != int64(len(b)) {
			t.Errorf("segment %d has %q", seg.Sequence, b)
		}
	}
	if s := r.tier.Status().Streams[0]; s.ParquetBytes != parquet || parquet == 0 {
		t.Errorf("%d bytes of Parquet, want %d", s.ParquetBytes, parquet)
	}
	r.advance(20 * time.Hour)
	r.round()
	if files, _ = filepath.Glob(r.file("parquet", "*", "*")); len(files) != 0 {
		t.Errorf("segments are gone and files stay: %v", files)
	}
}

// What the manifest does not say yet goes with its segment, and does not come back after it.
func TestRetentionTakesWhatTheManifestDoesNotSayYet(t *testing.T) {
	failing := true
	r := newRig(t, func(r *rig) {
		r.cfg.Streams[0].Parquet, r.cfg.Streams[0].Retention, r.cfg.Streams[0].KeepLocal = true, 10*unit.Hour, 0
		r.parquet = func(_ context.Context, _ *spool.Archive, path string) error {
			if failing {
				return errors.New("injected")
			}
			return os.WriteFile(path, []byte("rows"), 0o640)
		}
	})
	r.segment(500)
	r.segment(500)
	r.round()
	st := r.tier.byName[stream]
	failing, st.size, st.saved = false, 1<<30, time.Now() // as if it were large
	clear(st.tries)
	r.round()
	if len(st.pending.segments) != 2 {
		t.Fatalf("%d wait for the manifest, want 2", len(st.pending.segments))
	}
	r.advance(20 * time.Hour)
	r.round()
	floor := st.m.Load().Floor
	r.flush()
	if m := st.m.Load(); len(m.Segments) != 0 || m.Floor != floor || floor == 0 {
		t.Errorf("%d segments are back, the floor is %d and was %d", len(m.Segments), m.Floor, floor)
	}
	for _, dir := range []string{"seg", "parquet/*"} {
		if files, _ := filepath.Glob(r.file(dir, "*")); len(files) != 0 {
			t.Errorf("segments are gone and files stay: %v", files)
		}
	}
}

func TestCostOfWhatGrows(t *testing.T) {
	const gb = 1_000_000_000
	days := func(p *float64) float64 {
		if p == nil {
			return math.Inf(1)
		}
		return *p
	}
	day := func(gbs float64) *float64 { gbs *= gb; return &gbs }
	never := math.Inf(1)
	const month, twoYears = 30 * 24 * time.Hour, 730 * 24 * time.Hour
	for _, c := range []struct {
		what                              string
		o                                 outlook
		now, fullIn, final, costFinal, in float64
	}{
		{"not known yet", outlook{cold: 10 * gb, sharedFree: gb, limit: 5 * gb, retention: month}, 0.2, never, never, never, 0.2},
		{"nothing comes", outlook{growth: day(0), sharedFree: 10 * gb}, 0, never, 0, 0, 0},
		{"nothing comes any more", outlook{growth: day(0), cold: 10 * gb, sharedFree: 10 * gb}, 0.2, never, 10 * gb, 0.2, 0.2},
		{"nothing comes, below a limit", outlook{growth: day(0), cold: 10 * gb, limit: 50 * gb}, 0.2, never, 10 * gb, 0.2, 0.2},
		{"nothing comes, and what is there goes", outlook{growth: day(0), cold: 10 * gb, retention: month}, 0.2, never, 0, 0, 0},
		{"for ever", outlook{growth: day(1), cold: 10 * gb, sharedFree: 5 * gb, ownFree: -1}, 0.2, 5, never, never, 7.5},
		{"beside others", outlook{growth: day(1), all: 5 * gb, cold: 10 * gb, sharedFree: 5 * gb, ownFree: -1}, 0.2, 1, never, never, 7.5},
		{"its own limit first", outlook{growth: day(1), all: 5 * gb, cold: 10 * gb, sharedFree: 50 * gb, ownFree: 2 * gb}, 0.2, 2, never, never, 7.5},
		{"the limit of all first", outlook{growth: day(1), all: 5 * gb, cold: 10 * gb, sharedFree: 5 * gb, ownFree: 2 * gb}, 0.2, 1, never, never, 7.5},
		{"no room at all", outlook{growth: day(1), sharedFree: 0, ownFree: -1}, 0, 0, never, never, 7.3},
		{"of a store alone", outlook{growth: day(1), sharedFree: -1, ownFree: -1}, 0, never, never, never, 7.3},
		{"a month", outlook{growth: day(1), cold: 10 * gb, sharedFree: 5 * gb, ownFree: -1, retention: month}, 0.2, 5, 30 * gb, 0.6, 0.6},
		{"a size below that", outlook{growth: day(1), cold: 10 * gb, sharedFree: 5 * gb, ownFree: -1, retention: month, limit: 20 * gb}, 0.2, 5, 20 * gb, 0.4, 0.4},
		{"two years", outlook{growth: day(1), cold: 10 * gb, sharedFree: 5 * gb, ownFree: -1, retention: twoYears}, 0.2, 5, 730 * gb, 14.6, 7.5},
		{"it shrinks", outlook{growth: day(1), cold: 100 * gb, sharedFree: gb, ownFree: -1, retention: month / 3}, 2, 1, 10 * gb, 0.2, 0.2},
		{"above a limit that is new", outlook{growth: day(0.01), cold: 100 * gb, sharedFree: gb, ownFree: -1, limit: 20 * gb}, 2, 100, 20 * gb, 0.4, 0.4},
		{"with Parquet as large", outlook{growth: day(1), cold: 10 * gb, parquet: 10 * gb, sharedFree: 5 * gb, ownFree: -1, retention: month}, 0.4, 5, 30 * gb, 1.2, 1.2},
	} {
		c.o.price = 0.02
		got := c.o.cost()
		for _, v := range []struct {
			name      string
			got, want float64
		}{
			{"cost now", got.CostNow, c.now},
			{"full in", days(got.LocalFullIn), c.fullIn},
			{"final bytes", days(got.ColdFinal), c.final},
			{"final cost", days(got.CostFinal), c.costFinal},
			{"cost in one year", got.CostInOneYear, c.in},
		} {
			if v.got != v.want && math.Abs(v.got-v.want) > 1e-9*math.Abs(v.want) {
				t.Errorf("%s: %s is %v, want %v", c.what, v.name, v.got, v.want)
			}
		}
		if got.GrowthKnown != (c.o.growth != nil) {
			t.Errorf("%s: growth is known: %v", c.what, got.GrowthKnown)
		}
	}
}

// A stream that has been there for minutes is not taken for one that goes on like that; one that was silent for days has not grown by what
// came just now alone.
func TestGrowthIsOfTheTimeThatWasLookedAt(t *testing.T) {
	r := newRig(t, nil)
	of := func() Cost {
		r.round()
		return r.tier.Status().Streams[0].Cost
	}
	r.segment(500)
	if c := of(); c.GrowthKnown || c.BytesPerDay != 0 || c.LocalFullIn != nil {
		t.Errorf("after a minute: %+v", c)
	}
	r.advance(2 * time.Hour)
	first := of()
	if !first.GrowthKnown || first.BytesPerDay == 0 || first.LocalFullIn == nil {
		t.Errorf("after two hours: %+v", first)
	}
	r.advance(5 * 24 * time.Hour)
	r.segment(500)
	if c := of(); c.BytesPerDay > first.BytesPerDay/20 {
		t.Errorf("after five silent days it grows by %.0f a day, on the first by %.0f", c.BytesPerDay, first.BytesPerDay)
	}
	r.advance(30 * 24 * time.Hour)
	if c := of(); !c.GrowthKnown || c.BytesPerDay != 0 || c.LocalFullIn != nil {
		t.Errorf("after a silent month: %+v", c)
	}
}

func TestStatusCountsWhatIsStoredAndGrows(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.PricePerGBMonth = 1000 })
	for range 4 {
		r.segment(500)
		r.advance(6*time.Hour - time.Minute)
	}
	r.round()
	s := r.tier.Status().Streams[0]
	var bytes int64
	files, _ := filepath.Glob(r.file("seg", "*.db.*"))
	for _, f := range files {
		fi, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		bytes += fi.Size()
	}
	if s.ColdBytes != bytes || s.ColdSegments != 4 || s.ColdRecords != 2000 || s.ColdObjects < len(files) {
		t.Errorf("%d bytes in %d files: %+v", bytes, len(files), s)
	}
	if ratio := s.BytesPerDay / float64(bytes); ratio < 0.95 || ratio > 1.05 { // four segments in a day
		t.Errorf("it grows by %.0f a day, and %d were made in one", s.BytesPerDay, bytes)
	}
	if want := float64(bytes) / 1e9 * 1000; math.Abs(s.CostNow-want) > 1e-9 {
		t.Errorf("cost %v, want %v", s.CostNow, want)
	}
}

// All that use a limiter together get its rate, and a cancelled one does not wait.
func TestBandwidthLimitHoldsOverAllWhoUseIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1 << 20)
		began := time.Now()
		ended := make(chan error)
		for range 4 {
			go func() {
				b := make([]byte, 32<<10)
				src := l.reader(t.Context(), strings.NewReader(strings.Repeat("x", 1<<20)))
				var err error
				for err == nil {
					_, err = src.Read(b)
				}
				ended <- err
			}()
		}
		for range 4 {
			if err := <-ended; err.Error() != "EOF" {
				t.Error(err)
			}
		}
		if took := time.Since(began); took < 3900*time.Millisecond || took > 4100*time.Millisecond {
			t.Errorf("4 MiB at 1 MiB/s took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		_ = l.wait(ctx, 10<<20)
		if err := l.wait(ctx, 1); !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
			t.Errorf("a cancelled one waited %v: %v", time.Since(began), err)
		}
	})
}

func TestPausesOfTheDay(t *testing.T) {
	for _, c := range []struct {
		pause, at string
		want      bool
	}{
		{"07:30-18:00", "07:29", false},
		{"07:30-18:00", "07:30", true},
		{"07:30-18:00", "17:59", true},
		{"07:30-18:00", "18:00", false},
		{"22:00-06:00", "21:59", false},
		{"22:00-06:00", "22:00", true},
		{"22:00-06:00", "00:00", true},
		{"22:00-06:00", "05:59", true},
		{"22:00-06:00", "06:00", false},
	} {
		p, err := parsePause(c.pause)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse("15:04", c.at)
		if err != nil {
			t.Fatal(err)
		}
		if p.has(at) != c.want {
			t.Errorf("%s at %s: %v", c.pause, c.at, !c.want)
		}
	}
	for _, bad := range []string{"", "07:30", "07:30-07:30", "25:00-26:00", "7-8"} {
		if _, err := parsePause(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
