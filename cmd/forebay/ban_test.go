package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Bans come and go on a running gateway, count for who is in, outlive a restart, and are in the audit.
func TestBanToolsOnARunningGateway(t *testing.T) {
	dir := t.TempDir()
	acl := filepath.Join(dir, "acl")
	if err := os.WriteFile(acl, []byte("allow all topic=#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	more := "mqtt.auth.methods=anonymous"
	args := []string{"--set", more, "--set", "mqtt.auth.acl.file=" + acl, "--set", "mqtt.audit.stream=audit", "--set", "mqtt.auth.reload_interval=0s"}
	c := serveWith(t, dir, "", args...)
	at := c.listeners()
	f := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append(args, "--admin", at["admin"], "--config", filepath.Join(dir, "forebay.yaml"))...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
	}
	join := func(id string, want byte) *mqtttest.Client {
		t.Helper()
		addr, err := net.ResolveTCPAddr("tcp", at["tcp"])
		if err != nil {
			t.Fatal(err)
		}
		d := mqtttest.Dial(t, addr)
		d.SendConnect(mqtttest.Connect{ID: id})
		d.ExpectConnack(want)
		return d
	}
	device, other := join("press-7", 0), join("press-8", 0)
	f(exitOK, `banned: client="press-7" until=`, "ban", "add", "--client", "press-7", "--for", "1h", "--reason", "stolen")
	device.ExpectDisconnect(0x98)
	other.Ping()
	join("press-7", 0x8A)
	f(exitOK, "stolen", "ban", "ls")
	f(exitOK, `"client": "press-7"`, "ban", "ls", "-o", "json")
	f(exitUsage, "want --client, --user or --address", "ban", "add")
	f(exitUsage, "is neither an address nor a CIDR", "ban", "add", "--address", "here")
	f(exitFailed, "removed: 0", "ban", "rm", "--client", "press-9")
	f(exitOK, "banned: address=203.0.113.0/24", "ban", "add", "--address", "203.0.113.9/24")

	if err := os.WriteFile(acl, []byte("allow everything\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(exitFailed, acl+":1:", "reload")
	other.Ping()
	if err := os.WriteFile(acl, []byte("deny connect client=press-8\nallow all topic=#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(exitOK, "reloaded", "reload")
	other.ExpectDisconnect(0x87)
	c.stop()

	c = serveWith(t, dir, "", args...)
	at = c.listeners()
	join("press-7", 0x8A)
	f(exitOK, "removed: 1", "ban", "rm", "--client", "press-7")
	join("press-7", 0).Disconnect()
	for _, event := range []string{"client.connected", "client.refused", "ban.added", "ban.removed", "files.reloaded", "files.refused", "admin.action"} {
		f(exitOK, event, "spool", "dump", "audit")
	}
	c.stop()
}
