package spool

import "testing"

// A journal whose files all hold frames that were applied before the stop is free after the start: the first append must not
// wait for a release that nobody gives.
func TestRestartFreesTheJournal(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	size := int64(cfg.Journal.FileSize) * int64(cfg.Journal.Files)
	for n := 0; s.journal.Stats().Bytes < uint64(size); n += 100 {
		putMany(t, s, n, n+100)
	}
	mustClose(t, s)
	s = mustOpen(t, cfg, Options{})
	if room := s.journal.Room(); room < size/2 {
		t.Errorf("room for %d of %d bytes after a start with nothing to replay", room, size)
	}
	put(t, s, Entry{Record: testRecord(0)})
}
