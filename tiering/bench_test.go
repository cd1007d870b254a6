package tiering

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
)

// benchRig has 64 MiB of records in sealed segments, in a store as it is by default.
func benchRig(b *testing.B, payload func(rng *rand.Rand) []byte) (r *rig, records int) {
	b.Helper()
	r = newRig(b, func(r *rig) {
		d := DefaultConfig()
		r.cfg.PartSize, r.cfg.CacheSize = d.PartSize, d.CacheSize
		r.scfg.Segment.MaxSize = 16 << 20
		r.scfg.Segment.Codec = "zstd"
		r.quiet, r.inPlace = true, true
	})
	r.round() // the owner marker and the manifest are there: they are of a start, not of an upload
	rng := rand.New(rand.NewPCG(1, 2))
	for range 16 {
		records += r.big(4<<20, rng, payload)
	}
	r.seal()
	return r, records
}

// noise is 1 KiB that does not compress.
func noise(rng *rand.Rand) []byte {
	b := make([]byte, 0, 1<<10)
	for len(b) < cap(b) {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b
}

// telemetry is what a machine says every second, 200 B of JSON.
func telemetry(rng *rand.Rand) []byte {
	return fmt.Appendf(nil, `{"ts":%d,"machine":"press-%02d","motor":{"speed":%.2f,"current":%.3f,"temperature":%.1f},"pressure":%.3f,"state":"%s","cycle":%d,"quality":{"ok":%v,"deviation":%.5f}}`,
		1_924_000_000_000+rng.Int64N(1e9), rng.IntN(40), 1400+50*rng.Float64(), 11+rng.Float64(), 60+5*rng.Float64(), 6+rng.Float64()/10,
		[]string{"running", "idle", "setup"}[rng.IntN(3)], rng.IntN(1e6), rng.IntN(20) > 0, rng.Float64()/100)
}

// big appends records with size bytes of payload in all.
func (r *rig) big(size int, rng *rand.Rand, payload func(*rand.Rand) []byte) (n int) {
	r.t.Helper()
	var all [][]byte
	for size > 0 {
		p := payload(rng)
		all, size = append(all, p), size-len(p)
	}
	done := make(durable, len(all))
	for _, payload := range all {
		if err := r.s.Append(r.t.Context(), spool.Entry{Record: &spool.Record{Topic: "plant/1", ClientID: "device", QoS: 1, Payload: payload}, Done: done}); err != nil {
			r.t.Fatal(err)
		}
	}
	for range all {
		if err := <-done; err != nil {
			r.t.Fatal(err)
		}
	}
	r.n += len(all)
	return len(all)
}

// replay reads all of both partitions and says how long that took.
func (r *rig) replay(want int) time.Duration {
	r.t.Helper()
	began, n := time.Now(), 0
	for p := range 2 {
		_, end := r.s.Bounds(stream, p)
		rd, err := r.tier.NewReader(stream, p, 0, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		for rd.Offset() < end {
			batch, err := rd.Next(r.t.Context())
			if err != nil {
				r.t.Fatal(err)
			}
			n += len(batch.Records)
		}
		rd.Close()
	}
	if n != want {
		r.t.Fatalf("%d records, want %d", n, want)
	}
	return time.Since(began)
}

// BenchmarkTier prints what a directory as the store costs beside what it is measured against: target cold replay 0.7, upload 0.8.
func BenchmarkTier(b *testing.B) {
	b.Run("noise", func(b *testing.B) { benchTier(b, noise) })
	b.Run("telemetry", func(b *testing.B) { benchTier(b, telemetry) })
}

func benchTier(b *testing.B, payload func(*rand.Rand) []byte) {
	for b.Loop() {
		r, n := benchRig(b, payload)
		list, err := r.s.Sealed(stream)
		if err != nil {
			b.Fatal(err)
		}
		local := min(r.replay(n), r.replay(n))
		var bytes int64
		began := time.Now()
		for _, se := range list {
			bytes += se.Bytes
			copySynced(b, spool.SegmentFile(r.scfg.Dir, stream, se.Sequence), filepath.Join(r.dir, fmt.Sprint("copy-", se.Sequence)))
		}
		plain := time.Since(began)
		time.Sleep(2 * yieldFor) // records came until just now: nobody waits for an acknowledgement any more
		began = time.Now()
		r.round()
		upload := time.Since(began)
		r.advance(2 * time.Hour)
		r.round()
		if list, _ := r.s.Sealed(stream); len(list) != 0 {
			b.Fatalf("%d segments are local", len(list))
		}
		first := r.replay(n) // fetched
		again := r.replay(n) // from the cache
		mb := float64(bytes) / 1e6
		for name, d := range map[string]time.Duration{"local": local, "plain-copy": plain, "upload": upload, "cold": first, "cached": again} {
			b.ReportMetric(mb/d.Seconds(), name+"-MB/s")
		}
		b.ReportMetric(local.Seconds()/first.Seconds(), "cold/local")
		b.ReportMetric(plain.Seconds()/upload.Seconds(), "upload/copy")
	}
}

// copySynced copies a file as cp does and syncs it.
func copySynced(b *testing.B, from, to string) {
	b.Helper()
	src, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Sync(), dst.Close()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkTierAcknowledgement prints the p99 of an acknowledgement without and with uploads, medians of turns: target 1.2.
func BenchmarkTierAcknowledgement(b *testing.B) {
	const turns, turn = 7, 2 * time.Second
	for b.Loop() {
		r, _ := benchRig(b, noise)
		r.cfg.Streams[0].KeepLocal = unit.Hour
		var without, with []time.Duration
		var uploads int64
		for range turns {
			without = append(without, r.p99(turn))
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for ctx.Err() == nil { // all again and again
					if err := os.RemoveAll(r.file("seg")); err != nil {
						b.Error(err)
					}
					st := r.tier.byName[stream]
					_ = r.tier.uploadEach(ctx, st, r.tier.count(st), func(*manifest.Segment) error { return nil }) // the last one breaks off
					if ctx.Err() == nil {
						uploads += r.written("seg")
					}
				}
			}()
			with = append(with, r.p99(turn))
			last := r.written("seg")
			cancel()
			<-ended
			uploads += last
		}
		b.ReportMetric(float64(uploads)/1e6/turns/turn.Seconds(), "upload-MB/s")
		b.ReportMetric(median(without).Seconds()*1e3, "p99-without-ms")
		b.ReportMetric(median(with).Seconds()*1e3, "p99-with-ms")
		b.ReportMetric(median(with).Seconds()/median(without).Seconds(), "with/without")
	}
}

// written is the size of the files in a directory of the store, those that are not whole with them.
func (r *rig) written(dir string) (n int64) {
	_ = filepath.WalkDir(r.file(dir), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if fi, err := e.Info(); err == nil {
				n += fi.Size()
			}
		}
		return nil
	})
	return n
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// p99 is that of acknowledgements at 500 messages a second.
func (r *rig) p99(d time.Duration) time.Duration {
	r.t.Helper()
	var took []time.Duration
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < d; <-tick.C {
		done, at := make(durable, 1), time.Now()
		if err := r.s.Append(r.t.Context(), spool.Entry{Record: record(len(took)), Done: done}); err != nil {
			r.t.Fatal(err)
		}
		if err := <-done; err != nil {
			r.t.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
