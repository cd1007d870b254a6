package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
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

// Downlinks change at a reload, and what waits for a restart is named: by the command, in the log, as a metric.
func TestReloadTakesDownlinksAndNamesWhatWaits(t *testing.T) {
	dir := t.TempDir()
	c := serveWith(t, dir, routedConfig)
	addrs := c.listeners()
	file := filepath.Join(dir, "forebay.yaml")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func(wantCode int, want string) {
		t.Helper()
		code, stdout, stderr := forebay("reload", "--admin", addrs["admin"], "--token-file", filepath.Join(dir, "data", "admin_token"))
		if code != wantCode || wantCode == exitOK && stdout != want || !strings.Contains(stdout+stderr, want) {
			t.Errorf("reload: exit code %d, want %d and %q\n%s%s", code, wantCode, want, stdout, stderr)
		}
	}
	pending := func(want string) {
		t.Helper()
		if _, metrics := status(t, "http://"+addrs["admin"]+"/metrics"); !strings.Contains(metrics, "forebay_gateway_restart_pending_keys "+want+"\n") {
			t.Errorf("forebay_gateway_restart_pending_keys is not %s", want)
		}
	}
	reload(exitOK, "reloaded\n")
	pending("0")

	down := `  downlinks:
    - {name: back, topics: [telemetry], topic: "back/${key}", from: beginning, own_records: pass}
`
	changed := strings.Replace(string(first), "topic: telemetry,", "topic: other,", 1) + down
	write(changed)
	reload(exitOK, "reloaded\nin use now: bridge.downlinks[back]\nwaits for a restart: bridge.routes[all].topic\n")
	if line := c.until("configuration has changed, and what is named here waits for a restart"); line["keys"] != "bridge.routes[all].topic" {
		t.Errorf("log %v", line)
	}
	pending("1")
	addr, err := net.ResolveTCPAddr("tcp", addrs["tcp"])
	if err != nil {
		t.Fatal(err)
	}
	device := mqtttest.Dial(t, addr)
	t.Cleanup(device.Close)
	device.Connect(mqtttest.Connect{ID: "device"})
	device.Subscribe("back/#", 1)
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "1", QoS: 1})
	device.ExpectPublish(mqtttest.Publish{Topic: "back/device", Payload: "1", QoS: 1}) // from telemetry: the route is as it was

	write(strings.Replace(changed, "own_records", "own_recods", 1))
	reload(exitFailed, "own_recods: unknown key")
	write(strings.Replace(changed, `{name: back`, `{name: back, upstream: elsewhere`, 1))
	reload(exitFailed, `unknown upstream "elsewhere"`)
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "2", QoS: 1})
	device.ExpectPublish(mqtttest.Publish{Topic: "back/device", Payload: "2", QoS: 1})

	// A downlink that needs an upstream which does not run waits for it.
	write(strings.Replace(changed, "  routes:", "  upstreams: [{name: new, brokers: [\"127.0.0.1:1\"]}]\n  routes:", 1) +
		"    - {name: more, upstream: new, topics: [t], topic: t}\n")
	code, stdout, stderr := forebay("reload", "--admin", addrs["admin"], "--token-file", filepath.Join(dir, "data", "admin_token"), "-o", "json")
	if code != exitFailed || !strings.Contains(stderr, "which") { // the others have to say now which upstream they mean
		t.Errorf("reload: exit code %d\n%s%s", code, stdout, stderr)
	}
	write(strings.NewReplacer("  routes:", "  upstreams: [{name: new, brokers: [\"127.0.0.1:1\"]}]\n  routes:", "name: all", "name: all, upstream: embedded",
		"name: back", "name: back, upstream: embedded").Replace(string(first)+down) + "    - {name: more, upstream: new, topics: [t], topic: t}\n")
	reload(exitOK, "reloaded\nwaits for a restart: bridge.downlinks[back].upstream\nwaits for a restart: bridge.downlinks[more]\nwaits for a restart: bridge.routes[all].upstream\nwaits for a restart: bridge.upstreams[new]\n")
	pending("4")

	write(string(first))
	c.signal(syscall.SIGHUP)
	if line := c.until("downlink ended"); line["downlink"] != "back" {
		t.Errorf("log %v", line)
	}
	c.until("reloaded")
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "3", QoS: 1})
	device.ExpectNothing(1)
	pending("0")
	c.stop()
}

// A SIGHUP is not lost for coming while the gateway still starts, and a gateway that ends while it starts does not reload.
func TestHangupWhileStartingReloadsWhenReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangups, ready, ended := make(chan os.Signal), make(chan struct{}), make(chan struct{})
		var reloads atomic.Int32
		go reloadAt(hangups, ready, ended, slog.New(slog.DiscardHandler), func() { reloads.Add(1) })
		f := func(want int32, when string) {
			t.Helper()
			synctest.Wait()
			if got := reloads.Load(); got != want {
				t.Errorf("%d reloads %s, want %d", got, when, want)
			}
		}
		hangups <- syscall.SIGHUP
		hangups <- syscall.SIGHUP
		f(0, "before it is ready")
		close(ready)
		f(1, "when it is ready")
		hangups <- syscall.SIGHUP
		f(2, "later")
		close(ended)
	})
}
