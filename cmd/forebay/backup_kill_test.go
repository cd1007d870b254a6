package main

import (
	"errors"
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
)

// The gateway, and forebay spool backup itself, of a running gateway and of a stopped one, are killed (kill -9) at random moments of a
// backup with --keep. Each backup that is listed then is whole, what was acknowledged is in the next one, and that one removes in time
// what the killed ones have left.
func TestKilledBackupsHarmNone(t *testing.T) {
	const each = 40
	dir := t.TempDir()
	root := filepath.Join(dir, "backups")
	url, config := "file://"+root, filepath.Join(dir, "forebay.yaml")
	sent := 0
	check := func() {
		t.Helper()
		_, out, _ := forebay("spool", "restore", url, "--list", "--config", config)
		n := 0
		for line := range strings.Lines(out) {
			if id, _, _ := strings.Cut(line, " "); strings.HasSuffix(id, "Z") {
				n++
				if code, stdout, stderr := forebay("spool", "restore", url, "--backup", id, "--check"); code != exitOK {
					t.Errorf("%s: %s%s", id, stdout, stderr)
				}
			}
		}
		if n == 0 {
			t.Fatalf("there is no backup: %s", out)
		}
	}
	backup := func(args ...string) []string {
		return append([]string{"spool", "backup", url, "--config", config, "--keep", "2"}, args...)
	}
	must := func(args []string) {
		t.Helper()
		if code, stdout, stderr := forebay(args...); code != exitOK {
			t.Fatalf("forebay %s: %s%s", strings.Join(args, " "), stdout, stderr)
		}
	}
	child := func(args []string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FOREBAY_") }), beForebay+"=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	broken := 0
	for round := range 3 * killRounds() {
		c := serveChild(t, dir)
		addrs := c.listeners()
		publish(t, addrs["tcp"], each)
		sent += each
		if round == 0 {
			must(backup("--admin=" + addrs["admin"]))
		}
		had, _ := filepath.Glob(filepath.Join(root, "backups", "*"))
		begun := func() { // waits until a backup has begun
			for late := time.Now().Add(patience); time.Now().Before(late); time.Sleep(time.Millisecond) { // of a poll
				if now, _ := filepath.Glob(filepath.Join(root, "backups", "*")); len(now) > len(had) {
					break
				}
			}
			time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond) // the moment is random
		}
		switch round % 3 {
		case 0: // the gateway
			cmd := child(backup("--admin=" + addrs["admin"]))
			begun()
			c.signal(syscall.SIGKILL)
			c.exit()
			_ = cmd.Wait()
		case 1: // the command; the gateway goes on
			cmd := child(backup("--admin=" + addrs["admin"]))
			begun()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			c.stop()
		case 2: // what makes it of a stopped one
			c.stop()
			cmd := child(backup())
			begun()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if claims, _ := filepath.Glob(filepath.Join(root, "backups", "*", "claim")); len(claims) > 0 {
			broken++
		}
		check()
	}
	must(backup())
	check()
	old := time.Now().Add(-2 * time.Hour)
	if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, os.Chtimes(path, old, old)) }); err != nil {
		t.Fatal(err)
	}
	c := serveChild(t, dir) // with something new, which is put beside what is left
	publish(t, c.listeners()["tcp"], each)
	sent += each
	c.stop()
	must(backup())
	must(backup())
	check()
	target := filepath.Join(dir, "again")
	must([]string{"spool", "restore", url, "--config", config, "--dir", target})
	_, out, _ := forebay("spool", "dump", "default", "--config", config, "--dir", target)
	if n := strings.Count(out, "payload "); n != sent {
		t.Errorf("%d records, want %d", n, sent)
	}
	t.Logf("%d of %d backups broke off", broken, 3*killRounds())
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "~") || filepath.Base(path) == "claim" || filepath.Base(path) == "meta.db" && !exists(filepath.Dir(path), "backup.json") {
			t.Errorf("%s is left of one that broke off", path)
		}
		return err
	})
}
