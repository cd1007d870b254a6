package segment

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
)

// A scan gives what reads of one batch give, from anywhere, up to any size, and also when it is stopped in the middle.
func TestScanGivesWhatSmallReadsGive(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	s := mustCreate(t, Options{Codec: CodecS2})
	var next [2]uint64
	for i := range 120 {
		p := uint16(i % 2)
		b := batch(rng, p, next[p], 1+rng.IntN(1500))
		next[p] = b.Next
		mustWrite(t, s, uint64(i+1), b)
	}
	check := func() {
		t.Helper()
		for range 8 {
			p, limit := uint16(rng.IntN(2)), scanBytes+rng.IntN(4<<20)
			from := rng.Uint64N(next[p] + 10)
			got, end, err := readAll(s, p, from, limit)
			if err != nil {
				t.Fatal(err)
			}
			at, size := from, 0
			for i := 0; ; i++ {
				one, n, err := readAll(s, p, at, 1)
				if err != nil {
					t.Fatal(err)
				}
				if len(one) == 0 {
					if i != len(got) {
						t.Fatalf("partition %d from %d: %d batches, want %d", p, from, len(got), i)
					}
					break
				}
				if i == len(got) { // enough
					if size < limit {
						t.Fatalf("partition %d from %d: %d bytes, want %d", p, from, size, limit)
					}
					break
				}
				if !reflect.DeepEqual(got[i], one[0]) {
					t.Fatalf("partition %d from %d: batch %d is [%d, %d), want [%d, %d)", p, from, i, got[i].Base, got[i].Next, one[0].Base, one[0].Next)
				}
				at, size = n, size+len(one[0].Body)
			}
			if end != at {
				t.Fatalf("partition %d from %d: it goes on at %d, want %d", p, from, end, at)
			}
			stop, left := errors.New("stop"), rng.IntN(5)
			n, err := s.Read(p, from, 1<<30, func(Batch) error {
				if left--; left < 0 {
					return stop
				}
				return nil
			})
			if left < 0 && (err != stop || n > end) {
				t.Fatalf("a stopped scan: next %d, %v", n, err)
			}
		}
	}
	check()
	if err := s.Seal(context.Background(), func([]byte, func(Kind, []byte)) error { return nil }); err != nil {
		t.Fatal(err)
	}
	check()
}
