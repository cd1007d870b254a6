package tiering

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// rig is a spool with a tier on a directory, and faults in between. The test runs the rounds.
type rig struct {
	t       testing.TB
	dir     string
	clock   atomic.Int64
	scfg    spool.Config
	cfg     Config
	s       *spool.Spool
	tier    *Tier
	faults  *storetest.Faulty
	url     string // of the store; "" is a directory
	options store.Options
	n       int
	quiet   bool            // no log
	inPlace bool            // segments are read where the store has them, as of a directory; else they are fetched
	asked   chan spool.Keep // what the spool was told when it asked whether a segment may go; nil: nobody listens
	parquet func(ctx context.Context, a *spool.Archive, path string) error
	mono    func() time.Duration // of the spool, where the wall clock steps
}

const stream = "default"

func newRig(t testing.TB, edit func(*rig)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	r.clock.Store(time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	sc := spool.DefaultStreamConfig(stream)
	sc.Partitions = 2
	r.scfg = spooltest.Config(filepath.Join(r.dir, "spool"), sc)
	r.cfg = DefaultConfig()
	r.cfg.URL = "file://" + filepath.Join(r.dir, "cold")
	r.cfg.CacheDir = filepath.Join(r.dir, "cache")
	r.cfg.PartSize = 16 << 10 // several parts; below what Validate takes
	r.cfg.Streams = []StreamConfig{{Name: stream, KeepLocal: unit.Hour}}
	if edit != nil {
		edit(r)
	}
	r.open()
	return r
}

func (r *rig) now() time.Time          { return time.Unix(0, r.clock.Load()) }
func (r *rig) advance(d time.Duration) { r.clock.Add(int64(d)) }

// open starts spool and tier, as the gateway does.
func (r *rig) open() {
	r.t.Helper()
	keys, err := spool.LoadKeys(r.scfg.Encryption)
	if err != nil {
		r.t.Fatal(err)
	}
	cold, err := r.store()
	if err != nil {
		r.t.Fatal(err)
	}
	r.faults = storetest.NewFaulty(cold)
	r.faults.InPlace = r.inPlace
	log := slog.New(slog.NewTextHandler(testWriter{r.t}, nil))
	if r.quiet {
		log = slog.New(slog.DiscardHandler)
	}
	r.tier, err = New(r.t.Context(), r.cfg, Options{Dir: filepath.Join(r.dir, "tier"), GatewayID: "edge-1", Keys: keys, Store: r.faults, Logger: log, Parquet: r.parquet})
	if err != nil {
		r.t.Fatal(err)
	}
	r.s, err = spool.Open(r.scfg, spool.Options{Now: r.now, Monotonic: r.mono, Keep: r.keep(r.tier), Logger: log})
	if err != nil {
		r.t.Fatal(err)
	}
	r.tier.Attach(r.s)
	tier, s := r.tier, r.s
	r.t.Cleanup(func() { r.close(tier, s) })
}

// store is the directory, made, or what url says.
func (r *rig) store() (store.Store, error) {
	if r.url != "" {
		return store.Open(r.t.Context(), r.url, r.options)
	}
	return store.OpenDir(filepath.Join(r.dir, "cold"))
}

// keep is the tier's, and tells the test of it.
func (r *rig) keep(tier *Tier) func(spool.SegmentID) spool.Keep {
	return func(id spool.SegmentID) spool.Keep {
		k := tier.Keep(id)
		select {
		case r.asked <- k: // a nil channel is never ready
		default:
		}
		return k
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil { // not after the test
		w.t.Log(string(p))
	}
	return len(p), nil
}

func (r *rig) close(tier *Tier, s *spool.Spool) {
	if err := tier.Close(context.Background()); err != nil {
		r.t.Error(err)
	}
	if err := s.Close(); err != nil {
		r.t.Error(err)
	}
}

// restart is a stop and a start. edit may do something in between.
func (r *rig) restart(edit func()) {
	r.close(r.tier, r.s)
	if edit != nil {
		edit()
	}
	r.open()
}

type durable chan error

func (d durable) Durable(_ *spool.Record, err error) { d <- err }

func record(i int) *spool.Record {
	sum := sha256.Sum256(fmt.Append(nil, i)) // does not compress
	return &spool.Record{
		Topic: fmt.Sprintf("plant/%d/temp", i/500), ClientID: fmt.Sprintf("device-%d", i%5), QoS: 1,
		Payload: fmt.Appendf(nil, "%d %s", i, hex.EncodeToString(sum[:])),
	}
}

// segment appends n records and seals what is written.
func (r *rig) segment(n int) {
	r.t.Helper()
	done := make(durable, n)
	for range n {
		if err := r.s.Append(r.t.Context(), spool.Entry{Record: record(r.n), Done: done}); err != nil {
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

func (r *rig) seal() {
	r.t.Helper()
	snap, err := r.s.Snapshot(r.t.Context(), filepath.Join(r.t.TempDir(), "meta.db"))
	if err != nil {
		r.t.Fatal(err)
	}
	snap.Release()
	r.advance(time.Minute)
}

func (r *rig) round() {
	r.t.Helper()
	if err := r.tier.Round(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// cold makes segments of 500 records, stores them all and removes the local copies of all.
func (r *rig) cold(segments int) {
	r.t.Helper()
	for range segments {
		r.segment(500)
	}
	r.round()
	r.advance(2 * time.Hour)
	r.round()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		r.t.Fatalf("%d segments are still local", len(list))
	}
}

// all reads both partitions from the start and wants every record, once, in order.
func (r *rig) all(wantGaps int) {
	r.t.Helper()
	seen, gaps := map[string]bool{}, 0
	for p := range 2 {
		_, end := r.s.Bounds(stream, p)
		rd, err := r.tier.NewReader(stream, p, 0, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		next := spool.Offset(0)
		for next < end {
			ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
			b, err := rd.Next(ctx)
			cancel()
			if err != nil {
				r.t.Fatalf("partition %d at %d of %d: %v", p, next, end, err)
			}
			if b.Gap != nil {
				gaps++
				r.t.Logf("gap %+v", *b.Gap)
				next = b.Gap.To
			}
			if b.First != next {
				r.t.Fatalf("partition %d: a batch begins at %d, want %d", p, b.First, next)
			}
			for i := range b.Records {
				if rec := &b.Records[i]; rec.Offset < b.First || rec.Offset >= b.Next || seen[string(rec.Payload)] {
					r.t.Fatalf("partition %d: record %d of a batch %d..%d, again %v", p, rec.Offset, b.First, b.Next, seen[string(rec.Payload)])
				}
				seen[string(b.Records[i].Payload)] = true
			}
			next = b.Next
		}
		rd.Close()
	}
	if gaps != wantGaps {
		r.t.Errorf("%d gaps, want %d", gaps, wantGaps)
	}
	if wantGaps > 0 {
		return
	}
	for i := range r.n {
		if !seen[string(record(i).Payload)] {
			r.t.Fatalf("record %d is missing; %d of %d are there", i, len(seen), r.n)
		}
	}
	if len(seen) != r.n {
		r.t.Errorf("%d records, want %d", len(seen), r.n)
	}
}

// dump is the payloads that a query finds, in store and spool.
func (r *rig) dump(q spool.DumpQuery) (payloads map[string]bool, gaps int) {
	r.t.Helper()
	payloads = map[string]bool{}
	q.Stream = stream
	if _, err := r.tier.Dump(r.t.Context(), q, func(i spool.DumpItem) error {
		if i.Record == nil {
			gaps++
			return nil
		}
		if payloads[string(i.Record.Payload)] {
			r.t.Errorf("%q comes twice", i.Record.Payload)
		}
		payloads[string(i.Record.Payload)] = true
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return payloads, gaps
}

func (r *rig) file(elem ...string) string {
	return filepath.Join(append([]string{r.dir, "cold", stream}, elem...)...)
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

var _ io.Writer = testWriter{}
