package journal

import (
	"flag"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

var update = flag.Bool("update", false, "write the golden files")

// TestOrderOfWritesAndSyncs holds the calls that reach the disk against testdata/order.golden: a change in what is synced
// before what shows in review.
func TestOrderOfWritesAndSyncs(t *testing.T) {
	d := vfstest.NewDisk()
	fs := vfstest.NewFaults(d)
	var out strings.Builder
	seen := 0
	step := func(name string) {
		out.WriteString("# " + name + "\n")
		for _, line := range d.Log(seen) {
			out.WriteString(line + "\n")
		}
		seen = d.Ops()
	}
	cfg := small()
	cfg.Files = 2
	j := openOn(t, fs, cfg)
	j.quiesce()
	step("open an empty directory")
	mustAppend(t, j, "a")
	step("append the first group: header and frame in one write")
	mustAppend(t, j, "b", "c")
	step("append a group of two frames")
	mustAppend(t, j, strings.Repeat("d", 50000))
	step("append a group that does not fit: the next file is begun")
	j.Release(3)
	j.quiesce()
	step("release the first file: it is marked free")
	j.Close()
	step("close")
	j = openOn(t, fs, cfg)
	j.quiesce()
	step("open: the group that nothing proves is written again")
	fs.Add(vfstest.Fault{Kind: vfstest.Datasync, N: 1, Err: syscall.EIO})
	mustAppend(t, j, "e")
	j.quiesce()
	step("append whose sync fails: never again that file, the group goes to a fresh one")
	j.Close()

	const golden = "testdata/order.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("order has changed (-update writes it):\n%s\nwant\n%s", &out, want)
	}
}
