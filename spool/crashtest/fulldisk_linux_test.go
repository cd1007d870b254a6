package crashtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFullDiskGoesOnWhenSpaceReturns fills a file system of 64 MB: partly by a file of somebody else, the rest by the spool.
// Nothing may be acknowledged that is not there, nothing damaged, and the same process goes on when the other file goes,
// and again when the cursors move and retention makes room. The power is cut at the end, and once while the disk is full.
func TestFullDiskGoesOnWhenSpaceReturns(t *testing.T) {
	t.Run("min_free", func(t *testing.T) { fillDisk(t, modeHold) })
	t.Run("no min_free", func(t *testing.T) { fillDisk(t, modeHold+" "+modeNoFree) })
	t.Run("encrypted", func(t *testing.T) { fillDisk(t, modeHold+" "+modeNoFree+" "+modeKey1) })
}

func fillDisk(t *testing.T, mode string) {
	r := newRig(t, "ext4", 64*mib)
	l := newLedger()
	r.Attach()
	ballast := filepath.Join(r.Mount, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 20*mib), 0o600); err != nil {
		t.Fatal(err)
	}

	l.begin()
	p := r.start(mode)
	untilFull(t, p, l)
	if err := p.stop(l.line); err != nil {
		t.Fatalf("%v\n%s", err, p.logText())
	}
	full := l.acks
	r.Cut(p.kill)

	r.Attach()
	l.begin()
	p = r.start(mode)
	untilFull(t, p, l)
	t.Logf("full with %d acknowledged, %d after a power cut on the full disk", full, l.acks-full)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	goesOn(t, p, l, 1000, "20 MiB are free again")
	untilFull(t, p, l)

	l.trim = true
	_, _ = p.in.Write([]byte("\n"))
	goesOn(t, p, l, 20_000, "cursors let go of what is delivered")
	if err := p.stop(l.line); err != nil {
		t.Fatalf("%v\n%s", err, p.logText())
	}
	r.Cut(p.kill)
	finish(t, r, l)
}

// TestFullDiskOfOthersGoesOnWhenSpaceReturns lets somebody else take the last byte in the middle of the work.
func TestFullDiskOfOthersGoesOnWhenSpaceReturns(t *testing.T) {
	r := newRig(t, "ext4", 64*mib)
	l := newLedger()
	r.Attach()
	l.begin()
	p := r.start(modeHold + " " + modePaced + " " + modeNoFree)
	goesOn(t, p, l, 500, "the disk is empty")
	ballast, err := os.Create(filepath.Join(r.Mount, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = ballast.Write(make([]byte, 64<<10))
	}
	_ = ballast.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	untilFull(t, p, l)
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	goesOn(t, p, l, 1000, "the space is free again")
	if err := p.stop(l.line); err != nil {
		t.Fatalf("%v\n%s", err, p.logText())
	}
	r.Cut(p.kill)
	finish(t, r, l)
}

// untilFull takes the child's lines until the spool says that it is full and nothing is acknowledged any more.
func untilFull(t *testing.T, p *process, l *ledger) {
	t.Helper()
	acks, still := -1, 0
	full := p.read(2*time.Minute, func(line string) bool {
		l.line(line)
		if health, ok := strings.CutPrefix(line, "H "); ok {
			if acks != l.acks || health == "<nil>" {
				acks, still = l.acks, 0
			}
			still++
		}
		return still > 20 || len(l.faults) > 0 // 2 s
	})
	if !full || len(l.faults) > 0 {
		t.Fatalf("filling the disk: full: %v, %d acknowledged\n\t%s\n%s", full, l.acks, strings.Join(l.faults, "\n\t"), p.logText())
	}
}

// goesOn wants n more acknowledgements.
func goesOn(t *testing.T, p *process, l *ledger, n int, why string) {
	t.Helper()
	want := l.acks + n
	if !p.read(30*time.Second, func(line string) bool { l.line(line); return l.acks >= want || len(l.faults) > 0 }) || len(l.faults) > 0 {
		t.Fatalf("%s: %d of %d acknowledgements came\n\t%s\n%s", why, n-(want-l.acks), n, strings.Join(l.faults, "\n\t"), p.logText())
	}
}
