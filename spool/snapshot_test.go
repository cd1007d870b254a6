package spool

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// copySnapshot makes a spool's directory of a snapshot.
func copySnapshot(t *testing.T, s *Spool, n *Snapshot, dir string) {
	t.Helper()
	var streams []string
	for _, se := range n.Segments {
		streams = append(streams, se.Stream)
	}
	if err := MakeTree(dir, streams); err != nil {
		t.Fatal(err)
	}
	for _, se := range n.Segments {
		f, err := s.SealedFile(se.Stream, se.Sequence)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Bytes))
		if err != nil || int64(len(b)) != se.Bytes {
			t.Fatalf("%d bytes of %d: %v", len(b), se.Bytes, err)
		}
		if err := os.WriteFile(SegmentFile(dir, se.Stream, se.Sequence), b, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(n.Meta)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "meta.db"), b, 0o640); err != nil {
		t.Fatal(err)
	}
}

// A snapshot that is taken while others append has everything that was acknowledged before it, and starts as a spool of its own.
func TestSnapshotHasWhatWasAcknowledgedBeforeIt(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 300)
	put(t, s, Entry{Changes: []Change{{Space: "sessions", Key: "device-1", Value: []byte("subscribed")}}})
	c.Commit(0, 120)
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	appended := make(chan struct{})
	go func() {
		defer close(appended)
		for i := 300; ctx.Err() == nil; i++ {
			if s.Append(ctx, Entry{Record: testRecord(i)}) != nil {
				return
			}
		}
	}()
	n, err := s.Snapshot(t.Context(), filepath.Join(t.TempDir(), "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	<-appended
	dir := filepath.Join(t.TempDir(), "restored")
	copySnapshot(t, s, n, dir)
	n.Release()
	n.Release()

	log, logger := logTo(t)
	cfg := smallConfig(dir, oneStream(nil))
	cfg.Encryption = s.cfg.Encryption
	r := mustOpen(t, cfg, Options{Logger: logger})
	got, gaps := readAll(t, r, DefaultStream, 0, 0)
	if len(gaps) != 0 || len(got) < 300 {
		t.Fatalf("%d records, gaps %v", len(got), gaps)
	}
	wantPayloads(t, got, 0, len(got))
	value := ""
	if err := r.Load("sessions", func(k string, v []byte) error { value += fmt.Sprint(k, "=", string(v)); return nil }); err != nil || value != "device-1=subscribed" {
		t.Errorf("sessions: %q, %v", value, err)
	}
	rc, err := r.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil || rc.Position(0) != 120 {
		t.Errorf("cursor at %d: %v", rc.Position(0), err)
	}
	if log.contains("level=ERROR") || log.contains("level=WARN") {
		t.Error("the restored spool complains")
	}
	putMany(t, r, len(got), len(got)+10)
	if _, end := r.Bounds(DefaultStream, 0); end != Offset(len(got)+10) {
		t.Errorf("log end %d: offsets do not go on", end)
	}
}
