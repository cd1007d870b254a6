package spool

import (
	"errors"
	"testing"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// FuzzRecovery opens a spool whose journal has a frame of any content: a frame that is sound as a frame, but was written by
// a program with a fault, or by a newer one. It may refuse as unsupported; else it opens, and works.
func FuzzRecovery(f *testing.F) {
	g := new(group)
	g.reset()
	p := newStream(oneStream(nil), 0).parts[0]
	for i := range 3 {
		g.add(p, testRecord(i), weight{100, 100, 0}, nil)
	}
	g.addChanges([]Change{{"space", "key", []byte("v")}, {cursorSpace, "c", []byte{1, 0, 0, 0}}})
	f.Add(g.appendPayload(nil))
	g.sections[0].base = 1 << 40
	f.Add(g.appendPayload(nil))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) == 0 {
			return
		}
		cfg := smallConfig(t.TempDir(), oneStream(nil))
		cfg.Journal.Files = 2
		dir := cfg.Dir + "/journal"
		if err := vfs.OS.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		j, err := journal.Open(journal.Config{Dir: dir, FileSize: 1 << 20, Files: 2}, journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Replay(0, func(journal.LSN, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if _, _, err := j.Append(payload); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := Open(cfg, Options{})
		if errors.Is(err, ErrUnsupported) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, Entry{Record: testRecord(7)})
		for _, st := range s.Streams() {
			for p := range min(st.Partitions, 4) {
				readAll(t, s, st.Name, p, 0)
			}
		}
		mustClose(t, s)
	})
}
