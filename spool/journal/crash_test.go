package journal

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes a new one")
	rounds   = flag.Int("rounds", 0, "rounds of the random tests; 0 takes the short number")
)

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func roundsOr(n int) int {
	if *rounds > 0 {
		return *rounds
	}
	return n
}

// book is what a publisher knows: the model that recovery is held against.
type book struct {
	acked   map[LSN]string          // acknowledged: must be found
	offered map[LSN]map[string]bool // ever given to Append under this LSN: nothing else may be found
	last    LSN                     // highest acknowledged
	applied LSN                     // Replay starts here
	n       int
}

func newBook() *book {
	return &book{acked: map[LSN]string{}, offered: map[LSN]map[string]bool{}}
}

// append gives a random group to j and writes the book.
func (b *book) append(j *Journal, rnd *rand.Rand, max int) error {
	var group [][]byte
	first := j.LastLSN() + 1
	for i := range 1 + rnd.IntN(3) {
		b.n++
		p := body(fmt.Sprintf("%d", b.n), rnd.IntN(max))
		group = append(group, p)
		lsn := first + LSN(i)
		if b.offered[lsn] == nil {
			b.offered[lsn] = map[string]bool{}
		}
		b.offered[lsn][string(p)] = true
	}
	got, last, err := j.Append(group...)
	if err != nil {
		return err
	}
	if got != first {
		return fmt.Errorf("lsn %d, want %d", got, first)
	}
	for i, p := range group {
		b.acked[first+LSN(i)] = string(p)
	}
	b.last = last
	return nil
}

