package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

const (
	restartChild  = "open-and-tell" // argument that makes this program a child
	restartTime   = 2               // s
	restartMemory = 200             // MiB
)

// measureRestart starts a spool with segments and a journal that no segment has yet.
func measureRestart(b *bench) error {
	b.section("start with %v of segments and a journal file to replay, nothing of them in the page cache (target: with 10GiB)", b.restart)
	dir, done, err := b.tempDir()
	if err != nil {
		return err
	}
	defer done()
	journal, err := buildCrashed(dir, b.restart)
	if err != nil {
		return err
	}
	kept := filepath.Join(filepath.Dir(dir), "kept")
	defer os.RemoveAll(kept)
	if err := keep(dir, kept, true); err != nil {
		return err
	}
	var took, memory []float64
	rounds := min(b.rounds, 3)
	var last string
	for i := range rounds {
		if i > 0 {
			if err := restore(kept, dir); err != nil {
				return err
			}
		}
		if err := chill(dir); err != nil {
			return err
		}
		out, err := exec.Command("/proc/self/exe", restartChild, dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		last = strings.TrimSpace(string(out))
		var ms, anon, replayed float64
		if _, err := fmt.Sscan(last, &ms, &anon, &replayed); err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		took, memory = append(took, ms/1e3), append(memory, anon/1024)
		last = fmt.Sprintf("%.0f MiB of journal, %.0f records replayed", float64(journal)/(1<<20), replayed)
	}
	b.add(atMost("start: time to ready", median(took), restartTime, "s", last, spread(took)))
	b.add(atMost("start: highest anonymous memory", median(memory), restartMemory, "MiB", "", false))
	return nil
}

func restartConfig(c *spool.Config) {
	c.Segment.Codec = "none" // fills the disk fastest; what is replayed is as much
}

// buildCrashed makes a directory as a power cut leaves it: segments, and a journal of which nothing is in them yet. For that
// meta.db and the segments are set back to what they were before the journal was filled.
func buildCrashed(dir string, size unit.Bytes) (journal int64, err error) {
	o, err := openSpool(dir, restartConfig, spool.Options{})
	if err != nil {
		return 0, err
	}
	if err := appendBytes(o, int64(size)); err != nil {
		return 0, err
	}
	if err := o.close(); err != nil {
		return 0, err
	}
	before := dir + ".before"
	defer os.RemoveAll(before)
	if err := keep(dir, before, false); err != nil {
		return 0, err
	}
	if o, err = openSpool(dir, restartConfig, spool.Options{}); err != nil {
		return 0, err
	}
	journal = 56 << 20 // a file of 64 MiB, less what padding takes: the file may not be switched, then it would be recycled
	if err := appendBytes(o, journal); err != nil {
		return 0, err
	}
	if err := o.close(); err != nil {
		return 0, err
	}
	return journal, restore(before, dir)
}

func appendBytes(o *ours, size int64) error {
	m := new(meter)
	const outstanding = 4096
	free := make(chan *slot, outstanding)
	for range outstanding {
		free <- &slot{m: m, free: free}
	}
	for n := 0; size > 0; n++ {
		r := record(n)
		size -= int64(len(r.Payload) + len(r.Topic) + len(r.ClientID) + 24)
		if err := o.append(r, <-free); err != nil {
			return err
		}
	}
	for range outstanding {
		<-free
	}
	o.settle()
	return m.err()
}

// keep copies meta.db, the journal when journal says so, and the last segment, and notes which segments there are: sealed
// ones never change.
func keep(dir, to string, journal bool) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	segs, err := filepath.Glob(filepath.Join(dir, "seg", "*", "*.db"))
	if err != nil {
		return err
	}
	files := []string{"meta.db"}
	var names bytes.Buffer
	for _, s := range segs {
		name, err := filepath.Rel(dir, s)
		if err != nil {
			return err
		}
		fmt.Fprintln(&names, name)
	}
	if len(segs) > 0 {
		files = append(files, strings.Fields(names.String())[len(segs)-1])
	}
	if journal {
		entries, err := os.ReadDir(filepath.Join(dir, "journal"))
		if err != nil {
			return err
		}
		for _, e := range entries {
			files = append(files, filepath.Join("journal", e.Name()))
		}
	}
	for _, name := range files {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(to, "segments"), names.Bytes(), 0o600)
}

// restore puts back what keep has kept, and removes segments that came later.
func restore(from, dir string) error {
	b, err := os.ReadFile(filepath.Join(from, "segments"))
	if err != nil {
		return err
	}
	segs, err := filepath.Glob(filepath.Join(dir, "seg", "*", "*.db"))
	if err != nil {
		return err
	}
	for _, s := range segs {
		if name, err := filepath.Rel(dir, s); err != nil || !strings.Contains(string(b), name+"\n") {
			if err := os.Remove(s); err != nil {
				return err
			}
		}
	}
	if _, err := os.Stat(filepath.Join(from, "journal")); err == nil {
		if err := os.RemoveAll(filepath.Join(dir, "journal")); err != nil {
			return err
		}
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "segments" {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return copyFile(path, filepath.Join(dir, rel))
	})
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.Close()
}

// openAndTell is the child: it opens the spool and tells milliseconds, the highest anonymous memory in KiB and how many
// records were replayed.
func openAndTell(dir string) error {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var highest int64
	wg.Go(func() {
		for {
			highest = max(highest, anonymous())
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	cfg := spool.DefaultConfig()
	cfg.Dir = dir
	cfg.MaxSize = 64 << 30
	restartConfig(&cfg)
	var replayed int64
	log := slog.New(replayHandler{&replayed})
	began := time.Now()
	s, err := spool.Open(cfg, spool.Options{Logger: log})
	took := time.Since(began)
	close(stop)
	wg.Wait()
	if err != nil {
		return err
	}
	fmt.Println(took.Milliseconds(), max(highest, anonymous()), replayed)
	return s.Close()
}

func anonymous() (kib int64) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if n, err := fmt.Sscanf(line, "RssAnon: %d", &kib); n == 1 && err == nil {
			return kib
		}
	}
	return 0
}

// replayHandler finds in the log how many records were replayed.
type replayHandler struct{ records *int64 }

func (h replayHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h replayHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "spool open" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "replayed_records" {
				*h.records = a.Value.Int64()
			}
			return true
		})
	}
	return nil
}

func (h replayHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h replayHandler) WithGroup(string) slog.Handler      { return h }
