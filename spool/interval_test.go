package spool

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

func TestIntervalModeAcknowledgesBeforeTheSync(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.Sync, cfg.SyncInterval = SyncInterval, unit.Duration(time.Minute)
	s := mustOpen(t, cfg, Options{})
	s.materialiseMu.Lock() // which would sync the journal
	putMany(t, s, 0, 100)
	put(t, s, Entry{Changes: []Change{{"a", "k", []byte("v")}}})
	if d, l := s.journal.DurableLSN(), s.journal.LastLSN(); d >= l {
		t.Errorf("durable up to %d of %d", d, l)
	}
	s.materialiseMu.Unlock()
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	s.materialiseMu.Lock()
	if applied, d := s.metaApplied, uint64(s.journal.DurableLSN()); applied > d {
		t.Errorf("meta.db names position %d, durable is %d: a power cut would give it to another frame", applied, d)
	}
	s.materialiseMu.Unlock()
	dir := t.TempDir()
	image(t, s, dir) // kill -9 loses nothing
	cfg.Dir = dir
	s = mustOpen(t, cfg, Options{})
	got, _ := readAll(t, s, DefaultStream, 0, 0)
	wantPayloads(t, got, 0, 100)
}
