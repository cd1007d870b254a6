package spool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

func fileSum(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// What the catalog says of a sealed file is the file, whoever wrote it last: the seal, a rewrite, or a quarantine.
func TestCatalogHasTheHashOfEachSealedSegment(t *testing.T) {
	cfg, _ := damagedSegment(t)
	s := mustOpen(t, cfg, Options{})
	if _, lost := wantAccounts(t, s, 1001); lost == 0 {
		t.Fatal("no segment was replaced")
	}
	put(t, s, Entry{Record: testRecord(1001)})
	rollAll(t, s)
	check := func() {
		t.Helper()
		page, err := s.ListSegments(t.Context(), SegmentsQuery{})
		if err != nil || len(page.Segments) != 2 {
			t.Fatalf("%+v, %v", page, err)
		}
		for _, l := range page.Segments {
			if path := s.path("seg", l.Stream, l.File); l.State != "sealed" || l.SHA256 != fileSum(t, path) {
				t.Errorf("%s is %s, has SHA-256 %q, its file %s", path, l.State, l.SHA256, fileSum(t, path))
			}
		}
	}
	check()
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{})
	check()
}

// An earlier version has written no hashes: they come one after the other.
func TestSegmentsOfAnEarlierVersionGetTheirHash(t *testing.T) {
	cfg, _ := threeSegments(t)
	clock := newFakeClock()
	s := mustOpen(t, cfg, Options{Now: clock.now})
	missing := func() (n int) {
		for _, f := range s.streams[0].segments() {
			if f.sealed.Load() && f.sum() == "" {
				n++
			}
		}
		return n
	}
	for _, f := range s.streams[0].segments() {
		f.hash.Store(nil)
	}
	before := missing()
	for i := range before {
		clock.advance(2 * hashEvery)
		s.clean(t.Context())
		if n := missing(); n > before-i-1 {
			t.Fatalf("round %d: %d of %d have no hash", i, n, before)
		}
	}
}

func TestVerifyFindsAChangeThatNoChecksumSees(t *testing.T) {
	cfg, files := threeSegments(t)
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, make([]byte, 512)) // room at the end of a page
	if at < 0 {
		t.Fatal("no page has room")
	}
	b[at+256] = 1
	if err := os.WriteFile(files[0], b, 0o640); err != nil {
		t.Fatal(err)
	}
	v, err := OpenView(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := v.Verify(t.Context(), VerifyOptions{})
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil || r.Hashed != 3 || len(r.Findings) != 1 || !strings.Contains(r.Findings[0].What, "SHA-256") || r.Findings[0].Path != files[0] || !r.Damaged() {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := Repair(t.Context(), cfg, Options{}, VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	v, err = OpenView(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if r, err = v.Verify(t.Context(), VerifyOptions{}); err != nil || r.Damaged() || r.Records != 400 {
		t.Errorf("after repair: %+v, %v", r, err)
	}
}

// A running gateway's catalog is asked for through its API.
func TestVerifyOfARunningSpoolHoldsFilesAgainstTheHash(t *testing.T) {
	cfg, _ := threeSegments(t)
	s := mustOpen(t, cfg, Options{})

	o := VerifyOptions{SHA256: func(_ context.Context, _ string, _ uint64) string { return "not this one" }}
	r, err := VerifyRunning(t.Context(), s.cfg, o)
	if err != nil || r.Hashed != 3 || len(r.Findings) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
}
