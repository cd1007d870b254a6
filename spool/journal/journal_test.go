package journal

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

func TestAppendedPayloadsComeBackInOrder(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	got, lost := contents(t, j, 0)
	if len(got) != 0 || lost != nil {
		t.Fatalf("new journal replays %v, lost %v", got, lost)
	}
	if first, last := mustAppend(t, j, "a", "b"); first != 1 || last != 2 {
		t.Fatalf("lsn %d..%d, want 1..2", first, last)
	}
	mustAppend(t, j, strings.Repeat("c", 10000), "")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Append([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}

	j = openOn(t, d, small())
	got, lost = contents(t, j, 0)
	want(t, got, 1, "a", "b", strings.Repeat("c", 10000), "")
	if lost != nil || j.LastLSN() != 4 {
		t.Fatalf("lost %v, last %d", lost, j.LastLSN())
	}
	got, _ = contents(t, j, 3)
	want(t, got, 4, "")
	if first, _ := mustAppend(t, j, "d"); first != 5 {
		t.Fatalf("lsn %d, want 5", first)
	}
}

func TestEachGroupIsOneWriteAndOneSync(t *testing.T) {
	c := vfstest.NewCounter(vfstest.NewDisk())
	j := openOn(t, c, small())
	for i := range 200 {
		j.quiesce()
		before := c.Count(suffix)
		mustAppend(t, j, "one", "two", strings.Repeat("x", 20*i))
		// The switch to the next file is in the same write and sync. The keeper works on other files, after Release.
		now := c.Count(suffix)
		if now.Syncs-before.Syncs != 1 || now.Writes-before.Writes != 1 {
			t.Fatalf("group %d: %d writes, %d syncs", i, now.Writes-before.Writes, now.Syncs-before.Syncs)
		}
		j.Release(j.LastLSN() - 1) // not all: the file that the next Append retires would be recycled during that Append
	}
	if s := j.Stats(); s.Switches < 10 || s.Syncs != 200 || s.Created != 3 || s.Recycled < 10 {
		t.Errorf("%+v", s)
	}
}

func TestAppendIsFullUntilRelease(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	j.quiesce()
	n, room := 0, j.Room()
	for {
		_, _, err := j.Append(body("x", 5000))
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		room -= Footprint(5000)
		if n > 100 {
			t.Fatal("never full")
		}
	}
	if n != 3*7 || j.Room() >= Footprint(5000) {
		t.Errorf("%d appended, room %d", n, j.Room())
	}
	ops := d.Ops()
	for range 3 {
		if _, _, err := j.Append(body("x", 5000)); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if d.Ops() != ops {
		t.Errorf("a refused append wrote: %v", d.Log(ops))
	}
	if first, _ := mustAppend(t, j, "small"); first != LSN(n+1) { // one block is left
		t.Errorf("lsn %d, want %d", first, n+1)
	}
	j.Release(7)
	if first, _ := mustAppend(t, j, string(body("x", 5000))); first != LSN(n+2) {
		t.Errorf("lsn %d, want %d", first, n+2)
	}
}

func TestGroupLargerThanAFile(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a")
	big := string(body("big", 20000))
	if first, last := mustAppend(t, j, big, big, big, big); first != 2 || last != 5 {
		t.Fatalf("lsn %d..%d", first, last)
	}
	if _, _, err := j.Append(make([]byte, j.MaxPayload()+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large payload: %v", err)
	}
	group := make([][]byte, 12)
	for i := range group {
		group[i] = make([]byte, 20000)
	}
	if _, _, err := j.Append(group...); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large group: %v", err)
	}
	j.Release(5)
	mustAppend(t, j, strings.Repeat("x", j.MaxPayload()))
	j.Close()
	j = openOn(t, d, small())
	got, _ := contents(t, j, 5)
	want(t, got, 6, strings.Repeat("x", j.MaxPayload()))
}

func TestAppliedPositionAheadOfTheJournalIsNeverReused(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a", "b")
	j.Close()
	j = openOn(t, d, small())
	if got, lost := contents(t, j, 500); len(got) != 0 || lost != nil {
		t.Fatalf("%v, lost %v", got, lost)
	}
	if first, _ := mustAppend(t, j, "c"); first != 501 {
		t.Fatalf("lsn %d, want 501", first)
	}
	j.Close()
	j = openOn(t, d, small())
	got, lost := contents(t, j, 500)
	want(t, got, 501, "c")
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
}

func TestReplayNamesWhatWasReleasedTooEarly(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	for range 40 {
		mustAppend(t, j, string(body("x", 5000)))
		j.Release(j.LastLSN())
	}
	j.quiesce()
	j.Close()
	j = openOn(t, d, small())
	got, lost := contents(t, j, 3)
	if len(lost) != 1 || lost[0].From != 4 || got[lost[0].To+1] == "" || got[lost[0].To] != "" {
		t.Errorf("lost %v, %d replayed", lost, len(got))
	}
}

func TestNewerVersionIsUnsupported(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a")
	j.Close()
	h := make([]byte, headerSize)
	header{state: stateInUse, size: 64 << 10, first: 1, begun: 1}.put(h)
	h[8] = versionSeal + 1
	resum(h)
	poke(t, d, slotName(1), 0, h)
	ops := d.Ops()
	if _, err := tryOpen(d, small()); !errors.Is(err, ErrUnsupported) {
		t.Errorf("open: %v", err)
	}
	if _, err := Scan(d, testDir); !errors.Is(err, ErrUnsupported) {
		t.Errorf("scan: %v", err)
	}
	if d.Ops() != ops {
		t.Errorf("unsupported files were changed: %v", d.Log(ops))
	}
}

func TestUnreadableHeaderIsSetAsideAndNamed(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	for range 14 {
		mustAppend(t, j, string(body("x", 5000)))
	}
	mustAppend(t, j, "last", "one", "two") // in the third file
	names := inUse(t, d)
	j.Close()
	poke(t, d, names[1], 20, []byte{0xff})
	j = openOn(t, d, small())
	got, lost := contents(t, j, 0)
	if len(lost) != 1 || lost[0] != (Range{8, 14}) || len(got) != 10 {
		t.Errorf("lost %v, %d replayed", lost, len(got))
	}
	if q := j.Recovery().Quarantined; len(q) != 1 || q[0] != names[1] {
		t.Errorf("quarantined %v", q)
	}
	if _, err := d.Stat(testDir + "/" + names[1] + badSuffix); err != nil {
		t.Error(err)
	}
}

// inUse returns the files in use, in order.
func inUse(t *testing.T, d *vfstest.Disk) (names []string) {
	t.Helper()
	r, err := Scan(d, testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Files {
		if f.State == "in use" {
			names = append(names, f.Name)
		}
	}
	return names
}

func TestDamageInTheMiddleIsNamedAndPassed(t *testing.T) {
	f := func(lsn int, wantLost Range) {
		t.Helper()
		d := vfstest.NewDisk()
		j := openOn(t, d, small())
		for range 18 { // 7 to a file, 4 in the last
			mustAppend(t, j, string(body("x", 5000)))
		}
		names := inUse(t, d)
		j.Close()
		poke(t, d, names[(lsn-1)/7], headerSize+int64((lsn-1)%7)*8192+100, []byte("damage"))
		j = openOn(t, d, small())
		got, lost := contents(t, j, 0)
		if len(lost) != 1 || lost[0] != wantLost {
			t.Errorf("frame %d: lost %v, want %v", lsn, lost, wantLost)
		}
		if len(got) != 18-int(wantLost.To-wantLost.From+1) || j.LastLSN() != 18 {
			t.Errorf("frame %d: %d replayed, last %d", lsn, len(got), j.LastLSN())
		}
		if _, lost := contents(t, j, wantLost.To); lost != nil {
			t.Errorf("frame %d: lost %v although it is applied", lsn, lost)
		}
		j.Release(18)
		mustAppend(t, j, "x")
	}
	f(1, Range{1, 1})    // first of all
	f(5, Range{5, 5})    // inside an old file
	f(7, Range{7, 7})    // end of an old file
	f(8, Range{8, 8})    // beginning of an old file
	f(15, Range{15, 15}) // beginning of the last file
	f(16, Range{16, 16}) // inside the last file: 18 says that 17 was durable
}

func TestLastFrameDamagedIsATornTail(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a", "b", "c")
	name := inUse(t, d)[0]
	j.Close()
	poke(t, d, name, headerSize+2*4096+32, []byte("X"))
	j = openOn(t, d, small())
	got, lost := contents(t, j, 0)
	want(t, got, 1, "a", "b")
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
	if first, _ := mustAppend(t, j, "d"); first != 3 {
		t.Errorf("lsn %d, want 3", first)
	}
	j.Close()
	j = openOn(t, d, small())
	got, _ = contents(t, j, 0)
	want(t, got, 1, "a", "b", "d")
}

func TestTruncatedLastFileIsDamage(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a", "b", "c")
	name := inUse(t, d)[0]
	j.Close()
	f, err := d.OpenFile(testDir+"/"+name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Truncate(headerSize + 4096)
	f.Close()
	j = openOn(t, d, small())
	got, lost := contents(t, j, 0)
	want(t, got, 1, "a")
	if len(lost) != 1 || lost[0] != (Range{2, 15}) { // so many may have been there
		t.Errorf("lost %v", lost)
	}
	if first, _ := mustAppend(t, j, "d"); first != 16 {
		t.Errorf("lsn %d, want 16", first)
	}
	j.Close()
	j = openOn(t, d, small())
	got, lost = contents(t, j, 0)
	if len(got) != 2 || len(lost) != 1 || lost[0] != (Range{2, 15}) {
		t.Errorf("second open: %v, lost %v", got, lost)
	}
}

func TestFramesOfOlderUseAreNeverReplayed(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	for range 100 {
		mustAppend(t, j, "x")
		j.Release(j.LastLSN())
		j.quiesce()
	}
	mustAppend(t, j, "last")
	j.Close()
	j = openOn(t, d, small())
	got, _ := contents(t, j, 100)
	want(t, got, 101, "last")
}

func TestReopeningWithoutReleaseDoesNotPileUpFiles(t *testing.T) {
	d := vfstest.NewDisk()
	for range 20 {
		j := openOn(t, d, small())
		_, _, err := j.Append([]byte("x"))
		if err != nil && !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		j.quiesce()
		j.Close()
	}
	files, _ := d.ReadDir(testDir)
	if len(files) > small().Files+1 {
		t.Errorf("%d files", len(files))
	}
	j := openOn(t, d, small())
	got, lost := contents(t, j, 0)
	if len(got) < 3 || lost != nil {
		t.Errorf("%v, lost %v", got, lost)
	}
	j.Release(j.LastLSN())
	mustAppend(t, j, "y")
}

func TestFileSizeMayChange(t *testing.T) {
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, strings.Repeat("x", 50000))
	j.Close()
	cfg := small()
	cfg.FileSize = 32 << 10 // the tail does not even fit into a file
	j = openOn(t, d, cfg)
	got, lost := contents(t, j, 0)
	want(t, got, 1, strings.Repeat("x", 50000))
	if lost != nil || !j.Recovery().Unproven {
		t.Errorf("lost %v, %+v", lost, j.Recovery())
	}
	mustAppend(t, j, "y")
	j.Release(2)
	j.quiesce()
	j.Close()
	for _, f := range mustScan(t, d).Files {
		if f.Size != 32<<10 {
			t.Errorf("%+v", f)
		}
	}
}

func mustScan(t *testing.T, d *vfstest.Disk) Report {
	t.Helper()
	r, err := Scan(d, testDir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestModeReadsItsOwnText(t *testing.T) {
	for _, m := range []Mode{ModeSync, ModeInterval} {
		b, _ := m.MarshalText()
		var got Mode
		if err := got.UnmarshalText(b); err != nil || got != m {
			t.Errorf("%s: %v, %v", b, got, err)
		}
	}
	var m Mode
	if m.UnmarshalText([]byte("fsync")) == nil {
		t.Error("fsync accepted")
	}
}

func TestValidateNamesEachKey(t *testing.T) {
	err := Config{FileSize: 100, Files: 1, Sync: 7}.Validate()
	for _, key := range []string{"dir:", "file_size:", "files:", "sync:"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("no %s in %v", key, err)
		}
	}
	c := DefaultConfig()
	c.Dir = "x"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func resum(h []byte) {
	sum := crcOf(h[:headerUsed-4])
	h[508], h[509], h[510], h[511] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
}
