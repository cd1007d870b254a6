package segment

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestModel does random things to a segment and to a slice per partition, and compares them.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(3) {
		runModel(t, rand.New(rand.NewPCG(seed, round)))
	}
}

type model struct {
	parts   map[uint16][]Batch
	applied uint64
}

func (m *model) next(p uint16) uint64 {
	if bs := m.parts[p]; len(bs) > 0 {
		return bs[len(bs)-1].Next
	}
	return 0
}

func runModel(t *testing.T, rng *rand.Rand) {
	path := filepath.Join(t.TempDir(), "model.db")
	s, err := Create(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	m := &model{parts: map[uint16][]Batch{}}
	clock := int64(1_700_000_000_000_000_000)
	for range 300 {
		switch op := rng.IntN(10); op {
		case 0, 1, 2, 3:
			s.SetCodec(Codec(rng.IntN(3)))
			m.write(t, rng, s, &clock)
		case 4, 5, 6:
			m.read(t, rng, s)
		case 7:
			m.seekTime(t, rng, s, clock)
		case 8:
			p := uint16(rng.IntN(5))
			if n := m.next(p); n > 0 {
				if err := s.Write(m.applied+1, []Batch{{Partition: p, Base: n - 1, Next: n + 3}}); err == nil {
					t.Fatal("an overlap was accepted")
				}
			}
		case 9:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(path, Options{}); err != nil {
				t.Fatal(err)
			}
			m.compareInfo(t, s)
		}
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		m.read(t, rng, s)
		m.seekTime(t, rng, s, clock)
	}
	m.compareInfo(t, s)
	if err := s.Verify(context.Background()); err != nil {
		t.Error(err)
	}
}

func (m *model) write(t *testing.T, rng *rand.Rand, s *Segment, clock *int64) {
	t.Helper()
	var bs []Batch
	next := map[uint16]uint64{}
	for range rng.IntN(6) {
		p := uint16(rng.IntN(5))
		if _, ok := next[p]; !ok {
			next[p] = m.next(p)
		}
		base := next[p]
		if rng.IntN(20) == 0 {
			base += rng.Uint64N(10)
		}
		n := 1 + rng.IntN(1+rng.IntN(400))
		*clock += rng.Int64N(2_000_000_000) - 500_000_000
		b := Batch{
			Partition: p, Base: base, Next: base + uint64(n), Count: uint32(n), Never: uint32(n),
			MinTime: *clock, MaxTime: *clock + rng.Int64N(1000), Body: body(rng, someTopics, n),
		}
		switch rng.IntN(12) {
		case 0:
			b.Count, b.Never, b.Body, b.MinTime, b.MaxTime = 0, 0, nil, 0, 0
		case 1:
			b.Body = []byte{}
		case 2:
			for i := range b.Body {
				b.Body[i] = byte(rng.Uint32())
			}
		}
		next[p] = b.Next
		bs = append(bs, b)
	}
	m.applied += rng.Uint64N(3)
	if err := s.Write(m.applied, bs); err != nil {
		t.Fatal(err)
	}
	for _, b := range bs {
		m.parts[b.Partition] = append(m.parts[b.Partition], b)
	}
}

func (m *model) read(t *testing.T, rng *rand.Rand, s *Segment) {
	t.Helper()
	p := uint16(rng.IntN(5))
	from := rng.Uint64N(m.next(p) + 5)
	maxBytes := rng.IntN(1 + rng.IntN(2<<20))
	var want []Batch
	for left, bs := maxBytes, m.parts[p]; len(bs) > 0; bs = bs[1:] {
		if bs[0].Next <= from {
			continue
		}
		if len(want) > 0 && left <= 0 {
			break
		}
		want = append(want, bs[0])
		left -= len(bs[0].Body)
	}
	got, next, err := readAll(s, p, from, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) > 0 && next != want[len(want)-1].Next || len(want) == 0 && next != from {
		t.Fatalf("read %d from %d, %d bytes: next %d", p, from, maxBytes, next)
	}
	if !slices.EqualFunc(got, want, same) {
		t.Fatalf("read %d from %d, %d bytes: %d batches, want %d", p, from, maxBytes, len(got), len(want))
	}
}

func (m *model) seekTime(t *testing.T, rng *rand.Rand, s *Segment, clock int64) {
	t.Helper()
	p := uint16(rng.IntN(5))
	when := clock - rng.Int64N(300_000_000_000)
	want, wantOK := uint64(0), false
	for _, b := range m.parts[p] {
		if b.Count > 0 && b.MaxTime >= when {
			want, wantOK = b.Base, true
			break
		}
	}
	if got, ok, err := s.SeekTime(p, when); got != want || ok != wantOK || err != nil {
		t.Fatalf("seek %d: %d %v %v, want %d %v", when, got, ok, err, want, wantOK)
	}
}

func (m *model) compareInfo(t *testing.T, s *Segment) {
	t.Helper()
	in := s.Info()
	if in.Applied != m.applied {
		t.Fatalf("applied %d, want %d", in.Applied, m.applied)
	}
	for p, bs := range m.parts {
		got, _ := in.Partition(p)
		want := PartitionInfo{Partition: p, First: bs[0].Base, Next: bs[0].Base, StoredBytes: got.StoredBytes}
		for _, b := range bs {
			if b.Base > want.Next {
				want.Gaps++
				want.Missing += b.Base - want.Next
			}
			if b.Count > 0 {
				if want.Records == 0 {
					want.MinTime, want.MaxTime = b.MinTime, b.MaxTime
				}
				want.MinTime, want.MaxTime = min(want.MinTime, b.MinTime), max(want.MaxTime, b.MaxTime)
			}
			want.Next = b.Next
			want.Batches++
			want.Records += uint64(b.Count)
			want.RawBytes += uint64(len(b.Body))
		}
		if got != want {
			t.Fatalf("partition %+v, want %+v", got, want)
		}
	}
}
