package segment

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestGuardSurvivesAMemoryFault(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "map"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(pageSize); err != nil {
		t.Fatal(err)
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, pageSize, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(m) }()
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	var ce *CorruptionError
	if err := guard("map", func() error { _ = string(m); return nil }); !errors.As(err, &ce) || ce.Path != "map" {
		t.Errorf("fault: %v", err)
	}
	if err := guard("map", func() error { panic("assertion failed") }); !errors.As(err, &ce) {
		t.Errorf("panic: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a broken promise of our own code was taken for damage")
		}
	}()
	_ = guard("map", func() error { panic("BUG: here") })
}

func TestLimitedLeavesBehindWhatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free, dropped := make(chan struct{}), make(chan int, 1)
		v, err := limited("file", time.Minute, func() (int, error) { <-free; return 7, nil }, func(v int) { dropped <- v })
		var ce *CorruptionError
		if v != 0 || !errors.As(err, &ce) {
			t.Errorf("stuck: %d %v", v, err)
		}
		close(free)
		if got := <-dropped; got != 7 {
			t.Errorf("dropped %d", got)
		}
	})
}
