package spool

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// A cursor that is due together with an entry of the largest size makes a frame that no journal file can hold.
func TestLargestEntryAndACursorGoIntoFramesOfTheirOwn(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.QueueSize, cfg.TailSize, cfg.CommitInterval = 8<<20, 16<<20, unit.Duration(time.Minute)
	s := mustOpen(t, cfg, Options{})
	c, err := s.OpenCursor(t.Context(), strings.Repeat("c", 1000), DefaultStream, CursorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 10)
	c.Commit(0, 5)
	r := &Record{Topic: "a", ClientID: "b", Payload: make([]byte, s.maxEntry)}
	r.Payload = r.Payload[:2*s.maxEntry-stringLen(encodedSize(r, 0))]
	s.cursorsDue.Store(true)
	put(t, s, Entry{Record: r})
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCursorsThatNoJournalFileCanHoldAreWrittenInParts(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Partitions = 1024 }))
	cfg.CommitInterval = unit.Duration(time.Minute)
	s := mustOpen(t, cfg, Options{})
	put(t, s, Entry{Record: testRecord(0)})
	written := s.streams[0].partitionFor(testRecord(0)).num
	var cursors []*Cursor
	for i := range 1200 {
		c, err := s.OpenCursor(t.Context(), fmt.Sprint(i), DefaultStream, CursorOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cursors = append(cursors, c)
	}
	put(t, s, Entry{Record: testRecord(0)})
	for _, c := range cursors {
		c.Commit(written, 2)
	}
	for _, c := range cursors {
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFlushEndsWhenTheJournalFailsMeanwhile(t *testing.T) {
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{})
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	putMany(t, s, 0, 10)
	c.Commit(0, 5)
	done := make(chan error)
	go func() { done <- s.waitForCursors(context.Background(), make(chan struct{})) }()
	eventually(t, "waiting", func() bool { return s.cursorsDue.Load() || !s.cursors.dirty() })
	s.fail(syscall.EIO)
	select {
	case err := <-done:
		if err == nil {
			t.Error("nothing was written")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("hangs")
	}
}
