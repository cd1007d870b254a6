package tiering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

// placed is a rig whose segments are read where they lie.
func placed(t *testing.T, segments int) *rig {
	t.Helper()
	r := newRig(t, func(r *rig) { r.inPlace = true })
	r.cold(segments)
	return r
}

// partFile is the file of a stored segment.
func (r *rig) partFile(i int) string {
	seg := r.tier.byName[stream].m.Load().Segments[i]
	return filepath.Join(r.dir, "cold", filepath.FromSlash(manifest.PartKey(stream, seg.Sequence, 0)))
}

func TestSegmentsOfADirectoryAreReadWhereTheyLie(t *testing.T) {
	r := placed(t, 3)
	r.all(0)
	if got, gaps := r.dump(spool.DumpQuery{Partition: -1}); len(got) != r.n || gaps != 0 {
		t.Errorf("dump: %d records, %d gaps", len(got), gaps)
	}
	if left, _ := os.ReadDir(r.cfg.CacheDir); len(left) != 0 || r.tier.cache.fetchedBytes.Load() != 0 || r.tier.cache.misses.Load() != 0 {
		t.Errorf("%d files were fetched into the cache, %d bytes", len(left), r.tier.cache.fetchedBytes.Load())
	}
	if n := r.tier.cache.inPlace.Load(); n == 0 {
		t.Error("no segment was opened in place")
	}
	if n := len(r.tier.cache.entries); n != 0 {
		t.Errorf("%d segments are held although nobody reads them: the disk could not be taken away", n)
	}
}

// What was stored in parts, by an earlier version or another kind of store, is fetched.
func TestSegmentInPartsIsFetchedFromADirectoryToo(t *testing.T) {
	r := newRig(t, nil)
	r.cold(2)
	r.faults.InPlace = true
	r.all(0)
	if n := r.tier.cache.inPlace.Load(); n != 0 || r.tier.cache.misses.Load() == 0 {
		t.Errorf("%d segments were opened in place", n)
	}
}

// An upload of parts that broke off goes on as one file.
func TestUploadThatBrokeOffInPartsGoesOnInOne(t *testing.T) {
	r := newRig(t, nil)
	r.segment(500)
	r.faults.Fail(func(op, key string) error {
		if op == "put" && filepath.Ext(key) == ".0002" {
			return storetest.ErrInjected
		}
		return nil
	})
	if err := r.tier.Round(t.Context()); !errors.Is(err, storetest.ErrInjected) {
		t.Fatal(err)
	}
	r.faults.Fail(nil)
	r.faults.InPlace = true
	r.round()
	r.advance(2 * time.Hour)
	r.round()
	r.all(0)
	if r.tier.cache.inPlace.Load() == 0 {
		t.Error("it is not one file")
	}
}

// A memory map does not tell a disk that cannot be read from damage: the store is asked, and what it cannot read now is waited for.
func TestDiskThatCannotBeReadIsNoDamage(t *testing.T) {
	r := placed(t, 2)
	path := r.partFile(0)
	sound := readFile(t, path)
	if err := flip(path); err != nil {
		t.Fatal(err)
	}
	r.faults.Fail(func(op, _ string) error {
		if op == "get" {
			return storetest.ErrInjected
		}
		return nil
	})
	rd, err := r.tier.NewReader(stream, 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for {
			b, err := rd.Next(ctx)
			if err != nil {
				ended <- err
				return
			}
			if b.Gap != nil {
				ended <- fmt.Errorf("it is told as a gap: %+v", *b.Gap)
				return
			}
			if b.Next >= 500 {
				ended <- errors.New("it is read")
				return
			}
		}
	}()
	select {
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(100 * time.Millisecond): // it waits for the store
	}
	if _, err := r.tier.Dump(t.Context(), spool.DumpQuery{Stream: stream, Partition: -1}, func(i spool.DumpItem) error {
		if i.Record == nil {
			t.Errorf("dump: a gap is told: %+v", i.Gap)
		}
		return nil
	}); !errors.Is(err, storetest.ErrInjected) {
		t.Errorf("dump: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	writeFile(t, path, sound)
	r.faults.Fail(nil)
	r.all(0)
}

// A file that is cut while it is read gives a memory fault, not an end of the process.
func TestFileThatIsCutWhileItIsReadIsAGap(t *testing.T) {
	r := placed(t, 2)
	rd, err := r.tier.NewReader(stream, 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	if b, err := rd.Next(t.Context()); err != nil || b.Gap != nil {
		t.Fatalf("%+v, %v", b.Gap, err)
	}
	if err := os.Truncate(r.partFile(0), 8<<10); err != nil {
		t.Fatal(err)
	}
	_, end := r.s.Bounds(stream, 0)
	gaps := 0
	for rd.Offset() < end {
		b, err := rd.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b.Gap != nil {
			gaps++
		}
	}
	if gaps > 1 { // none when all of it had been read before
		t.Errorf("%d gaps", gaps)
	}
	r.all(2) // from now on one for each partition
}

// The file of another segment is not taken for the one that is asked for.
func TestFileOfAnotherSegmentIsDamage(t *testing.T) {
	r := placed(t, 3)
	other := readFile(t, r.partFile(0))
	seg := r.tier.byName[stream].m.Load().Segments[1]
	other = append(other, make([]byte, max(0, int(seg.Bytes)-len(other)))...)
	writeFile(t, r.partFile(1), other[:seg.Bytes])
	r.all(2)
}

// What retention removes is read to its end by who reads it, and makes room after that.
func TestSegmentThatIsRemovedWhileItIsRead(t *testing.T) {
	r := placed(t, 2)
	rd, err := r.tier.NewReader(stream, 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	first, err := rd.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.partFile(0)); err != nil {
		t.Fatal(err)
	}
	n := len(first.Records)
	for rd.Offset() < 250 { // of partition 0 in the first segment
		b, err := rd.Next(t.Context())
		if err != nil || b.Gap != nil {
			t.Fatalf("%+v, %v", b.Gap, err)
		}
		n += len(b.Records)
	}
	if n < 200 {
		t.Errorf("%d records", n)
	}
}
