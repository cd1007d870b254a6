package segment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// child is what this test binary does when a test starts it with SEGMENT_CHILD set to "job path".
func child(job string) int {
	name, path, _ := strings.Cut(job, " ")
	switch name {
	case "write":
		return childWrite(path)
	case "read":
		return childRead(path)
	}
	return 3
}

func startChild(t *testing.T, job string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SEGMENT_CHILD="+job)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// killBatch is the batch that childWrite writes with applied position n.
func killBatch(n uint64) Batch {
	return batch(rand.New(rand.NewPCG(n, 0)), uint16(n%3), n*1000, 1+int(n*37%200))
}

func childWrite(path string) int {
	s, err := Open(path, Options{Codec: CodecS2})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for n := s.Applied() + 1; ; n++ {
		if err := s.Write(n, []Batch{killBatch(n)}); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(n)
	}
}

func TestKillLosesNothingThatWasWritten(t *testing.T) {
	rounds := 4
	if os.Getenv("SEGMENT_LONG") != "" {
		rounds = 60
	}
	s := mustCreate(t, Options{Codec: CodecS2})
	path := s.Path()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for round := range rounds {
		cmd, lines := startChild(t, "write "+path)
		var last uint64
		for until := rng.IntN(40); lines.Scan(); until-- {
			n, err := strconv.ParseUint(lines.Text(), 10, 64)
			if err != nil {
				t.Fatal(lines.Text())
			}
			if last = n; until <= 0 {
				break
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it had printed before it died
			if n, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
				last = n
			}
		}
		_ = cmd.Wait()
		s, err := Open(path, Options{})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if s.Applied() < last {
			t.Fatalf("round %d: applied %d, the child had %d", round, s.Applied(), last)
		}
		found := uint64(0)
		for p := range uint16(3) {
			_, err := s.Read(p, 0, 1<<40, func(b Batch) error {
				found++
				if want := killBatch(b.Base / 1000); !same(b, want) {
					t.Errorf("round %d: batch %d differs", round, b.Base)
				}
				return nil
			})
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if found != s.Applied() {
			t.Fatalf("round %d: %d batches, applied %d", round, found, s.Applied())
		}
		if err := errors.Join(s.Verify(context.Background()), s.Close()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// pristine is the segment whose copies are damaged. Each offset belongs to a batch that can be made again.
const (
	pristineBatches    = 60
	pristinePartitions = 3
)

func pristineBatch(i int) Batch {
	return batch(rand.New(rand.NewPCG(uint64(i), 99)), uint16(i%pristinePartitions), uint64(i/pristinePartitions)*400, 400-i%2*390)
}

func writePristine(t *testing.T, seal bool) []byte {
	t.Helper()
	s := mustCreate(t, Options{Codec: CodecZstd, Stream: "plant"})
	for i := range pristineBatches {
		b := pristineBatch(i)
		b.Next = b.Base + 400 // dense, so that what is missing shows
		mustWrite(t, s, uint64(i+1), b)
	}
	if seal {
		if err := s.Seal(context.Background(), indexBody); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	v, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// childRead uses each damaged file in every way. Exit 0: nothing wrong came out, what is missing was named.
func childRead(dir string) int {
	names, err := filepath.Glob(filepath.Join(dir, "*.db"))
	if err != nil || len(names) == 0 {
		fmt.Println("no files", err)
		return 2
	}
	bad := 0
	for _, path := range names {
		fmt.Println("file", filepath.Base(path)) // the last one printed is the one that ended the process
		verdict, err := useDamaged(path)
		fmt.Println("verdict", verdict, err)
		if verdict == "silent" {
			bad++
		}
	}
	return bad
}

func useDamaged(path string) (verdict string, err error) {
	s, err := Open(path, Options{})
	if err != nil {
		return "open", typed(err)
	}
	defer s.Close()
	for p := range uint16(pristinePartitions) {
		at, end := uint64(0), uint64(pristineBatches/pristinePartitions*400)
		for at < end {
			next, rerr := s.Read(p, at, 1<<30, func(b Batch) error {
				i := int(b.Base/400)*pristinePartitions + int(p)
				want := pristineBatch(i)
				want.Next = want.Base + 400
				if b.Base != at || !same(b, want) {
					return fmt.Errorf("silent: partition %d at %d: got batch %d", p, at, b.Base)
				}
				at = b.Next
				return nil
			})
			at = next
			if rerr == nil {
				if in := s.Info(); at != end && in.MetaDamaged && in.Applied == pristineBatches-1 {
					verdict = "stale" // and says so
				} else if at != end {
					return "silent", fmt.Errorf("partition %d ends at %d", p, at)
				}
				break
			}
			if strings.Contains(rerr.Error(), "silent") {
				return "silent", rerr
			}
			verdict, err = "read", typed(rerr)
			var ce *CorruptionError
			if errors.As(rerr, &ce) && ce.Partition >= 0 {
				at = max(at, ce.Base)
			}
			base, ok, serr := s.Skip(p, at)
			if serr != nil || !ok {
				break
			}
			at = base
		}
	}
	_, _, e1 := s.SeekTime(1, int64(4000)*int64(time.Millisecond))
	_, e2 := s.Lookup(KindTopic, func(string) bool { return true })
	e3 := s.Verify(context.Background())
	if errors.Is(e2, ErrNotSealed) {
		e2 = nil
	}
	for _, e := range []error{e1, e2, e3} {
		if e != nil && verdict == "" {
			verdict, err = "verify", typed(e)
		}
	}
	if verdict == "" {
		verdict = "harmless"
	}
	return verdict, err
}

// typed panics for an error without a meaning, so that the child dies and the test shows it.
func typed(err error) error {
	var ce *CorruptionError
	if !errors.As(err, &ce) && !errors.Is(err, ErrUnsupported) {
		panic(fmt.Sprintf("BUG: untyped error %v", err))
	}
	return err
}

// damages are the ways in which a file is spoilt.
var damages = []struct {
	name string
	do   func(rng *rand.Rand, v []byte) []byte
}{
	{"bitflip", func(rng *rand.Rand, v []byte) []byte { v[rng.IntN(len(v))] ^= 1 << rng.IntN(8); return v }},
	{"truncated", func(rng *rand.Rand, v []byte) []byte { return v[:rng.IntN(len(v))] }},
	{"header", func(rng *rand.Rand, v []byte) []byte {
		v[rng.IntN(len(v)/pageSize)*pageSize+rng.IntN(64)] ^= 1 << rng.IntN(8)
		return v
	}},
	{"meta", func(rng *rand.Rand, v []byte) []byte {
		v[rng.IntN(2)*pageSize+rng.IntN(80)] ^= 1 << rng.IntN(8)
		return v
	}},
	{"zeroed", func(rng *rand.Rand, v []byte) []byte {
		p := rng.IntN(len(v) / pageSize)
		clear(v[p*pageSize : (p+1)*pageSize])
		return v
	}},
	{"swapped", func(rng *rand.Rand, v []byte) []byte {
		a, b := rng.IntN(len(v)/pageSize), rng.IntN(len(v)/pageSize)
		copy(v[a*pageSize:(a+1)*pageSize], append([]byte(nil), v[b*pageSize:(b+1)*pageSize]...))
		return v
	}},
	{"noise", func(rng *rand.Rand, v []byte) []byte {
		for range 20 {
			v[rng.IntN(len(v))] = byte(rng.Uint32())
		}
		return v
	}},
	{"padded", func(rng *rand.Rand, v []byte) []byte { return append(v, make([]byte, rng.IntN(20000))...) }},
}

func TestDamageIsContained(t *testing.T) {
	perKind := 20 // times 8 ways, times sealed and active
	if os.Getenv("SEGMENT_LONG") != "" {
		perKind = 1000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, seal := range []bool{true, false} {
		v := writePristine(t, seal)
		if !seal {
			path := filepath.Join(t.TempDir(), "active.db")
			if err := os.WriteFile(path, v, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			tree, err := checkTree(f, int64(len(v)), true)
			_ = f.Close()
			if err != nil {
				t.Fatal(err)
			}
			v = v[:tree.pages*pageSize] // what lies behind is empty
		}
		verdicts := map[string]int{}
		for _, d := range damages {
			dir := t.TempDir()
			for i := range perKind {
				path := filepath.Join(dir, fmt.Sprintf("%s-%04d.db", d.name, i))
				if err := os.WriteFile(path, d.do(rng, append([]byte(nil), v...)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd, lines := startChild(t, "read "+dir)
			last := ""
			for lines.Scan() {
				what, rest, _ := strings.Cut(lines.Text(), " ")
				switch what {
				case "file":
					last = rest
				case "verdict":
					verdict, detail, _ := strings.Cut(rest, " ")
					verdicts[verdict]++
					if verdict == "silent" {
						t.Errorf("seed %d sealed %v %s: %s", seed, seal, last, detail)
					}
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("seed %d sealed %v %s: the process ended: %v", seed, seal, last, err)
			}
		}
		t.Logf("sealed %v: %v", seal, verdicts)
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	v := writePristine(t, true)
	f := func(name string, do func(v []byte) []byte, check func(error) bool) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "a.db")
		if err := os.WriteFile(path, do(append([]byte(nil), v...)), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, Options{})
		if err == nil {
			_ = s.Close()
		}
		if !check(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := VerifyFile(context.Background(), path); !check(err) {
			t.Errorf("%s: verify: %v", name, err)
		}
	}
	corrupt := func(err error) bool { var ce *CorruptionError; return errors.As(err, &ce) }
	f("empty", func([]byte) []byte { return nil }, corrupt)
	f("short", func(v []byte) []byte { return v[:5000] }, corrupt)
	f("half", func(v []byte) []byte { return v[:len(v)/2] }, corrupt)
	f("wrong magic", func(v []byte) []byte { clear(v[:2*pageSize]); return v }, corrupt)
	f("other file", func(v []byte) []byte { return []byte(strings.Repeat("not a database. ", 5000)) }, corrupt)
	f("newer format", func(v []byte) []byte { return replaceMeta(t, v, "format", newerFormat) },
		func(err error) bool { return errors.Is(err, ErrUnsupported) && !corrupt(err) })
	f("newer state", func(v []byte) []byte { return replaceMeta(t, v, "state", newerState) },
		func(err error) bool { return errors.Is(err, ErrUnsupported) && !corrupt(err) })
	if _, err := Open(filepath.Join(t.TempDir(), "missing.db"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := Open(t.TempDir(), Options{}); err == nil {
		t.Error("a directory was opened")
	}
}
