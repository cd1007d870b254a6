package segment

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// benchBatches are n bodies of 128 KiB of telemetry, one after the other.
func benchBatches(n int) (bs []Batch, raw int) {
	rng := rand.New(rand.NewPCG(1, 1))
	var at uint64
	for range n {
		b := batch(rng, 0, at, 1300)
		at = b.Next
		raw += len(b.Body)
		bs = append(bs, b)
	}
	return bs, raw
}

// BenchmarkWrite writes transactions of 4 MiB of raw bodies, as the materialiser does.
func BenchmarkWrite(b *testing.B) {
	bs, raw := benchBatches(32)
	for _, codec := range []Codec{CodecNone, CodecS2, CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			b.SetBytes(int64(raw))
			var s *Segment
			var applied, base, stored uint64
			for b.Loop() {
				if s == nil || s.Info().StoredBytes > 128<<20 {
					s, base = mustCreate(b, Options{Codec: codec}), 0
				}
				tx := make([]Batch, len(bs))
				for i := range bs {
					tx[i] = bs[i]
					tx[i].Base, tx[i].Next = base+bs[i].Base, base+bs[i].Next
				}
				base = tx[len(tx)-1].Next
				applied++
				mustWrite(b, s, applied, tx...)
				in := s.Info()
				stored = in.StoredBytes * 1000 / in.RawBytes
			}
			b.ReportMetric(float64(stored)/1000, "stored/raw")
		})
	}
}

// benchSealed is a sealed segment of about the given raw size.
func benchSealed(b *testing.B, codec Codec, raw int) (*Segment, int) {
	bs, n := benchBatches(32)
	s := mustCreate(b, Options{Codec: codec, MaxSize: 1 << 30})
	var base uint64
	total := 0
	for applied := uint64(1); total < raw; applied++ {
		tx := make([]Batch, len(bs))
		for i := range bs {
			tx[i] = bs[i]
			tx[i].Base, tx[i].Next = base+bs[i].Base, base+bs[i].Next
		}
		base = tx[len(tx)-1].Next
		mustWrite(b, s, applied, tx...)
		total += n
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		b.Fatal(err)
	}
	return s, total
}

// dropCache makes the file cold.
func dropCache(b *testing.B, path string) {
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		b.Skip("cannot drop the page cache: ", err)
	}
}

// BenchmarkColdScan reads a sealed segment that is not in memory, as replay and tiering do. plain reads the same file
// from start to end and is what the disk gives.
func BenchmarkColdScan(b *testing.B) {
	for _, codec := range []Codec{CodecNone, CodecS2, CodecZstd} {
		s, raw := benchSealed(b, codec, 200<<20)
		path, size := s.Path(), s.Info().FileBytes
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%v/plain", codec), func(b *testing.B) {
			b.SetBytes(size)
			buf := make([]byte, 1<<20)
			for b.Loop() {
				b.StopTimer()
				dropCache(b, path)
				b.StartTimer()
				f, err := os.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf); err != nil {
					b.Fatal(err)
				}
				_ = f.Close()
			}
		})
		b.Run(fmt.Sprintf("%v/segment", codec), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				b.StopTimer()
				dropCache(b, path)
				b.StartTimer()
				s, err := Open(path, Options{})
				if err != nil {
					b.Fatal(err)
				}
				got := 0
				for at := uint64(0); got < raw; {
					next, err := s.Read(0, at, 1<<20, func(b Batch) error { got += len(b.Body); return nil })
					if err != nil {
						b.Fatal(err)
					}
					at = next
				}
				_ = s.Close()
			}
			b.ReportMetric(float64(raw)/(1<<20)*float64(b.N)/b.Elapsed().Seconds(), "raw-MiB/s")
		})
	}
}

func BenchmarkSeek(b *testing.B) {
	s, _ := benchSealed(b, CodecZstd, 100<<20)
	p, _ := s.Info().Partition(0)
	rng := rand.New(rand.NewPCG(1, 1))
	b.Run("offset", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Read(0, rng.Uint64N(p.Next), 1, func(Batch) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("time", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := s.SeekTime(0, rng.Int64N(p.MaxTime)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("topic", func(b *testing.B) {
		for b.Loop() {
			if refs, err := s.Lookup(KindTopic, func(k string) bool { return k == someTopics[3] }); err != nil || len(refs) == 0 {
				b.Fatal(refs, err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			o, err := Open(s.Path(), Options{})
			if err != nil {
				b.Fatal(err)
			}
			_ = o.Close()
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	for b.Loop() {
		benchSealed(b, CodecZstd, 100<<20)
	}
}
