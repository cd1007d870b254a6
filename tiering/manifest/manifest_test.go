package manifest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/tiering/store"
)

func dir(t *testing.T) (store.Store, string) {
	t.Helper()
	root := t.TempDir()
	s, err := store.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	return s, root
}

func segmentOf(seq uint64) Segment {
	return Segment{
		Version: Version, Schema: 1, Stream: "default", Sequence: seq, Bytes: 10, PartSize: 4, SHA256: strings.Repeat("ab", 32), Records: 100,
		Created: time.Unix(100, 0).UTC(), SealedAt: time.Unix(200, 0).UTC(), Stored: time.Unix(300, 0).UTC(),
		Partitions: []Partition{{Partition: 1, First: spool.Offset(seq * 100), Next: spool.Offset(seq*100 + 100)}}, Topics: Topics{List: []string{"a/b"}},
	}
}

// put stores a segment as an upload does.
func put(t *testing.T, s store.Store, seg Segment) {
	t.Helper()
	for part, size := range []int{4, 4, 2} {
		if err := store.PutBytes(t.Context(), s, PartKey(seg.Stream, seg.Sequence, part), make([]byte, size), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := PutEntry(t.Context(), s, &seg); err != nil {
		t.Fatal(err)
	}
}

func TestOfTwoWritersOfOneGenerationTheSecondIsTold(t *testing.T) {
	s, _ := dir(t)
	m, err := Load(t.Context(), s, "default")
	if err != nil || m.Generation != 0 {
		t.Fatalf("an empty store: %+v, %v", m, err)
	}
	one, _, err := Save(t.Context(), s, m.With(segmentOf(1)), "one", time.Now())
	if err != nil || one.Generation != 1 {
		t.Fatal(err)
	}
	if _, _, err := Save(t.Context(), s, m.With(segmentOf(2)), "two", time.Now()); !errors.Is(err, store.ErrExist) {
		t.Errorf("the second: %v", err)
	}
	got, err := Load(t.Context(), s, "default")
	if err != nil || !reflect.DeepEqual(got, one) {
		t.Errorf("got %+v, want %+v: %v", got, one, err)
	}
}

// A segment is found by offset as if all were looked at, also where not every segment has the partition.
func TestSegmentsAreFoundByOffset(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	m, next := &Manifest{Stream: "default"}, [3]spool.Offset{}
	for seq := range uint64(200) {
		s := segmentOf(seq)
		s.Partitions = nil
		for p := range next {
			if rng.IntN(3) > p { // each has the first, few the last
				first := next[p] + spool.Offset(rng.IntN(3))
				next[p] = first + 1 + spool.Offset(rng.IntN(5))
				s.Partitions = append(s.Partitions, Partition{Partition: p, First: first, Next: next[p]})
			}
		}
		m = m.With(s)
	}
	for p := range len(next) + 1 {
		for at := range spool.Offset(1200) {
			var want *Segment
			for i := range m.Segments {
				if have, ok := m.Segments[i].Partition(p); ok && have.Next > at {
					want = &m.Segments[i]
					break
				}
			}
			got, have := m.At(p, at)
			if got != want || want != nil && have.Next <= at {
				t.Fatalf("partition %d at %d: %+v, want %+v", p, at, got, want)
			}
		}
	}
}

// Entries come in any order; of two with one number the later counts.
func TestEntriesAreAddedInOrder(t *testing.T) {
	m := &Manifest{Stream: "default"}
	m = m.With(segmentOf(5), segmentOf(2)).With(segmentOf(9))
	again := segmentOf(5)
	again.Parquet = []string{"parquet/5"}
	before := m
	m = m.With(segmentOf(1), again)
	var got []uint64
	for _, s := range m.Segments {
		got = append(got, s.Sequence)
	}
	if seg, ok := m.Find(5); fmt.Sprint(got) != "[1 2 5 9]" || !ok || len(seg.Parquet) != 1 {
		t.Errorf("%v, %+v", got, seg)
	}
	if seg, _ := before.Find(5); len(before.Segments) != 3 || len(seg.Parquet) != 0 {
		t.Error("a manifest that others hold was changed")
	}
}

func TestOldGenerationsGo(t *testing.T) {
	s, root := dir(t)
	m := &Manifest{Stream: "default"}
	for i := range 10 {
		var err error
		if m, _, err = Save(t.Context(), s, m.With(segmentOf(uint64(i+1))), "one", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := filepath.Glob(filepath.Join(root, "default", "manifest", "*"))
	if len(files) != keptGenerations {
		t.Errorf("there are %v", files)
	}
}

// Whatever of the manifest is lost or damaged, the entries bring it back; where an entry is lost too, the segment itself does.
func TestLostManifestIsRebuiltFromTheObjects(t *testing.T) {
	s, root := dir(t)
	m := &Manifest{Version: Version, Stream: "default"}
	for seq := range uint64(5) {
		put(t, s, segmentOf(seq+1))
		var err error
		if m, _, err = Save(t.Context(), s, m.With(segmentOf(seq+1)), "one", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	newest := filepath.Join(root, "default", "manifest", fmt.Sprintf("%016d.json", m.Generation))
	whole, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string]func(){
		"cut":     func() { _ = os.WriteFile(newest, whole[:len(whole)/2], 0o600) },
		"flipped": func() { b := append([]byte{}, whole...); b[len(b)/2] ^= 1; _ = os.WriteFile(newest, b, 0o600) },
		"empty":   func() { _ = os.WriteFile(newest, nil, 0o600) },
		"gone":    func() { _ = os.RemoveAll(filepath.Join(root, "default", "manifest")) },
	}
	for _, what := range []string{"cut", "flipped", "empty", "gone"} {
		damage[what]()
		if _, err := Load(t.Context(), s, "default"); !errors.Is(err, ErrLost) {
			t.Fatalf("%s: %v", what, err)
		}
		got, err := Rebuild(t.Context(), s, "default", RebuildOptions{})
		if err != nil || !reflect.DeepEqual(got.Segments, m.Segments) {
			t.Errorf("%s: %d segments: %v", what, len(got.Segments), err)
		}
		if what != "gone" && got.Generation != m.Generation {
			t.Errorf("%s: generation %d: the next one would be one that is there", what, got.Generation)
		}
	}

	if err := os.Remove(filepath.Join(root, EntryKey("default", 2))); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(root, EntryKey("default", 3)), 20); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(root, PartKey("default", 4, 1)), 3); err != nil {
		t.Fatal(err)
	}
	var skipped []uint64
	skip := func(seq uint64, _ error) { skipped = append(skipped, seq) }
	got, err := Rebuild(t.Context(), s, "default", RebuildOptions{Skip: skip, Floor: 1})
	if err != nil || len(got.Segments) != 2 || fmt.Sprint(skipped) != "[2 3 4]" {
		t.Errorf("without Open: %d segments, skipped %v: %v", len(got.Segments), skipped, err)
	}
	skipped = nil
	got, err = Rebuild(t.Context(), s, "default", RebuildOptions{Skip: skip, Open: func(_ context.Context, _ string, seq uint64, parts []int64) (*Segment, error) {
		if fmt.Sprint(parts) != "[4 4 2]" {
			t.Errorf("segment %d has parts %v", seq, parts)
		}
		seg := segmentOf(seq)
		return &seg, nil
	}})
	if err != nil || len(got.Segments) != 4 || fmt.Sprint(skipped) != "[4]" {
		t.Errorf("with Open: %d segments, skipped %v: %v", len(got.Segments), skipped, err)
	}
	if _, err := ReadEntry(t.Context(), s, "default", 3); err != nil {
		t.Errorf("the entry that was made again: %v", err)
	}
}

func TestNewerManifestIsNotTouched(t *testing.T) {
	s, _ := dir(t)
	b, err := seal(Manifest{Version: Version + 1, Stream: "default", Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.PutBytes(t.Context(), s, generationKey("default", 1), b, true); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), s, "default"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

func TestPrefixHasOneOwner(t *testing.T) {
	s, root := dir(t)
	one, two := Owner{Gateway: "edge-1", Instance: "aa"}, Owner{Gateway: "edge-2", Instance: "bb"}
	for range 2 {
		if err := Claim(t.Context(), s, one); err != nil {
			t.Fatal(err)
		}
	}
	if err := Claim(t.Context(), s, two); !errors.Is(err, ErrOwned) || !strings.Contains(err.Error(), "edge-1") {
		t.Errorf("the second: %v", err)
	}
	if err := Adopt(t.Context(), s, two); err != nil {
		t.Fatal(err)
	}
	if err := Claim(t.Context(), s, one); !errors.Is(err, ErrOwned) {
		t.Errorf("the first, after the second has adopted it: %v", err)
	}
	if err := os.Truncate(filepath.Join(root, ownerKey), 30); err != nil {
		t.Fatal(err)
	}
	if err := Claim(t.Context(), s, two); err == nil {
		t.Error("a damaged marker is nobody's")
	}
}

// A summary may say yes too often, and never no to a topic that is there.
func TestTopicsNeverDenyWhatIsThere(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string { return fmt.Sprintf("w%d", rng.IntN(n)) }
	for _, size := range []int{0, 1, 5, 50, 500, 5000, 50_000} {
		var c Collector
		var topics []string
		for range size {
			levels := []string{"plant", word(3), word(40), word(1000), word(1000)}
			topic := strings.Join(levels[:1+rng.IntN(len(levels))], "/")
			topics = append(topics, topic)
			c.Add(topic)
		}
		sum := c.plain()
		if n := len(sum.Bloom) + len(strings.Join(sum.List, "")); n > 3<<10 {
			t.Errorf("%d topics take %d bytes", size, n)
		}
		for range min(size, 2000) {
			topic := topics[rng.IntN(len(topics))]
			levels := strings.Split(topic, "/")
			filters := []string{topic, "#", topic + "/#", levels[0] + "/#"}
			levels[rng.IntN(len(levels))] = "+"
			filters = append(filters, strings.Join(levels, "/"))
			for _, f := range filters {
				if spool.MatchFilter(f, topic) && !sum.May([]string{f}, nil) {
					t.Fatalf("%d topics: %q does not find %q", size, f, topic)
				}
			}
		}
		wrong := 0
		for i := range 1000 {
			if sum.May([]string{fmt.Sprintf("mine/%d/#", i)}, nil) {
				wrong++
			}
		}
		if wrong > 50 {
			t.Errorf("%d topics: %d of 1000 topics that are not there may be", size, wrong)
		}
	}
}

func TestTopicsOfEncryptedSegmentsAreEncrypted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, crypt.NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := crypt.Load([]crypt.KeyFile{{ID: 3, Path: file}}, 3)
	if err != nil {
		t.Fatal(err)
	}
	var c Collector
	c.Add("secret/place")
	sum := c.Topics(keys, true)
	seg := segmentOf(1)
	seg.Topics = sum
	b, err := seal(seg)
	if err != nil || strings.Contains(string(b), "secret") || strings.Contains(string(b), "place") {
		t.Errorf("the entry shows it: %s, %v", b, err)
	}
	for filter, want := range map[string]bool{"secret/+": true, "other/#": false} {
		if got := sum.May([]string{filter}, keys); got != want {
			t.Errorf("%s: %v", filter, got)
		}
		if !sum.May([]string{filter}, nil) {
			t.Errorf("%s: without the key nothing may be left out", filter)
		}
	}
}
