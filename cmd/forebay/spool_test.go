package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
)

var update = flag.Bool("update", false, "write the golden files")

type waitFor chan error

func (w waitFor) Durable(_ *spool.Record, err error) { w <- err }

// toolSpool makes a data directory with a spool in which nothing depends on the moment, and returns its configuration file.
func toolSpool(t *testing.T) (config, dir string) {
	t.Helper()
	data := t.TempDir()
	dir = filepath.Join(data, "spool")
	cfg := spooltest.Config(dir, spool.StreamConfig{Name: "plant", Filters: []string{"plant/#"}, Partitions: 2})
	cfg.Segment.Codec = "none"
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	s, err := spool.Open(cfg, spool.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	put := func(e spool.Entry) {
		t.Helper()
		done := make(waitFor, 1)
		e.Done = done
		if err := s.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	// One wait for all: nothing of it goes to a segment before Close, however slow the machine is.
	for i := range 20 {
		err := s.Append(t.Context(), spool.Entry{Record: &spool.Record{
			Topic: fmt.Sprintf("plant/%d/temp", i%3), ClientID: fmt.Sprint("device ", i%4), Payload: fmt.Appendf(nil, `{"value":%d}`, i), QoS: uint8(i % 3),
		}, Changes: []spool.Change{{Space: "mqtt/session", Key: fmt.Sprint("client-", i%5), Value: []byte("state")}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	put(spool.Entry{Record: &spool.Record{Topic: "other", ClientID: "\x1b[31mred", Payload: []byte{0xff, 0}, Retain: true, ExpiresAt: now.AddDate(100, 0, 0).UnixNano()}})
	if _, err := s.OpenCursor(t.Context(), "bridge/main", "plant", spool.CursorOptions{Protect: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	config = write(t, fmt.Sprintf(`
gateway: {data_dir: %q}
spool:
  min_free: 1MiB
  max_size: 1GiB
  queue_size: 4MiB
  tail_size: 16MiB
  journal: {file_size: 4MiB, files: 2}
  segment: {max_size: 4MiB, codec: none}
  streams: [{name: plant, filters: ["plant/#"], partitions: 2}]
`, data))
	return config, dir
}

// volatile is what hangs on how fast a machine is.
var volatile = regexp.MustCompile(`\d+ batches|\d+ journal frames|[\d.]+(B|KiB|MiB)\b|frame \d+|applied \d+|in use +\S+ +\d+\.\.\d+`)

func golden(t *testing.T, name, dir, got string) {
	t.Helper()
	got = strings.ReplaceAll(got, dir, "DIR")
	got = volatile.ReplaceAllStringFunc(got, func(s string) string { return regexp.MustCompile(`[\d.]*\d`).ReplaceAllString(s, "N") })
	var lines []string
	for line := range strings.Lines(got) {
		lines = append(lines, strings.Join(strings.Fields(line), " ")) // widths hang on the numbers
	}
	got = strings.Join(lines, "\n") + "\n"
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
	}
}

func TestSpoolToolsOnAStoppedSpool(t *testing.T) {
	config, dir := toolSpool(t)
	f := func(name string, wantCode int, args ...string) string {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"spool"}, append(args, "--config", config)...)...)
		if code != wantCode {
			t.Fatalf("forebay spool %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, wantCode, stdout, stderr)
		}
		if name != "" {
			golden(t, "spool_"+name, dir, stdout)
		}
		return stdout + stderr
	}
	f("ls", exitOK, "ls")
	f("ls_stream", exitOK, "ls", "default", "--segments", "0")
	f("inspect_segment", exitOK, "inspect", "segment", "plant/1", "--limit", "2")
	f("inspect_stream", exitOK, "inspect", "stream", "plant")
	f("inspect_meta", exitOK, "inspect", "meta", "--space", "mqtt/session", "--limit", "3")
	f("dump", exitOK, "dump", "plant/0", "--limit", "3")
	f("dump_json", exitOK, "dump", "default", "--output", "json")
	f("verify", exitOK, "verify")
	f("repair", exitOK, "repair", "--dry-run")
	if got := f("", exitOK, "dump", "plant", "--filter", "plant/1/+", "--client", "device 1", "-o", "ndjson"); strings.Count(got, "\n") != 2 {
		t.Errorf("by topic and client:\n%s", got)
	}
	if got := f("", exitOK, "dump", "default"); strings.Contains(got, "\x1b") {
		t.Errorf("a client ID reaches the terminal: %q", got)
	}
	f("", exitOK, "inspect", "segment", filepath.Join(dir, "seg", "plant", "0000000000000001.db"))
	f("", exitOK, "inspect", "journal")
	f("", exitFailed, "ls", "nothing")
	f("", exitFailed, "inspect", "segment", "plant/77")
	f("", exitUsage, "inspect", "segment", "plant")
	f("", exitUsage, "dump", "plant/x")
	f("", exitUsage, "dump", "plant", "--since", "yesterday")
	f("", exitUsage, "dump", "plant", "--filter", "a/#/b")
	f("", exitUsage, "dump", "plant", "--output", "xml")
	f("", exitUsage, "repair")
	f("", exitUsage, "repair", "--yes", "--dry-run")
	f("", exitUsage, "verfy")
	if code, _, stderr := forebay("spool", "repair", "--yes", "--dir", dir); code != exitUsage || !strings.Contains(stderr, "--config") {
		t.Errorf("repair without configuration: %d %s", code, stderr)
	}
	if code, stdout, stderr := forebay("spool", "verify", "--dir", dir); code != exitOK {
		t.Errorf("with --dir alone: %d %s%s", code, stdout, stderr)
	}
	if code, _, stderr := forebay("spool", "ls", "--dir", t.TempDir()); code != exitFailed || !strings.Contains(stderr, "no spool here") {
		t.Errorf("an empty directory: %d %s", code, stderr)
	}
}

func TestSpoolToolsInJSON(t *testing.T) {
	config, _ := toolSpool(t)
	f := func(keys string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"spool"}, append(args, "--config", config, "--output", "json")...)...)
		got := map[string]any{}
		if err := json.Unmarshal([]byte(stdout), &got); code != exitOK || err != nil {
			t.Fatalf("%v: %d %v\n%s%s", args, code, err, stdout, stderr)
		}
		for _, key := range strings.Fields(keys) {
			if v, ok := got[key]; !ok || v == nil {
				t.Errorf("%v: %s is %v", args, key, v)
			}
		}
	}
	f("dir running time bytes_on_disk max_size streams cursors journal quarantine findings segments more_segments", "ls")
	f("stream sequence state file_bytes records codec partition_details batch_list topic_list client_list", "inspect", "segment", "plant/1")
	f("streams segments cursors", "inspect", "stream", "plant")
	f("files frames last_lsn proven_lsn applied_lsn lost", "inspect", "journal")
	f("bytes format applied_lsn clock catalog spaces pending_changes keys", "inspect", "meta")
	f("ok dir segments batches records frames bytes skipped findings", "verify")
	f("dir dry_run actions findings", "repair", "--dry-run")
	f("stream partition offset received_at topic payload payload_encoding", "dump", "plant/0", "--limit", "1")
}

func TestSpoolVerifyExitsWithOneOnDamage(t *testing.T) {
	config, dir := toolSpool(t)
	path := filepath.Join(dir, "seg", "plant", "0000000000000001.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte(`{"value":7}`))] ^= 1
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := forebay("spool", "verify", "--config", config)
	if code != exitFailed || stderr != "" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	golden(t, "spool_verify_damaged", dir, regexp.MustCompile(`crc [0-9a-f]+, stored [0-9a-f]+`).ReplaceAllString(stdout, "crc"))
	code, stdout, _ = forebay("spool", "verify", "--config", config, "-o", "json")
	if code != exitFailed || !strings.Contains(stdout, `"ok": false`) {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	if code, stdout, stderr = forebay("spool", "repair", "--yes", "--config", config); code != exitOK || !strings.Contains(stdout, "done: ") {
		t.Errorf("repair: %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr = forebay("spool", "verify", "--config", config); code != exitOK {
		t.Errorf("after the repair: %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, _ = forebay("spool", "ls", "--config", config); code != exitOK || !strings.Contains(stdout, "QUARANTINE\nplant-0000000000000001.db.0") {
		t.Errorf("quarantine:\n%s", stdout)
	}
}

func TestSpoolToolsOnARunningGateway(t *testing.T) {
	dir := t.TempDir()
	c := serveChild(t, dir)
	addrs := c.listeners()
	publish(t, addrs["tcp"], 50)
	config := filepath.Join(dir, "forebay.yaml")
	f := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"spool"}, append(args, "--config", config)...)...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay spool %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
	}
	admin := "--admin=" + addrs["admin"]
	f(exitFailed, "give --admin host:port", "ls")
	f(exitFailed, "refuses the token", "ls", admin, "--token-file", write(t, strings.Repeat("x", 30)))
	f(exitOK, "running", "ls", admin)
	f(exitOK, "last frame", "inspect", "journal", admin)
	f(exitOK, "SPACE", "inspect", "meta", admin)
	f(exitOK, "payload 49", "dump", "default", admin)
	f(exitOK, "in use, not checked", "verify")
	f(exitOK, "nothing is damaged", "verify", admin)
	f(exitFailed, "stop the gateway first", "repair", "--dry-run")
	f(exitFailed, "stop the gateway first", "repair", "--yes")

	c.signal(syscall.SIGKILL)
	c.exit()
	f(exitOK, "as the next start would find it", "ls")
	f(exitOK, "payload 49", "dump", "default")
	f(exitOK, "nothing is damaged", "verify")
}

// publish sends n messages and waits for their acknowledgements.
func publish(t *testing.T, address string, n int) {
	t.Helper()
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := mqtttest.Dial(t, addr)
	defer c.Close()
	c.Connect(mqtttest.Connect{ID: "device"})
	for i := range n {
		c.Publish(mqtttest.Publish{Topic: "plant/7", Payload: fmt.Sprint("payload ", i), QoS: 1})
	}
}

func TestBar(t *testing.T) {
	var out bytes.Buffer
	b := newBar(&out)
	b.show(1, 2, "a")
	b.end()
	if out.Len() > 0 {
		t.Errorf("short work is shown in a log: %q", out.String())
	}
	b.shown = time.Time{}
	b.show(1<<20, 4<<20, "plant/1")
	if got := out.String(); !strings.HasPrefix(got, " 25%  1.0MiB of 4.0MiB") || !strings.HasSuffix(got, "plant/1\n") || strings.Contains(got, "\x1b") {
		t.Errorf("got %q", got)
	}
	out.Reset()
	b.terminal, b.shown = true, time.Time{}
	b.show(1, 1, strings.Repeat("x", 200))
	if got := out.String(); !strings.HasPrefix(got, "\r\x1b[K[########################] 100%") || len(got) > 80+4 {
		t.Errorf("got %q", got)
	}
	b.end()
}

func TestSpoolKeygen(t *testing.T) {
	data := t.TempDir()
	key := filepath.Join(data, "key")
	if code, _, stderr := forebay("spool", "keygen", key); code != exitOK {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(key); err != nil || fi.Mode().Perm() != 0o600 || len(before) != 65 {
		t.Errorf("%d bytes, mode %v, %v", len(before), fi.Mode(), err)
	}
	if code, _, stderr := forebay("spool", "keygen", key); code != exitFailed || !strings.Contains(stderr, "file exists") {
		t.Errorf("again: exit code %d\n%s", code, stderr)
	}
	if after, err := os.ReadFile(key); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the key was changed, %v", err)
	}

	// The tools take the keys of the configuration, and say which one they miss.
	cfg := spooltest.Config(filepath.Join(data, "spool"))
	cfg.Encryption = spool.EncryptionConfig{Keys: []spool.KeyConfig{{ID: 4, File: key}}, Active: 4}
	s, err := spool.Open(cfg, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(waitFor, 1)
	if err := s.Append(t.Context(), spool.Entry{Record: &spool.Record{Topic: "a", Payload: []byte("hidden")}, Done: done}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	config := write(t, fmt.Sprintf("gateway: {data_dir: %q}\nspool: {encryption: {keys: [{id: 4, file: %q}], active: 4}}\n", data, key))
	if code, stdout, stderr := forebay("spool", "dump", "default", "--config", config); code != exitOK || !strings.Contains(stdout, "hidden") {
		t.Errorf("dump: exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := forebay("spool", "ls", "--config", config); code != exitOK || !strings.Contains(stdout, "key 4") {
		t.Errorf("ls: exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := forebay("spool", "verify", "--config", config); code != exitOK {
		t.Errorf("verify: exit code %d\n%s%s", code, stdout, stderr)
	}
	file := filepath.Join(data, "spool", "seg", "default", "0000000000000001.db")
	if code, stdout, stderr := forebay("spool", "inspect", "segment", file, "--config", config); code != exitOK || !strings.Contains(stdout, "key 4") {
		t.Errorf("inspect: exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr := forebay("spool", "verify", "--dir", cfg.Dir); code != exitFailed || !strings.Contains(stderr, "meta.db: encrypted with key 4: spool.encryption.keys does not list it") {
		t.Errorf("without the key: exit code %d\n%s", code, stderr)
	}
}
