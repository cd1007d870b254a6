package spool

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const childEnv = "FOREBAY_SPOOL_TEST_CHILD"

// runChild is the process that TestKilledSpoolKeepsWhatItAcknowledged kills: it appends numbered records, and says after
// each group which number is acknowledged, and what it asked its cursor to keep.
func runChild() bool {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return false
	}
	s, err := Open(killConfig(dir), Options{})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	c, err := s.OpenCursor(context.Background(), "route", DefaultStream, CursorOptions{Protect: true})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	out := bufio.NewWriter(os.Stdout)
	var acked, printed atomic.Int64
	s.OnGroup(func() {
		if a := acked.Load(); a > printed.Load() {
			fmt.Fprintln(out, "acked", a)
			out.Flush()
			printed.Store(a)
		}
	})
	_, end := s.Bounds(DefaultStream, 0)
	for i := int(end); ; i++ {
		r := testRecord(i)
		r.Payload = fmt.Appendf(nil, "value %d", i)
		e := Entry{Record: r, Changes: []Change{{Space: "last", Key: "n", Value: []byte(strconv.Itoa(i))}}}
		e.Done = completionFunc(func(rec *Record, err error) {
			if err != nil || rec.Offset != Offset(i) {
				fmt.Println("error", i, rec.Offset, err)
				os.Exit(1)
			}
			acked.Store(int64(i) + 1)
		})
		if err := s.Append(context.Background(), e); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		if i%1000 == 999 {
			c.Commit(0, Offset(i/2))
		}
		if i%5000 == 4999 {
			s.rollForRoom(s.streams[0])
		}
	}
}

func killConfig(dir string) Config {
	cfg := smallConfig(dir, oneStream(nil))
	cfg.QueueSize = 256 << 10
	return cfg
}

// TestKilledSpoolKeepsWhatItAcknowledged is invariants I1 to I4: after kill -9 everything acknowledged is there, in order,
// once, and the cursor is not ahead.
func TestKilledSpoolKeepsWhatItAcknowledged(t *testing.T) {
	rnd := newRand(t)
	dir := t.TempDir()
	acked := 0
	for round := range roundsOr(6) {
		acked = max(acked, killedChild(t, dir, time.Duration(50+rnd.IntN(400))*time.Millisecond))
		s, err := Open(killConfig(dir), Options{})
		if err != nil {
			t.Fatal(err)
		}
		start, end := s.Bounds(DefaultStream, 0)
		if start != 0 || int(end) < acked {
			t.Fatalf("round %d: bounds %d..%d, %d acknowledged", round, start, end, acked)
		}
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(gaps) > 0 {
			t.Fatalf("round %d: gaps %v", round, gaps)
		}
		wantPayloads(t, got, 0, int(end))
		for _, c := range s.Cursors() {
			if c.Positions[0] > end {
				t.Errorf("cursor at %d, end %d", c.Positions[0], end)
			}
		}
		if err := s.Load("last", func(_ string, v []byte) error {
			if n, _ := strconv.Atoi(string(v)); n+1 != int(end) {
				t.Errorf("round %d: state says %s, log ends at %d: they are one atomic piece", round, v, end)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
	}
	t.Logf("%d acknowledged", acked)
}

func killedChild(t *testing.T, dir string, after time.Duration) (acked int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break // a torn last line was not said
		}
		if strings.HasPrefix(line, "error") {
			t.Fatal(line)
		}
		if _, err := fmt.Sscanf(line, "acked %d", &acked); err != nil {
			t.Fatalf("child says %q", line)
		}
	}
	_ = cmd.Wait()
	return acked
}
