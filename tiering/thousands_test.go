package tiering

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// Many small segments: what is done once a segment does not grow with how many there are. FOREBAY_CRASH=long has 5,000 of them, and
// FOREBAY_TEST_SEGMENTS=10000 that many; with -v it prints what each step takes.
func TestThousandsOfSegments(t *testing.T) {
	count := 40
	if os.Getenv("FOREBAY_CRASH") == "long" {
		count = 5000
		if n, err := strconv.Atoi(os.Getenv("FOREBAY_TEST_SEGMENTS")); err == nil {
			count = n
		}
	}
	r := newRig(t, func(r *rig) {
		r.quiet = true
		r.scfg.MaxSize, r.scfg.MinFree = 100<<30, 1<<20
		r.scfg.Streams[0].Retention = 100_000 * unit.Hour // only keep_local removes
		r.cfg.PartSize, r.cfg.CacheSize = 8<<20, 256<<20
		r.cfg.Streams[0].KeepLocal = 1000 * unit.Hour
	})
	step := stepTimer(t)
	for range count {
		r.tiny(30)
	}
	step("made")
	r.round()
	r.flush()
	m := r.tier.byName[stream].m.Load()
	if len(m.Segments) != count {
		t.Fatalf("%d segments are stored, want %d", len(m.Segments), count)
	}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	step("uploaded")
	t.Logf("manifest %d bytes, generation %d", len(b), m.Generation)
	r.tier.Status()
	step("status")
	r.round()
	step("round with nothing to do")
	r.tiny(30)
	r.round()
	r.flush()
	step("round with one more")
	if n := len(r.tier.byName[stream].m.Load().Segments); n != count+1 {
		t.Fatalf("%d segments, want %d", n, count+1)
	}
	r.restart(nil)
	step("restart")
	r.round()
	step("first round")
	r.advance(2000 * time.Hour)
	r.round()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		t.Fatalf("%d segments are still local", len(list))
	}
	step("local copies removed")
	seg := r.tier.byName[stream].m.Load().Segments[count/2]
	got, _ := r.dump(spool.DumpQuery{Partition: -1, Since: seg.MinTime, Until: seg.MaxTime.Add(time.Nanosecond)})
	if len(got) != 30 {
		t.Errorf("%d records in the time of one segment, want 30", len(got))
	}
	step("a time range of one segment")
	if n := r.tier.cache.misses.Load(); n > 1 {
		t.Errorf("%d segments were fetched for the time of one", n)
	}
	if count < cacheOpen {
		r.tier.cache.open = 16
	}
	began := time.Now()
	if n := r.count(); n != r.n {
		t.Errorf("%d records, want %d", n, r.n)
	}
	if n := len(r.tier.cache.entries); n > r.tier.cache.open {
		t.Errorf("%d files are open in the cache, want at most %d", n, r.tier.cache.open)
	}
	step("all read from the store")
	t.Logf("%.0f segments a second", float64(count)/time.Since(began).Seconds())
	for _, name := range []string{"manifest", "seg"} {
		n := 0
		_ = filepath.WalkDir(r.file(name), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		})
		t.Logf("%s: %d objects", name, n)
	}
}

// A large manifest is not written for every segment, and what it does not say yet is neither sent again nor lost.
func TestLargeManifestIsNotWrittenForEachSegment(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Streams[0].KeepLocal = 0 })
	r.tiny(30)
	r.round()
	st := r.tier.byName[stream]
	before := st.m.Load().Generation
	st.size = 1 << 30 // as if it were
	for range 4 {
		r.tiny(30)
		r.round()
	}
	if m := st.m.Load(); m.Generation != before || len(m.Segments) != 1 || len(st.pending.segments) != 4 {
		t.Fatalf("generation %d with %d segments, %d wait", m.Generation, len(m.Segments), len(st.pending.segments))
	}
	if n := r.faults.Puts(".db.0000"); n != 5 {
		t.Errorf("%d parts were sent, want 5", n)
	}
	if behind := r.tier.Status().Streams[0].BehindSegments; behind != 4 {
		t.Errorf("%d are behind, want the 4 that the manifest does not say", behind)
	}
	if list, _ := r.s.Sealed(stream); r.tier.Keep(list[4].ID()) == spool.KeepNot {
		t.Error("a segment that the manifest does not say may go")
	}
	st.saved = time.Now().Add(-saveLatest)
	r.round()
	if m := st.m.Load(); m.Generation != before+1 || len(m.Segments) != 5 || st.uploaded.Load() != 5 {
		t.Errorf("generation %d with %d segments, %d are counted", m.Generation, len(m.Segments), st.uploaded.Load())
	}

	st.size, st.saved = 1<<30, time.Now()
	r.tiny(30)
	r.round()
	r.restart(nil) // with one that no manifest says
	r.round()
	if m := r.tier.byName[stream].m.Load(); len(m.Segments) != 6 {
		t.Errorf("%d segments after a restart, want 6", len(m.Segments))
	}
	if n := r.faults.Puts(".db.0000"); n != 0 {
		t.Errorf("%d parts were sent again after the restart", n)
	}
}

// flush has the manifest say what is stored.
func (r *rig) flush() {
	r.t.Helper()
	st := r.tier.byName[stream]
	st.saved = time.Time{}
	if err := r.tier.flush(r.t.Context(), st, true); err != nil {
		r.t.Fatal(err)
	}
}

// tiny makes a segment of n records of as many topics.
func (r *rig) tiny(n int) {
	r.t.Helper()
	done := make(durable, n)
	for i := range n {
		rec := &spool.Record{Topic: fmt.Sprintf("site/7/hall/%d/machine/%d/temperature", r.n%900, i), ClientID: "device", QoS: 1, Payload: fmt.Append(nil, r.n)}
		if err := r.s.Append(r.t.Context(), spool.Entry{Record: rec, Done: done}); err != nil {
			r.t.Fatal(err)
		}
		r.n++
	}
	for range n {
		if err := <-done; err != nil {
			r.t.Fatal(err)
		}
	}
	r.seal()
}

// count reads both partitions, and is how many records there are.
func (r *rig) count() (n int) {
	r.t.Helper()
	for p := range 2 {
		_, end := r.s.Bounds(stream, p)
		rd, err := r.tier.NewReader(stream, p, 0, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		for rd.Offset() < end {
			b, err := rd.Next(r.t.Context())
			if err != nil {
				r.t.Fatal(err)
			}
			n += len(b.Records)
		}
		rd.Close()
	}
	return n
}

// stepTimer logs what each step takes, of time, memory and descriptors.
func stepTimer(t *testing.T) func(string) {
	at := time.Now()
	return func(name string) {
		took := time.Since(at)
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		fds, _ := os.ReadDir("/proc/self/fd")
		t.Logf("%-30s %8.2f s, heap %4d MiB in use, %5d MiB allocated in all, %d descriptors", name, took.Seconds(), ms.HeapInuse>>20, ms.TotalAlloc>>20, len(fds))
		at = time.Now()
	}
}
