package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestHangupReloads(t *testing.T) {
	dir := t.TempDir()
	acl := filepath.Join(dir, "acl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(acl, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("allow all topic=#\n")
	c := serveChild(t, dir, "--set", "mqtt.auth.methods=anonymous", "--set", "mqtt.auth.acl.file="+acl, "--set", "mqtt.auth.reload_interval=0s")
	c.until("serving")
	c.signal(syscall.SIGHUP)
	c.until("reloaded")
	write("allow everything\n")
	c.signal(syscall.SIGHUP)
	c.until("reload: what has a fault stays as it was")
	write("allow subscribe topic=#\n")
	c.signal(syscall.SIGHUP)
	c.until("reloaded")
	c.stop()
}
