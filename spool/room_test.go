package spool

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Who reads that the spool is full has to know which of the limits it is, and who waits.
func TestFullSpoolNamesTheLimitAndWhoWaits(t *testing.T) {
	s, fs := fullSpool(t, FullBlock)
	f := func(want ...string) {
		t.Helper()
		s.checkRoom()
		err := s.Health()
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("health %v, want %q", err, w)
			}
		}
	}
	f("spool.min_free is 1MiB: free space there, or lower it", "0B are free", "most is kept for cursor route, which is 200 records behind")
	fs.free.Store(1 << 40)
	s.noSpace.Store(true)
	f("refuses to take more (no space, or a quota)")
	s.noSpace.Store(false)
	s.checkRoom()
	if err := s.Health(); err != nil {
		t.Error(err)
	}
	cfg := s.cfg
	mustClose(t, s)
	cfg.MaxSize = 8 << 20 // 4 MiB are the journal's, 2 MiB are kept free
	s = mustOpen(t, cfg, Options{FS: fs})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 24 {
		r := testRecord(0)
		r.Payload = make([]byte, 0, 100<<10)
		for len(r.Payload) < 100<<10 { // does not compress
			r.Payload = binary.LittleEndian.AppendUint64(r.Payload, rng.Uint64())
		}
		put(t, s, Entry{Record: r})
	}
	rollAll(t, s)
	f("of spool.max_size 8MiB are used", "raise it")
}

func TestMaxSizeThatDoesNotFitIsToldOf(t *testing.T) {
	for free, want := range map[int64]bool{1 << 20: true, 500 << 20: true, 2 << 30: false} {
		fs := &freeFS{FS: vfs.OS}
		fs.free.Store(free)
		l, log := logTo(t)
		mustClose(t, mustOpen(t, smallConfig(t.TempDir(), oneStream(nil)), Options{FS: fs, Logger: log}))
		if got := l.contains("spool.max_size does not fit on the disk"); got != want {
			t.Errorf("%d bytes free: told %v, want %v", free, got, want)
		}
	}
}
