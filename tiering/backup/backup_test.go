package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type durable chan error

func (d durable) Durable(_ *spool.Record, err error) { d <- err }

func appendOne(ctx context.Context, s *spool.Spool, i int) error {
	d := make(durable, 1)
	e := spool.Entry{
		Record: &spool.Record{Topic: "plant/1", ClientID: fmt.Sprint("device-", i%7), Payload: fmt.Append(nil, i), QoS: 1}, Done: d,
		Changes: []spool.Change{{Space: "sessions", Key: fmt.Sprint("device-", i%7), Value: fmt.Append(nil, i)}},
	}
	if err := s.Append(ctx, e); err != nil {
		return err
	}
	return <-d
}

// payloads reads everything.
func payloads(t *testing.T, s *spool.Spool) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	if _, err := s.Dump(t.Context(), spool.DumpQuery{Stream: spool.DefaultStream, Partition: -1}, func(i spool.DumpItem) error {
		if i.Record == nil {
			return fmt.Errorf("gap %+v", i.Gap)
		}
		if seen[string(i.Record.Payload)] {
			return fmt.Errorf("%s comes twice", i.Record.Payload)
		}
		seen[string(i.Record.Payload)] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return seen
}

// Made while others publish, a backup has every message that was acknowledged before it, and the state of sessions and cursors; the
// second one stores only what the first does not have.
func TestBackupUnderLoadHasAllThatWasAcknowledgedBefore(t *testing.T) {
	s := spooltest.Open(t)
	root := t.TempDir()
	st, err := store.OpenDir(filepath.Join(root, "backups"))
	if err != nil {
		t.Fatal(err)
	}
	cursor, err := s.OpenCursor(t.Context(), "route/telemetry", spool.DefaultStream, spool.CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var acked atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			if appendOne(ctx, s, i) != nil {
				return
			}
			acked.Store(int64(i + 1))
		}
	}()
	for acked.Load() < 200 {
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
	}
	cursor.Commit(0, 3)
	if err := cursor.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		before := int(acked.Load())
		info, err := Create(t.Context(), s, st, Options{Gateway: "edge-1", Scratch: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if round > 0 && info.Sent >= info.Bytes() {
			t.Errorf("backup %d sent all %d bytes again", round, info.Sent)
		}
		cfg := spooltest.Config(filepath.Join(root, fmt.Sprint("restored-", round)))
		read, err := Read(t.Context(), st, "latest")
		if err != nil || read.ID != info.ID {
			t.Fatalf("latest is %v: %v", read, err)
		}
		if err := Restore(t.Context(), st, read, cfg, nil); err != nil {
			t.Fatal(err)
		}
		r := spooltest.OpenConfig(t, cfg, spool.Options{})
		seen := payloads(t, r)
		for i := range before {
			if !seen[fmt.Sprint(i)] {
				t.Fatalf("backup %d: record %d of %d is missing; it has %d", round, i, before, len(seen))
			}
		}
		sessions := 0
		if err := r.Load("sessions", func(key string, v []byte) error {
			sessions++
			if !seen[string(v)] {
				return fmt.Errorf("%s is at %s, whose record is not there", key, v)
			}
			return nil
		}); err != nil || sessions != 7 {
			t.Errorf("backup %d: %d sessions: %v", round, sessions, err)
		}
		c, err := r.OpenCursor(t.Context(), "route/telemetry", spool.DefaultStream, spool.CursorOptions{Protect: true})
		if err != nil || c.Position(0) != 3 {
			t.Errorf("backup %d: cursor at %d: %v", round, c.Position(0), err)
		}
		if err := appendOne(t.Context(), r, 1_000_000); err != nil {
			t.Errorf("the restored spool takes nothing: %v", err)
		}
	}
	stop()
	<-ended
	if _, err := Create(t.Context(), s, st, Options{Gateway: "edge-2", Scratch: t.TempDir()}); !errors.Is(err, ErrOther) {
		t.Errorf("a backup among those of another gateway: %v", err)
	}
	removed, err := Prune(t.Context(), st, 1)
	if err != nil || len(removed) != 2 {
		t.Fatalf("removed %v: %v", removed, err)
	}
	info, err := Read(t.Context(), st, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), st, info, spooltest.Config(filepath.Join(root, "after-prune")), nil); err != nil {
		t.Errorf("after a prune: %v", err)
	}
}

// Nothing is restored that is not whole, and nothing over something else.
func TestRestoreRefusesWhatIsDamaged(t *testing.T) {
	s := spooltest.Open(t)
	for i := range 50 {
		if err := appendOne(t.Context(), s, i); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	st, err := store.OpenDir(filepath.Join(root, "b"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := Create(t.Context(), s, st, Options{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := spooltest.Config(filepath.Join(root, "restored"))
	for _, key := range []string{info.Segments[0].Key, info.Meta.Key, "backups/" + info.ID + "/backup.json"} {
		path := filepath.Join(root, "b", key)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for what, b := range map[string][]byte{"cut": whole[:len(whole)/2], "flipped": append(append([]byte{}, whole[:len(whole)/2]...), append([]byte{whole[len(whole)/2] ^ 1}, whole[len(whole)/2+1:]...)...)} {
			if err := os.WriteFile(path, b, 0o640); err != nil {
				t.Fatal(err)
			}
			read, err := Read(t.Context(), st, info.ID)
			if err == nil {
				err = Restore(t.Context(), st, read, cfg, nil)
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s, %s: %v", key, what, err)
			}
			if _, err := os.Stat(cfg.Dir); err == nil {
				t.Fatalf("%s, %s: there is a directory", key, what)
			}
		}
		if err := os.WriteFile(path, whole, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	unfinished := cfg.Dir + ".restoring-1" // of a restore that was killed
	if err := os.MkdirAll(filepath.Join(unfinished, "seg"), 0o750); err != nil {
		t.Fatal(err)
	}
	// Every read breaks off: it goes on where it was.
	faulty := storetest.NewFaulty(st)
	cuts := 0
	faulty.Cut(func(_ string, offset, _ int64) (int64, bool) { cuts++; return 3000, offset < 9000 })
	if err := Restore(t.Context(), faulty, info, cfg, nil); err != nil || cuts < 4 {
		t.Fatalf("%d reads: %v", cuts, err)
	}
	if err := Restore(t.Context(), st, info, cfg, nil); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("over a spool: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(root, "*.restoring*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
