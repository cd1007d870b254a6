package tiering

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// benchRig has sealed segments of 64 MiB in all, in a store as it is by default.
func benchRig(b *testing.B) (r *rig, records int) {
	b.Helper()
	r = newRig(b, func(r *rig) {
		d := DefaultConfig()
		r.cfg.PartSize, r.cfg.CacheSize = d.PartSize, d.CacheSize
		r.scfg.Segment.MaxSize = 16 << 20
		r.quiet = true
	})
	const perRound = 4 << 10
	for range 16 {
		r.big(perRound)
		records += perRound
	}
	r.seal()
	return r, records
}

// big appends n records of 1 KiB that do not compress.
func (r *rig) big(n int) {
	r.t.Helper()
	done := make(durable, n)
	rng := rand.NewChaCha8([32]byte{byte(r.n)})
	for range n {
		payload := make([]byte, 1<<10)
		_, _ = rng.Read(payload) // never fails
		if err := r.s.Append(r.t.Context(), spool.Entry{Record: &spool.Record{Topic: "plant/1", ClientID: "device", QoS: 1, Payload: payload}, Done: done}); err != nil {
			r.t.Fatal(err)
		}
	}
	for range n {
		if err := <-done; err != nil {
			r.t.Fatal(err)
		}
	}
	r.n += n
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
	for b.Loop() {
		r, n := benchRig(b)
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

// BenchmarkTierAcknowledgement prints the p99 of an acknowledgement without and with uploads: target 1.2.
func BenchmarkTierAcknowledgement(b *testing.B) {
	for b.Loop() {
		r, _ := benchRig(b)
		r.cfg.Streams[0].KeepLocal = unit.Hour
		without := r.p99(4 * time.Second)
		ctx, cancel := context.WithCancel(b.Context())
		var uploads atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil { // all again and again
				if err := os.RemoveAll(r.file("seg")); err != nil {
					b.Error(err)
				}
				for _, se := range r.tier.count(r.tier.byName[stream]) {
					if _, err := r.tier.uploadOne(ctx, r.tier.byName[stream], se); err == nil {
						uploads.Add(1)
					}
				}
			}
		}()
		with := r.p99(4 * time.Second)
		cancel()
		<-ended
		if uploads.Load() == 0 {
			b.Fatal("nothing was uploaded meanwhile")
		}
		b.ReportMetric(float64(without.Microseconds())/1e3, "p99-without-ms")
		b.ReportMetric(float64(with.Microseconds())/1e3, "p99-with-ms")
		b.ReportMetric(with.Seconds()/without.Seconds(), "with/without")
	}
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
