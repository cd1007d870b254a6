package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if job := os.Getenv("SEGMENT_CHILD"); job != "" {
		os.Exit(child(job))
	}
	goleak.VerifyTestMain(m)
}

// body makes one that compresses like telemetry and that names its topics, one per line: see indexBody.
func body(rng *rand.Rand, topics []string, records int) []byte {
	var b bytes.Buffer
	for range records {
		topic := topics[rng.IntN(len(topics))]
		fmt.Fprintf(&b, "%s\tc%d\t{\"temperature\":%.2f,\"ts\":%d,\"state\":\"running\"}\n", topic, rng.IntN(50), rng.Float64()*100, rng.Int64())
	}
	return b.Bytes()
}

func indexBody(body []byte, yield func(Kind, []byte)) error {
	for line := range bytes.Lines(body) {
		topic, rest, ok := bytes.Cut(line, []byte("\t"))
		if !ok {
			continue
		}
		client, _, _ := bytes.Cut(rest, []byte("\t"))
		yield(KindTopic, topic)
		yield(KindClient, client)
	}
	return nil
}

var someTopics = func() (topics []string) {
	for i := range 300 {
		topics = append(topics, fmt.Sprintf("plant/%d/machine/%d/telemetry", i%7, i))
	}
	return topics
}()

// batch makes one of n records at base.
func batch(rng *rand.Rand, partition uint16, base uint64, n int) Batch {
	t := int64(base) * int64(time.Millisecond)
	return Batch{
		Partition: partition, Base: base, Next: base + uint64(n), Count: uint32(n), Never: uint32(n),
		MinTime: t, MaxTime: t + int64(n), Body: body(rng, someTopics, n),
	}
}