// check reopens the journal on fsys and holds it against the book. upTo is the last LSN that was acknowledged by the time of
// the crash, applied the highest released by then.
func (b *book) check(fsys vfs.FS, cfg Config, upTo, applied LSN) error {
	j, err := tryOpen(fsys, cfg)
	if err != nil {
		return err
	}
	defer j.Close()
	next := applied + 1
	err = j.Replay(applied, func(lsn LSN, p []byte) error {
		if lsn != next {
			return fmt.Errorf("lsn %d, want %d", lsn, next)
		}
		next++
		if want, ok := b.acked[lsn]; ok && lsn <= upTo {
			if string(p) != want {
				return fmt.Errorf("lsn %d: %.20q, acknowledged was %.20q", lsn, p, want)
			}
		} else if !b.offered[lsn][string(p)] {
			return fmt.Errorf("lsn %d: %.20q was never offered", lsn, p)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w; %+v", err, j.Recovery())
	}
	if next <= upTo {
		return fmt.Errorf("replay ends at %d, acknowledged up to %d; %+v", next-1, upTo, j.Recovery())
	}
	// What was replayed has been shown: it must survive the next power cut, whatever that one keeps.
	first, _, err := j.Append([]byte("after"))
	if errors.Is(err, ErrFull) {
		return nil
	}
	if err != nil || first != next {
		return fmt.Errorf("append after recovery: lsn %d, want %d: %w", first, next, err)
	}
	return nil
}

// TestPowerCutAtEveryCall cuts the power after each call that changes the disk, with none, some and all of what was not
// synced, and again during and after the recovery from some of these.
func TestPowerCutAtEveryCall(t *testing.T) {
	rnd := newRand(t)
	for range roundsOr(6) {
		cutEverywhere(t, rnd)
	}
}

// marks is what was acknowledged and released when the disk had seen so many calls.
type mark struct {
	ops            int
	acked, applied LSN
}

func cutEverywhere(t *testing.T, rnd *rand.Rand) {
	d := vfstest.NewDisk()
	b := newBook()
	var marks []mark
	var j *Journal
	for range 3 {
		j = openOn(t, d, small())
		if _, lost := contents(t, j, b.applied); lost != nil {
			t.Fatalf("lost %v", lost)
		}
		for range 12 {
			if err := b.append(j, rnd, 9000); err != nil && !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			marks = append(marks, mark{d.Ops(), b.last, b.applied})
			if rnd.IntN(3) == 0 {
				j.Release(b.last - LSN(rnd.IntN(3)))
				b.applied = max(b.applied, j.Stats().Released)
				marks = append(marks, mark{d.Ops(), b.last, b.applied})
			}
		}
		j.Close()
	}
	m := 0
	for n := range d.Ops() + 1 {
		for m+1 < len(marks) && marks[m+1].ops <= n {
			m++
		}
		at := marks[m]
		if at.ops > n {
			at = mark{}
		}
		// Released frames were applied elsewhere and durable there; a release may have run ahead of this mark.
		applied := at.applied
		if m+1 < len(marks) {
			applied = max(applied, marks[m+1].applied)
		}
		if at.ops == 0 {
			applied = 0
		}
		for _, keep := range []vfstest.Keep{vfstest.KeepNone, vfstest.KeepSome, vfstest.KeepAll} {
			image := d.Cut(n, keep, rnd)
			if err := b.check(image, small(), at.acked, min(applied, at.acked)); err != nil {
				t.Fatalf("cut at %d, %v kept: %v\n%s", n, keep, err, strings.Join(d.Log(max(0, n-8))[:min(8, n)], "\n"))
			}
			if n%7 != 0 {
				continue
			}
			// And again, in the middle of the recovery from that.
			again := image.Cut(rnd.IntN(image.Ops()-image.Start()+1)+image.Start(), vfstest.KeepSome, rnd)
			if err := b.checkAfter(again, at.acked, min(applied, at.acked)); err != nil {
				t.Fatalf("cut at %d, %v kept, cut again: %v", n, keep, err)
			}
		}
	}
}

// checkAfter is check for a disk that has already recovered once and may hold the payload that check appends.
func (b *book) checkAfter(fsys vfs.FS, upTo, applied LSN) error {
	for lsn := range b.last + 3 {
		if b.offered[lsn] == nil {
			b.offered[lsn] = map[string]bool{}
		}
		b.offered[lsn]["after"] = true
	}
	return b.check(fsys, small(), upTo, applied)
}

// TestEachCallFailingInTurn fails the n-th call of the file system, for each n, with each errno, and holds the directory
// against what was acknowledged: as the process would find it after a restart, and after a power cut.
func TestEachCallFailingInTurn(t *testing.T) {
	rnd := newRand(t)
	f := func(x vfstest.Fault) {
		for n := 1; ; n++ {
			x.N = n
			if !failAt(t, rnd, x) {
				return
			}
		}
	}
	for _, errno := range []error{syscall.EIO, syscall.ENOSPC} {
		f(vfstest.Fault{Kind: vfstest.Any, Err: errno})
		f(vfstest.Fault{Kind: vfstest.Any, Err: errno, Times: 2})
		f(vfstest.Fault{Kind: vfstest.Write, Err: errno, Short: 5000})
		f(vfstest.Fault{Kind: vfstest.Write, Err: errno, Times: -1})
		f(vfstest.Fault{Kind: vfstest.Datasync, Err: errno, Times: -1})
	}
}

// failAt tells whether the fault was met.
func failAt(t *testing.T, rnd *rand.Rand, x vfstest.Fault) bool {
	t.Helper()
	d := vfstest.NewDisk()
	fs := vfstest.NewFaults(d)
	b := newBook()
	fail := func(err error) {
		t.Helper()
		t.Fatalf("%v %v at %d: %v", x.Kind, x.Err, x.N, err)
	}
	run := func() error {
		j, err := tryOpen(fs, small())
		if err != nil {
			return err
		}
		defer j.Close()
		if err := j.Replay(b.applied, func(LSN, []byte) error { return nil }); err != nil {
			return err
		}
		for range 14 {
			if err := b.append(j, rnd, 9000); err != nil {
				if !errors.Is(err, ErrFull) && !errors.Is(err, ErrFailed) {
					fail(err)
				}
				continue
			}
			j.Release(b.last - 1)
			b.applied = max(b.applied, j.Stats().Released)
		}
		return nil
	}
	_ = run()
	fs.Add(x)
	_ = run()
	met := fs.Hits() > 0
	fs.Clear()
	for _, keep := range []vfstest.Keep{vfstest.KeepNone, vfstest.KeepSome, vfstest.KeepAll} {
		if err := b.check(d.Cut(d.Ops(), keep, rnd), small(), b.last, b.applied); err != nil {
			fail(fmt.Errorf("%v kept: %w", keep, err))
		}
	}
	if err := run(); err != nil { // goes on when the fault is gone
		fail(err)
	}
	if err := b.check(d.Cut(d.Ops(), vfstest.KeepNone, rnd), small(), b.last, b.applied); err != nil {
		fail(fmt.Errorf("after going on: %w", err))
	}
	return met
}

// TestRandomLifeWithFaultsAndPowerCuts goes on with one journal through restarts, kills, power cuts and faults.
func TestRandomLifeWithFaultsAndPowerCuts(t *testing.T) {
	rnd := newRand(t)
	for range roundsOr(20) {
		d := vfstest.NewDisk()
		b := newBook()
		for range 15 {
			fs := vfstest.NewFaults(d)
			j, err := tryOpen(fs, small())
			if err != nil {
				t.Fatal(err)
			}
			next := b.applied + 1
			err = j.Replay(b.applied, func(lsn LSN, p []byte) error {
				if want, ok := b.acked[lsn]; lsn != next || ok && want != string(p) || !b.offered[lsn][string(p)] {
					return fmt.Errorf("lsn %d: %.20q, want lsn %d %.20q", lsn, p, next, b.acked[lsn])
				}
				b.acked[lsn] = string(p) // it was shown: from now on it must stay
				next++
				return nil
			})
			if err != nil || next <= b.last {
				t.Fatalf("replayed up to %d of %d: %v", next-1, b.last, err)
			}
			b.last = max(b.last, next-1)
			for range rnd.IntN(3) {
				fs.Add(vfstest.Fault{
					Kind: []vfstest.Kind{vfstest.Write, vfstest.Datasync, vfstest.Create, vfstest.Any}[rnd.IntN(4)],
					N:    1 + rnd.IntN(20), Times: 1 + rnd.IntN(2), Short: rnd.IntN(18) * vfstest.Sector,
					Err: []error{syscall.EIO, syscall.ENOSPC}[rnd.IntN(2)],
				})
			}
			for range rnd.IntN(20) {
				if err := b.append(j, rnd, 9000); err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrFailed) {
					t.Fatal(err)
				}
				if rnd.IntN(2) == 0 {
					j.Release(b.last - LSN(rnd.IntN(4)))
					b.applied = max(b.applied, j.Stats().Released)
				}
			}
			n := d.Ops()
			j.Close()
			switch rnd.IntN(3) {
			case 0: // restart
			case 1: // kill
				d = d.Cut(n, vfstest.KeepAll, rnd)
			case 2:
				d = d.Cut(n, vfstest.KeepSome, rnd)
			}
		}
	}
}

// TestRandomOperationsAgainstAModel has no faults: everything that was appended and not released is there.
func TestRandomOperationsAgainstAModel(t *testing.T) {
	rnd := newRand(t)
	for range roundsOr(20) {
		d := vfstest.NewDisk()
		cfg := small()
		cfg.Files = 2 + rnd.IntN(3)
		b := newBook()
		j := openOn(t, d, cfg)
		for range 150 {
			switch rnd.IntN(10) {
			case 0:
				j.Close()
				if err := b.check(d.Cut(d.Ops(), vfstest.KeepNone, rnd), cfg, b.last, b.applied); err != nil {
					t.Fatal(err)
				}
				j = openOn(t, d, cfg)
				if _, lost := contents(t, j, b.applied); lost != nil {
					t.Fatalf("lost %v", lost)
				}
			case 1, 2, 3:
				j.Release(b.last - LSN(rnd.IntN(5)))
				b.applied = max(b.applied, j.Stats().Released)
			default:
				if err := b.append(j, rnd, 20000); err != nil && !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
			}
			if s := j.Stats(); s.Last != b.last || s.Durable != b.last || s.Files > cfg.Files+1 {
				t.Fatalf("%+v, last %d", s, b.last)
			}
		}
		j.Close()
	}
}
