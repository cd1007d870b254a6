package spool

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

// A start that is told to stop does not wait for room on the disk.
func TestOpenCursorOnAFullDiskEndsWithItsContext(t *testing.T) {
	fs := vfstest.NewFaults(vfs.OS)
	s := mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{FS: fs})
	if _, err := s.OpenCursor(t.Context(), "old", DefaultStream, CursorOptions{}); err != nil {
		t.Fatal(err)
	}
	fs.Add(vfstest.Fault{Kind: vfstest.Write, Times: -1, N: 1, Err: syscall.ENOSPC})
	f := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		told, before := make(chan error, 1), fs.Hits()
		go func() { told <- call(ctx) }()
		eventually(t, "the disk is full", func() bool { return fs.Hits() > before })
		select {
		case err := <-told:
			t.Errorf("%s on a full disk: %v", what, err)
			cancel()
			return
		default:
		}
		cancel()
		if err := <-told; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	f("open", func(ctx context.Context) error {
		_, err := s.OpenCursor(ctx, "route", DefaultStream, CursorOptions{Protect: true})
		return err
	})
	f("drop", func(ctx context.Context) error { return s.DropCursor(ctx, "old") })
	fs.Clear()
	c, err := s.OpenCursor(t.Context(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil || c.Flush(t.Context()) != nil {
		t.Errorf("with room again: %v", err)
	}
	mustClose(t, s)
}
