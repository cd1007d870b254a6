package spool

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The own time never goes back, also when meta.db, which has it, is lost while the wall clock is wrong: the segments say how far it was.
func TestOwnTimeGoesOnWithoutMeta(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"missing": os.Remove,
		"damaged": func(path string) error { return os.Truncate(path, 5000) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newWallClock()
			cfg := smallConfig(t.TempDir(), oneStream(nil))
			s := mustOpen(t, cfg, m.options())
			putMany(t, s, 0, 50)
			mustClose(t, s)
			m.pass(time.Hour, 0)
			s = mustOpen(t, cfg, m.options())
			rollAll(t, s)
			sealed := s.clock.now()
			mustClose(t, s)

			m.pass(0, -60*year)
			m.reboot()
			if err := remove(filepath.Join(cfg.Dir, "meta.db")); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, cfg, m.options())
			if got := s.clock.now(); got < sealed {
				t.Errorf("own time went back by %v", time.Duration(sealed-got))
			}
			if d := s.Now().Sub(m.now()); d > time.Second || d < -time.Second {
				t.Errorf("the wall clock is told with %v between", d)
			}
		})
	}
}
