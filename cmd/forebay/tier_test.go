package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
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
	mount := filepath.Join(dir, "mnt", "usb")
	f(exitFailed, "is its disk mounted?", "spool", "backup", "file://"+filepath.Join(mount, "backups"), admin)
	if exists(dir, "mnt") {
		t.Error("a backup made the place of a disk that is not mounted")
	}
	f(exitOK, "backup 20", "spool", "backup", backups, admin)
	publish(t, addrs["tcp"], 20)
	f(exitOK, "backup 20", "spool", "backup", backups, admin)
	f(exitUsage, "--keep -1", "spool", "backup", backups, "--keep", "-1", admin)
	f(exitOK, " removed\n", "spool", "backup", backups, "--keep", "2", "--verify", admin)
	f(exitOK, "GATEWAY", "spool", "restore", backups, "--list")
	f(exitOK, "is whole", "spool", "restore", backups, "--check")
	f(exitFailed, "there is something already", "spool", "restore", backups)
	for i := 0; i < 200 && !exists(cold, "default", "manifest"); i++ { // the backups have sealed segments
		f(exitOK, "default", "tier", "ls", admin)
	}
	f(exitOK, "default", "tier", "ls", "--cold-only")
	f(exitOK, "default", "tier", "ls", "default", admin)
	f(exitFailed, `stream "plant": no such stream; there are default`, "tier", "ls", "plant", admin)
	f(exitFailed, `stream "plant": no such stream; there are default`, "tier", "ls", "default", "plant", "--cold-only")
	f(exitFailed, "is its disk mounted", "tier", "ls", "--store", "file://"+filepath.Join(dir, "nothing"))
	f(exitOK, "nothing is stored there", "tier", "ls", "--store", "file://"+t.TempDir())
	f(exitOK, "payload 49", "tier", "dump", "default", admin)
	out := filepath.Join(dir, "x.ndjson")
	f(exitOK, "70 records, 0 gaps", "tier", "export", "default", out, "--format", "ndjson", admin)
	none := filepath.Join(dir, "none.parquet")
	f(exitFailed, `stream "plant": no such stream; there are default`, "tier", "export", "plant", none, admin)
	f(exitFailed, `stream "plant": no such stream; there are default`, "tier", "dump", "plant", "--cold-only")
	f(exitFailed, "is its disk mounted", "tier", "dump", "default", "--cold-only", "--store", "file://"+filepath.Join(dir, "nothing"))
	f(exitFailed, "nothing was stored there", "tier", "dump", "default", "--cold-only", "--store", "file://"+t.TempDir())
	f(exitFailed, "nothing was stored there", "tier", "export", "default", filepath.Join(dir, "none.parquet"), "--store", "file://"+t.TempDir(), "--config", config, admin)
	if exists(dir, "none.parquet") {
		t.Error("a file was made of a stream that does not exist")
	}
	f(exitOK, "is that of gateway", "tier", "adopt")
	f(exitFailed, "is its disk mounted", "spool", "restore", "file://"+filepath.Join(dir, "nothing"), "--list")
	for _, since := range []string{"1h", "-1h", "7d"} {
		f(exitOK, "payload 49", "tier", "dump", "default", "--since", since, admin)
	}
	emptied := "file://" + t.TempDir()
	f(exitOK, "is nobody's", "tier", "adopt", "--store", emptied)
	f(exitOK, "is now that of gateway", "tier", "adopt", "--store", emptied, "--yes")
	f(exitOK, "is that of gateway", "tier", "adopt", "--store", emptied)
	c.signal(syscall.SIGKILL)
	c.exit()

	f(exitOK, "payload 49", "tier", "dump", "default", "--cold-only")
	f(exitOK, "70 records, 0 gaps", "tier", "export", "default", filepath.Join(dir, "x.parquet"))
	if err := os.RemoveAll(filepath.Join(dir, "data", "spool")); err != nil {
		t.Fatal(err)
	}
	f(exitOK, "verified", "spool", "restore", backups, "--dir", filepath.Join(dir, "again"))
	f(exitOK, "payload 49", "spool", "dump", "default", "--dir", filepath.Join(dir, "again"))
	f(exitFailed, "is its disk mounted?", "spool", "backup", filepath.Join(mount, "backups"), "--dir", filepath.Join(dir, "again"))
	f(exitOK, "removed", "spool", "backup", backups, "--dir", filepath.Join(dir, "again"), "--keep", "1", "--output", "text")
}

// A client with a persistent session finds what was queued for it on the box that the backup was restored on: each message, once.
func TestSessionsResumeOnARestoredBox(t *testing.T) {
	const queued = 300
	dir, other := t.TempDir(), t.TempDir()
	backups := "file://" + filepath.Join(dir, "backups")
	sessions := []mqtttest.Connect{{ID: "five", Resume: true, Properties: "11 0000ffff"}, {ID: "old", Version: 4, Resume: true}}
	join := func(tcp string, o mqtttest.Connect) (*mqtttest.Client, bool) {
		addr, err := net.ResolveTCPAddr("tcp", tcp)
		if err != nil {
			t.Fatal(err)
		}
		client := mqtttest.Dial(t, addr)
		return client, client.Connect(o).SessionPresent
	}
	c := serveWith(t, dir, "")
	at := c.listeners()
	for _, o := range sessions {
		client, _ := join(at["tcp"], o)
		client.Subscribe("plant/#", 1)
		client.Disconnect()
	}
	publish(t, at["tcp"], queued)
	if code, _, stderr := forebay("spool", "backup", backups, "--config", filepath.Join(dir, "forebay.yaml"), "--admin="+at["admin"]); code != exitOK {
		t.Fatal(stderr)
	}
	publish(t, at["tcp"], 7) // behind the backup
	c.signal(syscall.SIGKILL)
	c.exit()

	if code, _, stderr := forebay("spool", "restore", backups, "--config", filepath.Join(dir, "forebay.yaml"), "--dir", filepath.Join(other, "data", "spool")); code != exitOK {
		t.Fatal(stderr)
	}
	c = serveWith(t, other, "")
	at = c.listeners()
	for _, o := range sessions {
		client, present := join(at["tcp"], o)
		if !present {
			t.Errorf("%s: the session is gone", o.ID)
			continue
		}
		seen := map[string]int{}
		for range queued {
			pk := client.Expect(3)
			seen[string(pk.Payload)]++
			client.Send(fmt.Sprintf("4002 %04x", pk.PacketID))
		}
		client.ExpectNothing(200 * time.Millisecond)
		if len(seen) != queued || seen[fmt.Sprint("payload ", queued-1)] != 1 {
			t.Errorf("%s: %d messages came, want %d", o.ID, len(seen), queued)
		}
		client.Close()
	}
}

func exists(elem ...string) bool {
	_, err := os.Stat(filepath.Join(elem...))
	return err == nil
}