func mustCreate(t testing.TB, o Options) *Segment {
	t.Helper()
	s, err := Create(filepath.Join(t.TempDir(), "0000000000000001.db"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mustWrite(t testing.TB, s *Segment, applied uint64, bs ...Batch) {
	t.Helper()
	if err := s.Write(applied, bs); err != nil {
		t.Fatal(err)
	}
}

func readAll(s *Segment, partition uint16, from uint64, maxBytes int) (out []Batch, next uint64, err error) {
	next, err = s.Read(partition, from, maxBytes, func(b Batch) error { out = append(out, b); return nil })
	return out, next, err
}

// same compares what Write got with what Read gave.
func same(got, want Batch) bool {
	got.StoredBytes, got.Codec, want.Expiries = 0, 0, nil
	if len(got.Body) == 0 && len(want.Body) == 0 {
		got.Body, want.Body = nil, nil
	}
	return reflect.DeepEqual(got, want)
}

func TestWriteReadReopenSeal(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecS2, CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(codec)))
			s := mustCreate(t, Options{Stream: "plant", Sequence: 7, Codec: codec})
			var want []Batch
			base := uint64(100)
			for i := range 40 {
				b := batch(rng, 3, base, 1+i*13%200) // from inline values to page runs
				base = b.Next
				want = append(want, b)
				mustWrite(t, s, uint64(i+1), b)
			}
			check := func(s *Segment) {
				t.Helper()
				got, next, err := readAll(s, 3, 0, 1<<30)
				if err != nil || next != base || len(got) != len(want) {
					t.Fatalf("read %d batches, next %d, %v; want %d, %d", len(got), next, err, len(want), base)
				}
				for i := range got {
					if !same(got[i], want[i]) {
						t.Fatalf("batch %d: got %+v want %+v", i, got[i], want[i])
					}
				}
				if s.Applied() != 40 {
					t.Errorf("applied %d", s.Applied())
				}
				in := s.Info()
				if in.Stream != "plant" || in.Sequence != 7 || in.Records != base-100 || in.Partitions[0].First != 100 || in.Partitions[0].Next != base {
					t.Errorf("info %+v", in)
				}
				if err := s.Verify(context.Background()); err != nil {
					t.Error(err)
				}
			}
			check(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s2, err := Open(s.Path(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s2.Close()
			check(s2)
			if err := s2.Seal(context.Background(), indexBody); err != nil {
				t.Fatal(err)
			}
			check(s2)
			if err := s2.Write(41, nil); !errors.Is(err, ErrSealed) {
				t.Errorf("write to sealed: %v", err)
			}
			size, sum, err := Hash(context.Background(), s.Path())
			if err != nil || size != s2.Info().FileBytes {
				t.Fatal(size, err)
			}
			s3, err := Open(s.Path(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s3.Close()
			check(s3)
			if !s3.Info().Sealed || s3.Info().Topics != 300 || s3.Info().Clients != 50 {
				t.Errorf("info %+v", s3.Info())
			}
			if size2, sum2, _ := Hash(context.Background(), s.Path()); size2 != size || sum2 != sum {
				t.Error("opening changed a sealed file")
			}
			if in, err := VerifyFile(context.Background(), s.Path()); err != nil || in.Records != base-100 {
				t.Error(in, err)
			}
		})
	}
}

func TestReadStartsInsideABatchAndStopsAtMaxBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := mustCreate(t, Options{})
	a, b, c := batch(rng, 0, 0, 10), batch(rng, 0, 10, 10), batch(rng, 1, 10, 10)
	mustWrite(t, s, 1, a, b, c)
	f := func(partition uint16, from uint64, maxBytes int, wantNext uint64, bases ...uint64) {
		t.Helper()
		got, next, err := readAll(s, partition, from, maxBytes)
		var have []uint64
		for _, g := range got {
			have = append(have, g.Base)
		}
		if err != nil || next != wantNext || !slices.Equal(have, bases) {
			t.Errorf("read %d from %d: %v next %d %v, want %v next %d", partition, from, have, next, err, bases, wantNext)
		}
	}
	f(0, 0, 1<<20, 20, 0, 10)
	f(0, 0, 1, 10, 0)
	f(0, 5, 1, 10, 0)
	f(0, 9, 1<<20, 20, 0, 10)
	f(0, 10, 0, 20, 10)
	f(0, 20, 1<<20, 20)
	f(0, 99, 1<<20, 99)
	f(1, 0, 1<<20, 20, 10)
	f(1, 15, 1<<20, 20, 10)
	f(2, 0, 1<<20, 0)

	stop := errors.New("stop")
	next, err := s.Read(0, 0, 1<<20, func(b Batch) error {
		if b.Base == 10 {
			return stop
		}
		return nil
	})
	if next != 10 || err != stop {
		t.Errorf("a stopped read: next %d, %v", next, err)
	}
}

func TestWriteRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := mustCreate(t, Options{})
	mustWrite(t, s, 5, batch(rng, 0, 0, 10))
	var oe *OffsetError
	if err := s.Write(6, []Batch{batch(rng, 1, 0, 5), batch(rng, 0, 9, 10)}); !errors.As(err, &oe) || oe.Next != 10 || oe.Base != 9 {
		t.Errorf("overlap: %v", err)
	}
	var ae *AppliedError
	if err := s.Write(4, []Batch{batch(rng, 0, 10, 10)}); !errors.As(err, &ae) {
		t.Errorf("applied going back: %v", err)
	}
	if err := s.Write(6, []Batch{{Base: 10, Next: 11, Count: 1, Body: make([]byte, MaxBody+1)}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := s.Write(6, []Batch{{Base: 10, Next: 10}}); err == nil {
		t.Error("empty range accepted")
	}
	if s.Applied() != 5 || s.Info().Batches != 1 {
		t.Errorf("a refused write left something: %+v", s.Info())
	}
	mustWrite(t, s, 6, batch(rng, 0, 15, 10)) // a gap is allowed
	if p, _ := s.Info().Partition(0); p.Gaps != 1 || p.Missing != 5 {
		t.Errorf("gap not recorded: %+v", p)
	}
	if _, err := Create(s.Path(), Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a file: %v", err)
	}
	if _, err := Open(s.Path(), Options{ReadOnly: true}); !errors.Is(err, ErrLocked) {
		t.Errorf("second handle: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(7, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if _, _, err := readAll(s, 0, 0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

func TestSeekTimeWhenTheClockGoesBack(t *testing.T) {
	s := mustCreate(t, Options{})
	at := func(base uint64, lo, hi int64) Batch {
		return Batch{Base: base, Next: base + 1, Count: 1, MinTime: lo, MaxTime: hi, Body: []byte("x")}
	}
	mustWrite(t, s, 1, at(0, -20, -10), at(1, 10, 20), at(2, 5, 8), at(3, 15, 18), at(4, 21, 30), Batch{Base: 5, Next: 9})
	mustWrite(t, s, 2, at(9, 25, 31))
	f := func(when int64, want uint64, wantOK bool) {
		t.Helper()
		if got, ok, err := s.SeekTime(0, when); got != want || ok != wantOK || err != nil {
			t.Errorf("seek %d: %d %v %v, want %d %v", when, got, ok, err, want, wantOK)
		}
	}
	f(-100, 0, true)
	f(-10, 0, true)
	f(-9, 1, true)
	f(7, 1, true) // the first batch with a record at or after 7
	f(20, 1, true)
	f(21, 4, true)
	f(31, 9, true)
	f(32, 0, false)
	if _, ok, err := s.SeekTime(1, 0); ok || err != nil {
		t.Error("another partition answered")
	}
}

func TestLookupFindsExactlyTheBatchesOfATopic(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	s := mustCreate(t, Options{Codec: CodecZstd})
	var all []Batch
	next := map[uint16]uint64{}
	for i := range 200 {
		p := uint16(rng.IntN(4))
		b := batch(rng, p, next[p], 1+rng.IntN(20))
		next[p] = b.Next
		all = append(all, b)
		mustWrite(t, s, uint64(i), b)
	}
	if _, err := s.Lookup(KindTopic, func(string) bool { return true }); !errors.Is(err, ErrNotSealed) {
		t.Errorf("active: %v", err)
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{KindTopic, KindClient} {
		for _, match := range []func(string) bool{
			func(k string) bool { return k == someTopics[17] || k == "c7" },
			func(k string) bool { return strings.HasPrefix(k, "plant/3/") || strings.HasPrefix(k, "c1") },
			func(k string) bool { return true },
			func(k string) bool { return false },
		} {
			want := map[Ref]bool{}
			for _, b := range all {
				_ = indexBody(b.Body, func(k Kind, key []byte) {
					if k == kind && match(string(key)) {
						want[Ref{b.Partition, b.Base}] = true
					}
				})
			}
			got, err := s.Lookup(kind, match)
			if err != nil || len(got) != len(want) {
				t.Fatalf("%d batches, want %d: %v", len(got), len(want), err)
			}
			for _, r := range got {
				if !want[r] {
					t.Errorf("%+v has no such key", r)
				}
			}
		}
	}
}

func TestSealWithoutIndexAndWithTooManyKeys(t *testing.T) {
	s := mustCreate(t, Options{})
	mustWrite(t, s, 1, Batch{Base: 0, Next: 1, Count: 1, Body: []byte("x")})
	if err := s.Seal(context.Background(), func(_ []byte, yield func(Kind, []byte)) error {
		key := make([]byte, 60_000)
		for i := range 1000 {
			binary.BigEndian.PutUint32(key, uint32(i))
			yield(KindTopic, key)
		}
		yield(KindClient, key[:10])
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup(KindTopic, func(string) bool { return true }); !errors.Is(err, ErrNoIndex) {
		t.Error(err)
	}
	if refs, err := s.Lookup(KindClient, func(string) bool { return true }); err != nil || len(refs) != 1 {
		t.Error(refs, err)
	}
	s = mustCreate(t, Options{})
	if err := s.Seal(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup(KindClient, func(string) bool { return true }); !errors.Is(err, ErrNoIndex) {
		t.Error(err)
	}
}

func TestSealGoesOnAfterAnInterruption(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := mustCreate(t, Options{Codec: CodecS2})
	mustWrite(t, s, 1, batch(rng, 0, 0, 500))
	x, err := s.buildIndex(context.Background(), indexBody)
	if err != nil {
		t.Fatal(err)
	}
	s.writing.Lock()
	err = s.writeIndexLocked(context.Background(), x)
	s.writing.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, s, 2, batch(rng, 0, 500, 10)) // still active
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestFullSegmentCanStillBeSealed(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	s := mustCreate(t, Options{MaxSize: 4 << 20})
	var base uint64
	var err error
	for applied := uint64(1); ; applied++ {
		b := batch(rng, 0, base, 800)
		if err = s.Write(applied, []Batch{b}); err != nil {
			break
		}
		base = b.Next
	}
	if !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	if size := s.Info().FileBytes; size > 4<<20 {
		t.Errorf("file has %d bytes", size)
	}
	if got, next, err := readAll(s, 0, 0, 1<<30); err != nil || next != base || len(got) < 30 {
		t.Fatal(len(got), next, err)
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestRewriteKeepsWhatIsAsked(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	s := mustCreate(t, Options{Stream: "plant", Sequence: 3, Codec: CodecZstd})
	for i := range uint64(30) {
		mustWrite(t, s, i+1, batch(rng, 0, i*10, 10), batch(rng, 2, i*10, 10))
	}
	dst := s.Path() + ".new"
	keep := func(b Batch) (Batch, bool, error) { return b, b.Base%100 == 50, nil }
	if _, err := s.Rewrite(context.Background(), dst, Options{}, indexBody, keep); !errors.Is(err, ErrNotSealed) {
		t.Error(err)
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Fatal(err)
	}
	in, err := s.Rewrite(context.Background(), dst, Options{Codec: CodecZstd}, indexBody, keep)
	if err != nil {
		t.Fatal(err)
	}
	if !in.Sealed || in.Records != 60 || in.Stream != "plant" || in.Sequence != 3 || in.Applied != 30 || in.Topics <= 0 {
		t.Errorf("info %+v", in)
	}
	if p, _ := in.Partition(2); p.First != 0 || p.Next != 300 || p.Gaps != 0 {
		t.Errorf("partition %+v", p)
	}
	if _, err := VerifyFile(context.Background(), dst); err != nil {
		t.Error(err)
	}
	bad := errors.New("bad")
	if _, err := s.Rewrite(context.Background(), dst+"2", Options{}, nil, func(b Batch) (Batch, bool, error) { return b, true, bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
	if _, err := os.Stat(dst + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a failed rewrite left a file")
	}
}

func TestHeadersAndSkip(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	s := mustCreate(t, Options{Codec: CodecS2})
	for i := range uint64(20) {
		mustWrite(t, s, i+1, batch(rng, 1, i*100, 100))
	}
	var bases []uint64
	if err := s.Headers(context.Background(), 1, 250, func(b Batch) error {
		if b.Body != nil || b.Codec != CodecS2 || b.StoredBytes < 1000 {
			t.Errorf("header %+v", b)
		}
		bases = append(bases, b.Base)
		return nil
	}); err != nil || len(bases) != 18 || bases[0] != 200 {
		t.Error(bases, err)
	}
	if base, ok, err := s.Skip(1, 200); base != 300 || !ok || err != nil {
		t.Error(base, ok, err)
	}
	if _, ok, err := s.Skip(1, 1900); ok || err != nil {
		t.Error(ok, err)
	}
	if _, ok, err := s.Skip(0, 0); ok || err != nil {
		t.Error(ok, err)
	}
}

func TestRemoveTruncatesInSteps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	if err := os.WriteFile(path, make([]byte, 3*removeStep+5), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Remove(ctx, path); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() >= 3*removeStep+5 {
		t.Error("no step was taken", err)
	}
	if err := Remove(context.Background(), path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("still there")
	}
	if err := Remove(context.Background(), path); err != nil {
		t.Errorf("a missing file: %v", err)
	}
}

func TestExpiryNeverUnderestimates(t *testing.T) {
	for i := range maxExpiryBuckets - 5 {
		bound := time.Duration(expiryBound(i)) * time.Second
		if expiryBound(i) > 1<<33 {
			break // beyond a Duration
		}
		if got := expiryBucket(bound); got != i {
			t.Fatalf("bucket of its own bound %v: %d, want %d", bound, got, i)
		}
		if got := expiryBucket(bound + 1); got != i+1 {
			t.Fatalf("bucket behind bound %v: %d, want %d", bound, got, i+1)
		}
	}
	rng := rand.New(rand.NewPCG(3, 3))
	st := newState(1_000_000_000_000)
	var expiries []int64
	for i := range uint64(50) {
		b := Batch{Base: i * 20, Next: i*20 + 20, Count: 20, Body: make([]byte, 2000)}
		for range 20 {
			at := int64(0)
			if rng.IntN(10) > 0 {
				at = st.expiry.created + rng.Int64N(int64(1)<<(30+rng.IntN(25)))
			}
			expiries = append(expiries, at)
			b.Expiries = append(b.Expiries, at)
		}
		if err := st.add(&b, 10); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		now := st.expiry.created + rng.Int64N(int64(1)<<(30+rng.IntN(26)))
		later := now - (now-st.expiry.created)/4 - int64(time.Second)
		var live, atMost uint64
		for _, at := range expiries {
			if at == 0 || at > now {
				live++
			}
			if at == 0 || at > later {
				atMost++
			}
		}
		if got, raw := st.expiry.Live(now); got < live || got > atMost || raw != got*100 {
			t.Fatalf("live %d (%d bytes) at +%v, want %d..%d", got, raw, time.Duration(now-st.expiry.created), live, atMost)
		}
	}
	again, err := decodeState(st.encode(), st.expiry.created)
	if err != nil || !reflect.DeepEqual(again, st) {
		t.Errorf("state does not survive: %v\n%+v\n%+v", err, again, st)
	}
}
