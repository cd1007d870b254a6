package spool

import (
	"bytes"
	"os"
	"testing"
)

// A segment is written again once, however many of its batches are damaged: quarantine/ has the damaged file and nothing else.
func TestRepairWritesASegmentAgainOnce(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.Segment.Codec = "none" // so that it finds what it wants to damage
	s := mustOpen(t, cfg, Options{})
	for i := range 5 { // a batch each
		putMany(t, s, i*100, (i+1)*100)
		if err := s.materialise(true); err != nil {
			t.Fatal(err)
		}
	}
	rollAll(t, s)
	path := s.streams[0].segments()[0].path
	mustClose(t, s)
	for _, value := range []string{"value 101", "value 201", "value 301"} {
		flipIn(t, path, []byte(value))
	}
	damaged, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(findings(mustVerify(t, cfg), SeverityDamage)); n != 4 {
		t.Fatalf("%d findings, want three batches and the file", n)
	}
	_, logger := logTo(t)
	if _, err := Repair(t.Context(), cfg, Options{Logger: logger}, VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	files := quarantined(t, cfg)
	if len(files) != 1 {
		t.Fatalf("quarantine has %v", files)
	}
	if b, err := os.ReadFile(files[0]); err != nil || !bytes.Equal(b, damaged) {
		t.Errorf("what was damaged is not in quarantine: %v", err)
	}
	s = mustOpen(t, cfg, Options{})
	if got, gaps := readAll(t, s, DefaultStream, 0, 0); len(got) != 200 || len(gaps) == 0 {
		t.Errorf("%d records, gaps %v", len(got), gaps)
	}
}

// A name that is mistyped must not pass for a sound stream.
func TestVerifyOfAnUnknownStreamIsAnError(t *testing.T) {
	cfg := mixedSpool(t)
	for _, name := range []string{"plnat", "*", "../seg/plant"} {
		if r, err := VerifyRunning(t.Context(), cfg, VerifyOptions{Stream: name}); err == nil {
			t.Errorf("%s: %d segments are sound", name, r.Segments)
		}
	}
	if r, err := VerifyRunning(t.Context(), cfg, VerifyOptions{Stream: "plant"}); err != nil || r.Segments == 0 {
		t.Errorf("%d segments, %v", r.Segments, err)
	}
}
