package crashtest

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

func rounds() int {
	if os.Getenv("FOREBAY_CRASH") == "long" {
		return 30
	}
	return 3
}

const (
	mib         = 1 << 20
	imageRounds = 8         // with the same image: the log start may not move, and the disk not fill
	xfsSize     = 320 * mib // mkfs.xfs makes nothing below 300 MiB
)

func TestPowerCutKeepsWhatWasAcknowledgedExt4(t *testing.T) { powerCuts(t, newRig(t, "ext4", 256*mib)) }

func TestPowerCutKeepsWhatWasAcknowledgedXFS(t *testing.T) { powerCuts(t, newRig(t, "xfs", xfsSize)) }

// TestPowerCutOfAnEncryptedSpoolKeepsWhatWasAcknowledged is the same with one key all the time.
func TestPowerCutOfAnEncryptedSpoolKeepsWhatWasAcknowledged(t *testing.T) {
	r := newRig(t, "ext4", 256*mib)
	r.keyMode = modeKey1
	powerCuts(t, r)
}

// TestPowerCutWhileKeysChange has another key, or none, at each start: meta.db is converted or wrapped again, segments and journal
// files of all three are there, and the power is cut at any moment of that.
func TestPowerCutWhileKeysChange(t *testing.T) {
	r := newRig(t, "ext4", 256*mib)
	r.keyModes = []string{modeKey1, modeKey2, "", modeKey2, "", modeKey1}
	powerCuts(t, r)
}

func powerCuts(t *testing.T, r *rig) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	l := newLedger()
	for round := range rounds() {
		if round > 0 && round%imageRounds == 0 {
			finish(t, r, l)
			r.Format()
			l = newLedger()
		}
		before := l.acks
		cutOnce(t, r, l, rnd)
		t.Logf("round %d: %d acknowledged, then cut", round, l.acks-before)
	}
	finish(t, r, l)
}

// cutOnce runs a child until a random moment right after an acknowledgement (now and then: at any moment, also while it
// opens), and cuts the power.
func cutOnce(t *testing.T, r *rig, l *ledger, rnd *rand.Rand) {
	t.Helper()
	mode := modeAppend
	acks, limit := 1+rnd.IntN(20_000), 20*time.Second
	switch rnd.IntN(4) {
	case 0:
		acks, limit = 1<<30, time.Duration(rnd.IntN(400))*time.Millisecond
	case 1:
		mode, acks, limit = modePaced, 1+rnd.IntN(3000), 4*time.Second
	}
	runUntil(t, r, l, mode, acks, limit)
	if len(l.faults) > 0 {
		t.Fatalf("after a power cut:\n\t%s", strings.Join(l.faults, "\n\t"))
	}
}

func runUntil(t *testing.T, r *rig, l *ledger, mode string, acks int, limit time.Duration) {
	t.Helper()
	r.Attach()
	l.begin()
	p := r.start(mode)
	stopAt := l.acks + acks
	p.read(limit, func(line string) bool {
		l.line(line)
		return l.acks >= stopAt || len(l.faults) > 0
	})
	if err := p.stop(l.line); err != nil {
		t.Fatalf("%v; faults %v; log of the child:\n%s", err, l.faults, p.logText())
	}
	l.cut = time.Now()
	r.Cut(p.kill)
	if len(l.faults) > 0 {
		t.Logf("log of the child:\n%s", p.logText())
	}
}

// finish opens the spool once more and closes it in order.
func finish(t *testing.T, r *rig, l *ledger) {
	t.Helper()
	r.Attach()
	l.begin()
	p := r.start(modeRead)
	p.read(time.Minute, func(line string) bool { l.line(line); return false })
	if err := p.wait(); err != nil || !l.complete || len(l.faults) > 0 {
		t.Fatalf("last start: %v, complete: %v\n\t%s\nlog of the child:\n%s", err, l.complete, strings.Join(l.faults, "\n\t"), p.logText())
	}
	r.Detach()
	n := 0
	for _, log := range l.found {
		n += len(log)
	}
	t.Logf("%d acknowledged records in all, %d found", l.acks, n)
}

// TestPowerCutInIntervalModeLosesNoMoreThanItsWindow: what was acknowledged within the last sync_interval may be lost, nothing
// older, and what is left is dense, with the state that belongs to it.
func TestPowerCutInIntervalModeLosesNoMoreThanItsWindow(t *testing.T) {
	r := newRig(t, "ext4", 256*mib)
	l := newLedger()
	l.window = syncInterval + time.Second // a sync takes its time on a busy machine, and so do its news
	for round := range rounds() {
		if round > 0 && round%imageRounds == 0 {
			r.Format()
			cut := l.cut
			l = newLedger()
			l.window, l.cut = syncInterval+time.Second, cut
		}
		mode, acks := modeWindow, 1+rand.IntN(20_000)
		if round%3 == 0 {
			mode, acks = modeWindow+" "+modePaced, 2000+rand.IntN(3000) // longer than the window
		}
		runUntil(t, r, l, mode, acks, 20*time.Second)
		if len(l.faults) > 0 {
			t.Fatalf("after a power cut:\n\t%s", strings.Join(l.faults, "\n\t"))
		}
	}
	finish(t, r, l)
	t.Logf("%d of them lost within the window", l.lost)
}

// TestPowerCutFindsEarlyAcknowledgement shows that the rig sees what it looks for: a child that acknowledges before its
// sync loses records.
func TestPowerCutFindsEarlyAcknowledgement(t *testing.T) {
	r := newRig(t, "ext4", 256*mib)
	l := newLedger()
	runUntil(t, r, l, modePaced+" "+modeLie, 300, 20*time.Second)
	if l.acks < 300 {
		t.Fatalf("only %d acknowledgements: %v", l.acks, l.faults)
	}
	r.Attach()
	l.begin()
	p := r.start(modeRead)
	p.read(time.Minute, func(line string) bool { l.line(line); return l.complete })
	p.kill()
	if !l.complete {
		t.Fatalf("the spool does not open after its journal lost what was not synced:\n%v\n%s", l.faults, p.logText())
	}
	for _, f := range l.faults {
		if strings.Contains(f, "are lost") {
			t.Logf("seen as it should be: %s", f)
			return
		}
	}
	t.Fatalf("%d records were acknowledged without a sync, and the power cut lost none: this rig shows nothing; faults: %v", l.acks, l.faults)
}
