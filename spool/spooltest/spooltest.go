package spooltest

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// Config is a configuration with files and buffers that are small enough for hundreds of tests, and that roll early.
func Config(dir string, streams ...spool.StreamConfig) spool.Config {
	cfg := spool.DefaultConfig()
	cfg.Dir = dir
	cfg.MaxSize = 1 << 30
	cfg.MinFree = 1 << 20
	cfg.QueueSize = 4 << 20
	cfg.TailSize = 16 << 20
	cfg.CommitInterval = unit.Duration(5 * time.Millisecond)
	cfg.Journal = spool.JournalConfig{FileSize: 4 << 20, Files: 2}
	cfg.Segment.MaxSize = 4 << 20
	cfg.Segment.Codec = "s2"
	cfg.Streams = streams
	return cfg
}

// Open opens a spool in a new directory. When the test ends, it is closed, and its directory is verified.
func Open(t testing.TB, streams ...spool.StreamConfig) *spool.Spool {
	t.Helper()
	return OpenConfig(t, Config(t.TempDir(), streams...), spool.Options{})
}

// OpenConfig is Open with a configuration of the test's own.
func OpenConfig(t testing.TB, cfg spool.Config, opts spool.Options) *spool.Spool {
	t.Helper()
	s, err := spool.Open(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if !t.Failed() {
			if err := Verify(cfg); err != nil {
				t.Errorf("verify %s: %v", cfg.Dir, err)
			}
		}
	})
	return s
}
