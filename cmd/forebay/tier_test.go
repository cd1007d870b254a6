package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A gateway that stores what it seals, is backed up while it runs, and restored after it is gone; its records are read from all three.
func TestTierBackupAndRestoreOfARunningGateway(t *testing.T) {
	dir := t.TempDir()
	cold, backups := filepath.Join(dir, "cold"), "file://"+filepath.Join(dir, "backups")
	c := serveWith(t, dir, fmt.Sprintf("tiering: {url: %q, streams: [{name: default}]}\n", "file://"+cold))
	addrs := c.listeners()
	publish(t, addrs["tcp"], 50)
	config, admin := filepath.Join(dir, "forebay.yaml"), "--admin="+addrs["admin"]
	f := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append(args, "--config", config)...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
	}
	f(exitUsage, "want file:///path", "spool", "backup", "nowhere")
	f(exitOK, "backup 20", "spool", "backup", backups, admin)
	publish(t, addrs["tcp"], 20)
	f(exitOK, "backup 20", "spool", "backup", backups, admin)
	f(exitOK, "GATEWAY", "spool", "restore", backups, "--list")
	f(exitFailed, "there is something already", "spool", "restore", backups)
	for i := 0; i < 200 && !exists(cold, "default", "manifest"); i++ { // the backups have sealed segments
		f(exitOK, "default", "tier", "ls", admin)
	}
	f(exitOK, "default", "tier", "ls", "--cold-only")
	f(exitOK, "payload 49", "tier", "dump", "default", admin)
	out := filepath.Join(dir, "x.ndjson")
	f(exitOK, "70 records, 0 gaps", "tier", "export", "default", out, "--format", "ndjson", admin)
	f(exitOK, "is that of gateway", "tier", "adopt")
	c.signal(syscall.SIGKILL)
	c.exit()

	f(exitOK, "payload 49", "tier", "dump", "default", "--cold-only")
	f(exitOK, "70 records, 0 gaps", "tier", "export", "default", filepath.Join(dir, "x.parquet"))
	if err := os.RemoveAll(filepath.Join(dir, "data", "spool")); err != nil {
		t.Fatal(err)
	}
	f(exitOK, "verified", "spool", "restore", backups, "--dir", filepath.Join(dir, "again"))
	f(exitOK, "payload 49", "spool", "dump", "default", "--dir", filepath.Join(dir, "again"))
	f(exitOK, "removed", "spool", "backup", backups, "--dir", filepath.Join(dir, "again"), "--keep", "1", "--output", "text")
}

func exists(elem ...string) bool {
	_, err := os.Stat(filepath.Join(elem...))
	return err == nil
}
