package journal

import (
	"errors"
	"hash/crc32"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "/j"

// small is a configuration whose files hold 15 blocks, so that tests meet the ends of files all the time.
func small() Config { return Config{Dir: testDir, FileSize: 64 << 10, Files: 3} }

// openOn opens a journal on fsys with epochs that differ between calls but not between runs of the test.
func openOn(t testing.TB, fsys vfs.FS, cfg Config) *Journal {
	t.Helper()
	j, err := tryOpen(fsys, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func tryOpen(fsys vfs.FS, cfg Config) (*Journal, error) {
	return open(cfg, Options{FS: fsys, Sealer: testSealer}, rand.Uint64)
}

// quiesce waits until the keeper has nothing to do: from then on only the test uses the disk.
func (j *Journal) quiesce() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.busy > 0 || len(j.released) > 0 || len(j.doomed) > 0 || len(j.ready)+len(j.retired) == 0 ||
		j.liveLocked() > j.cfg.Files && len(j.ready) > 1 ||
		j.madeErr == nil && j.failed == nil && j.liveLocked() < j.cfg.Files {
		j.cond.Wait()
	}
}

// body is a payload that can be told from all others by its bytes.
func body(tag string, n int) []byte {
	h := fnv.New64a()
	h.Write([]byte(tag))
	r := rand.New(rand.NewPCG(h.Sum64(), 1))
	b := []byte(tag + "|")
	for len(b) < n {
		b = append(b, byte(r.Uint32()))
	}
	return b[:max(n, len(tag)+1)]
}

// contents replays everything after an LSN.
func contents(t testing.TB, j *Journal, after LSN) (map[LSN]string, []Range) {
	t.Helper()
	got := map[LSN]string{}
	prev := after
	err := j.Replay(after, func(lsn LSN, p []byte) error {
		if lsn <= prev {
			t.Errorf("replay of %d after %d", lsn, prev)
		}
		prev = lsn
		got[lsn] = string(p)
		return nil
	})
	if loss, ok := errors.AsType[*LossError](err); ok {
		return got, loss.Lost
	}
	if err != nil {
		t.Fatal(err)
	}
	return got, nil
}

func mustAppend(t testing.TB, j *Journal, payloads ...string) (first, last LSN) {
	t.Helper()
	var b [][]byte
	for _, p := range payloads {
		b = append(b, []byte(p))
	}
	first, last, err := j.Append(b...)
	if err != nil {
		t.Fatal(err)
	}
	return first, last
}

// poke changes bytes of a file behind everybody's back.
func poke(t testing.TB, d vfs.FS, name string, off int64, b []byte) {
	t.Helper()
	f, err := d.OpenFile(testDir+"/"+name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, got map[LSN]string, from LSN, payloads ...string) {
	t.Helper()
	if len(got) != len(payloads) {
		t.Errorf("%d payloads, want %d: %v", len(got), len(payloads), got)
	}
	for i, p := range payloads {
		if g := got[from+LSN(i)]; g != p {
			t.Errorf("lsn %d: %.40q, want %.40q", from+LSN(i), g, p)
		}
	}
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
