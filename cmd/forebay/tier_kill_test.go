package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// killRounds is how often something is killed: a few times, or many in the long form.
func killRounds() int {
	switch {
	case os.Getenv("FOREBAY_CRASH") == "long":
		return 40
	case testing.Short():
		return 2
	}
	return 4
}

// The program is killed (kill -9) at random moments while it stores segments, writes manifests and removes local copies. After
// the last start every message that was acknowledged can be read, once, from the store or the spool, and the store has no object
// that belongs to nothing.
func TestKilledGatewayThatTiersLosesNothing(t *testing.T) {
	const each = 60
	dir := t.TempDir()
	cold, backups := filepath.Join(dir, "cold"), "file://"+filepath.Join(dir, "backups")
	more := fmt.Sprintf("tiering: {url: %q, streams: [{name: default, keep_local: 100ms}]}\n", "file://"+cold)
	rounds := killRounds()
	for range rounds {
		c := serveWith(t, dir, more)
		addrs := c.listeners()
		publish(t, addrs["tcp"], each)
		// A backup seals what is written to: its segments go up at once, and soon after the local copies go.
		if code, stdout, stderr := forebay("spool", "backup", backups, "--config", filepath.Join(dir, "forebay.yaml"), "--admin="+addrs["admin"]); code != exitOK {
			t.Fatalf("backup: %s%s", stdout, stderr)
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // the moment is random
		c.signal(syscall.SIGKILL)
		c.exit()
	}
	c := serveWith(t, dir, more)
	addrs := c.listeners()
	_, out, _ := forebay("tier", "dump", "default", "--config", filepath.Join(dir, "forebay.yaml"), "--admin="+addrs["admin"])
	if strings.Contains(out, " gap: ") {
		t.Errorf("gaps: %s", out)
	}
	for i := range each {
		payload := fmt.Sprint("payload ", i)
		n := 0
		for line := range strings.Lines(out) {
			if strings.HasSuffix(strings.TrimRight(line, "\n\" "), payload) {
				n++
			}
		}
		if n != rounds {
			t.Errorf("%s is there %d times, want %d", payload, n, rounds)
		}
	}
	for late := time.Now().Add(patience); len(inStore(t, cold)) == 0; time.Sleep(20 * time.Millisecond) { // of a poll
		if time.Now().After(late) {
			t.Fatalf("nothing is stored: %s", c.output())
		}
	}
	c.stop()
	wantNoStrangers(t, cold)
}

// inStore are the segments that the manifest names.
func inStore(t *testing.T, cold string) []manifest.Segment {
	t.Helper()
	st, err := store.OpenDir(cold)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(t.Context(), st, "default")
	if err != nil {
		t.Fatal(err)
	}
	return m.Segments
}

// wantNoStrangers wants each object of the stream's segments to belong to one that the manifest, or an entry that is not in it yet, names.
func wantNoStrangers(t *testing.T, cold string) {
	t.Helper()
	st, err := store.OpenDir(cold)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(t.Context(), st, "default")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Segments) == 0 {
		t.Fatal("nothing is stored: the test shows nothing")
	}
	named := map[string]bool{}
	for i := range m.Segments {
		named[fmt.Sprintf("%016x", m.Segments[i].Sequence)] = true
	}
	if err := st.List(t.Context(), "default/seg/", func(o store.Object) error {
		name, kind, _ := strings.Cut(filepath.Base(o.Key), ".")
		if named[name] {
			return nil
		}
		if _, err := st.Stat(t.Context(), "default/seg/"+name+".json"); err == nil || kind == "db.0000" {
			return nil // of an upload that was on its way when the gateway was stopped: it goes on
		}
		return errors.New(o.Key + " belongs to nothing")
	}); err != nil {
		t.Error(err)
	}
}

// forebay spool restore is killed (kill -9) at random moments: its directory is never there unfinished, and the next one is whole and
// removes what was left.
func TestKilledRestoreLeavesNoHalfSpool(t *testing.T) {
	dir := t.TempDir()
	backups := "file://" + filepath.Join(dir, "backups")
	c := serveChild(t, dir)
	addrs := c.listeners()
	config := filepath.Join(dir, "forebay.yaml")
	const segments = 5
	for range segments { // each backup seals one
		publish(t, addrs["tcp"], 40)
		if code, stdout, stderr := forebay("spool", "backup", backups, "--config", config, "--admin="+addrs["admin"]); code != exitOK {
			t.Fatalf("backup: %s%s", stdout, stderr)
		}
	}
	c.stop()
	whole := 0
	for range 3 * killRounds() {
		target := filepath.Join(t.TempDir(), "spool")
		cmd := exec.Command(os.Args[0], "spool", "restore", backups, "--config", config, "--dir", target)
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FOREBAY_") }), beForebay+"=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// When it has begun, it is killed after a random time.
		began := time.Now()
		for {
			left, err := filepath.Glob(target + ".restoring-*")
			if err != nil {
				t.Fatal(err)
			}
			if len(left) > 0 || exists(target) || time.Since(began) > patience {
				break
			}
			time.Sleep(time.Millisecond) // of a poll
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // the moment is random
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if entries, err := os.ReadDir(target); err == nil && len(entries) > 0 {
			whole++
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		} else if code, stdout, stderr := forebay("spool", "restore", backups, "--config", config, "--dir", target); code != exitOK {
			t.Fatalf("restore after one that was killed: %s%s", stdout, stderr)
		}
		if code, stdout, stderr := forebay("spool", "verify", "--config", config, "--dir", target); code != exitOK {
			t.Errorf("verify: %s%s", stdout, stderr)
		}
		_, out, _ := forebay("spool", "dump", "default", "--config", config, "--dir", target)
		if n := strings.Count(out, "payload "); n != segments*40 {
			t.Errorf("%d records, want %d", n, segments*40)
		}
		if left, _ := filepath.Glob(target + ".restoring-*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	t.Logf("%d of %d restores were done before they were killed", whole, 3*killRounds())
}
