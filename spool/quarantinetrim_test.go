package spool

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

func TestQuarantineIsBounded(t *testing.T) {
	names := func(cfg Config) string {
		var list []string
		for _, path := range quarantined(t, cfg) {
			list = append(list, filepath.Base(path))
		}
		return strings.Join(list, " ")
	}
	put := func(cfg Config, name string) {
		if err := os.WriteFile(filepath.Join(cfg.Dir, "quarantine", name), make([]byte, 100<<10), 0o640); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the file system's clock, by which they are ordered, is coarse
	}
	t.Run("size", func(t *testing.T) {
		cfg := smallConfig(t.TempDir(), oneStream(nil))
		cfg.Quarantine.MaxSize = 250 << 10
		log, logger := logTo(t)
		s := mustOpen(t, cfg, Options{Logger: logger})
		before := s.Stats().BytesOnDisk
		s.cleanMu.Lock() // no round of the janitor in between
		for _, name := range []string{"c", "a", "d", "b"} {
			put(cfg, name)
		}
		s.cleanMu.Unlock()
		s.clean(t.Context())
		if got := names(cfg); got != "b d" {
			t.Errorf("kept %q, the two that came last are d and b", got)
		}
		if got := s.Stats().BytesOnDisk - before; got < 200<<10 {
			t.Errorf("quarantine counts with %d bytes", got)
		}
		if !log.contains("damaged file was removed from quarantine") {
			t.Error("nobody was told")
		}
		if err := os.Remove(filepath.Join(cfg.Dir, "quarantine", "d")); err != nil {
			t.Fatal(err)
		}
		s.clean(t.Context())
		if got := s.quarantineBytes.Load(); got != 100<<10 {
			t.Errorf("after somebody has taken a file: %d bytes", got)
		}
	})
	t.Run("age", func(t *testing.T) {
		cfg := smallConfig(t.TempDir(), oneStream(nil))
		cfg.Quarantine.MaxAge = unit.Duration(time.Hour)
		now := time.Now()
		s := mustOpen(t, cfg, Options{Now: func() time.Time { return now }, Monotonic: func() time.Duration { return 0 }})
		put(cfg, "a")
		s.clean(t.Context())
		if got := names(cfg); got != "a" {
			t.Fatalf("kept %q", got)
		}
		mustClose(t, s)
		now = now.Add(2 * time.Hour)
		s = mustOpen(t, cfg, Options{Now: func() time.Time { return now }, Monotonic: func() time.Duration { return 0 }})
		s.clean(t.Context())
		if got := names(cfg); got != "" {
			t.Errorf("kept %q", got)
		}
	})
	t.Run("age, and the wall clock is set", func(t *testing.T) {
		cfg := smallConfig(t.TempDir(), oneStream(nil))
		cfg.Quarantine.MaxAge = unit.Duration(time.Hour)
		began := time.Now()
		var ran, set atomic.Int64
		opts := Options{
			Now:       func() time.Time { return began.Add(time.Duration(ran.Load() + set.Load())) },
			Monotonic: func() time.Duration { return time.Duration(ran.Load()) },
		}
		s := mustOpen(t, cfg, opts)
		s.cleanMu.Lock()
		put(cfg, "a")
		s.cleanMu.Unlock()
		s.clean(t.Context())
		for _, d := range []time.Duration{year, -year} {
			set.Store(int64(d))
			if s.clean(t.Context()); names(cfg) != "a" {
				t.Fatalf("nothing is kept when the clock is set by %v", d)
			}
		}
		ran.Store(int64(61 * time.Minute))
		if s.clean(t.Context()); names(cfg) != "" {
			t.Errorf("kept %q for longer than an hour", names(cfg))
		}
	})
}
