package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/segment"
)

const scanTarget = 0.7

var spaceTargets = []struct {
	codec  string
	target float64
}{{"zstd", 0.30}, {"s2", 0.50}}

// measureSpace fills a spool at the pace of a busy day and compares its sealed segments with the payload in them.
func measureSpace(b *bench) error {
	b.section("space: sealed segment files / payload, telemetry of %.0f bytes", meanPayload)
	for _, want := range spaceTargets {
		if err := measureCodec(b, want.codec, want.target); err != nil {
			return wrap(want.codec, err)
		}
	}
	return nil
}

func measureCodec(b *bench, codec string, target float64) error {
	dir, done, err := b.tempDir()
	if err != nil {
		return err
	}
	defer done()
	sealed := new(sealCounter)
	o, err := openSpool(dir, func(c *spool.Config) {
		c.Segment.Codec, c.Segment.MaxSize, c.Segment.MaxAge = codec, 32<<20, unit.Duration(2*time.Second)
	}, spool.Options{Logger: slog.New(sealed)})
	if err != nil {
		return err
	}
	m := new(meter)
	m.await(pace(o, m, pacedRate, 3*b.time, nil))
	o.settle()
	if err := m.err(); err != nil {
		return err
	}
	for began := time.Now(); sealed.open.Load() > 0; {
		if time.Since(began) > time.Minute {
			return fmt.Errorf("%d segments are not sealed", sealed.open.Load())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := o.close(); err != nil {
		return err
	}
	var bytes, records int64
	err = eachSegment(dir, func(seg *segment.Segment) error {
		in := seg.Info()
		bytes += in.FileBytes
		records += int64(in.Records)
		return nil
	})
	if err != nil {
		return err
	}
	payload := float64(records) * meanPayload
	b.add(atMost("stored / payload, "+codec, float64(bytes)/payload, target, "x",
		fmt.Sprintf("%.1f MB / %.1f MB, %d records", float64(bytes)/1e6, payload/1e6, records), false))
	return nil
}

func eachSegment(dir string, fn func(*segment.Segment) error) error {
	files, err := filepath.Glob(filepath.Join(dir, "seg", "*", "*.db"))
	if err != nil {
		return err
	}
	for _, name := range files {
		seg, err := segment.Open(name, segment.Options{ReadOnly: true})
		if err != nil {
			return err
		}
		err = fn(seg)
		_ = seg.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// sealCounter counts the segments that are begun and not yet sealed, by what the spool logs.
type sealCounter struct{ open atomic.Int64 }

func (c *sealCounter) Enabled(context.Context, slog.Level) bool { return true }

func (c *sealCounter) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "segment begun":
		c.open.Add(1)
	case "segment sealed":
		c.open.Add(-1)
	}
	return nil
}

func (c *sealCounter) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c *sealCounter) WithGroup(string) slog.Handler      { return c }

// measureScan reads sealed segments that are not in the page cache, and a plain file of the same raw bytes.
func measureScan(b *bench) error {
	b.section("cold sealed scan: raw bytes per second / plain sequential read of the same bytes")
	dir, done, err := b.tempDir()
	if err != nil {
		return err
	}
	defer done()
	size := 128 << 20
	raw, err := writeRaw(filepath.Join(dir, "raw"), size)
	if err != nil {
		return err
	}
	for _, codec := range []string{"none", "s2", "zstd"} {
		if err := writeSegment(filepath.Join(dir, codec+".db"), codec, size); err != nil {
			return err
		}
	}
	rates := make(map[string][]float64)
	for range b.rounds {
		if err := chill(dir); err != nil {
			return err
		}
		r, err := readPlain(raw)
		if err != nil {
			return err
		}
		rates[raw] = append(rates[raw], r)
		for _, codec := range []string{"none", "s2", "zstd"} {
			if r, err = scanSegment(filepath.Join(dir, codec+".db")); err != nil {
				return wrap(codec, err)
			}
			rates[codec] = append(rates[codec], r)
		}
	}
	for _, codec := range []string{"none", "s2", "zstd"} {
		b.add(atLeast("cold scan / plain read, "+codec, median(ratios(rates[codec], rates[raw])), scanTarget, "x",
			fmt.Sprintf("%.0f MB/s / %.0f MB/s", median(rates[codec])/1e6, median(rates[raw])/1e6), spread(rates[raw])))
	}
	return nil
}

const scanBody = 128 << 10

// bodies makes raw batches of telemetry, size bytes in all.
func bodies(size int, fn func(n int, body []byte) error) error {
	body := make([]byte, 0, scanBody+1024)
	n := 0
	for size > 0 {
		body = body[:0]
		for len(body) < scanBody {
			body = appendPlain(body, record(n))
			n++
		}
		if err := fn(n, body); err != nil {
			return err
		}
		size -= len(body)
	}
	return nil
}

func writeRaw(name string, size int) (string, error) {
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return name, bodies(size, func(_ int, body []byte) error { _, err := f.Write(body); return err })
}

func writeSegment(name, codec string, size int) error {
	c, err := segment.ParseCodec(codec)
	if err != nil {
		return err
	}
	seg, err := segment.Create(name, segment.Options{Codec: c, MaxSize: 512 << 20})
	if err != nil {
		return err
	}
	var batches []segment.Batch
	next, raw, applied := uint64(0), 0, uint64(0)
	write := func() error {
		applied++
		err := seg.Write(applied, batches)
		batches, raw = nil, 0
		return err
	}
	err = bodies(size, func(n int, body []byte) error {
		batches = append(batches, segment.Batch{
			Base: next, Next: uint64(n), Count: uint32(uint64(n) - next), Never: uint32(uint64(n) - next), MinTime: 1, MaxTime: 2,
			Body: append([]byte(nil), body...),
		})
		next = uint64(n)
		if raw += len(body); raw >= 4<<20 {
			return write()
		}
		return nil
	})
	if err == nil && len(batches) > 0 {
		err = write()
	}
	if err == nil {
		err = seg.Seal(context.Background(), func([]byte, func(segment.Kind, []byte)) error { return nil })
	}
	if err != nil {
		return err
	}
	return seg.Close()
}

func readPlain(name string) (rate float64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	began, sum := time.Now(), 0
	for {
		n, err := f.Read(buf)
		sum += n
		if err == io.EOF {
			return float64(sum) / time.Since(began).Seconds(), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

func scanSegment(name string) (rate float64, err error) {
	began, sum := time.Now(), 0
	seg, err := segment.Open(name, segment.Options{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer seg.Close()
	for next, last := uint64(0), uint64(1); next != last; {
		last = next
		if next, err = seg.Read(0, next, 256<<10, func(b segment.Batch) error { sum += len(b.Body); return nil }); err != nil {
			return 0, err
		}
	}
	return float64(sum) / time.Since(began).Seconds(), nil
}
