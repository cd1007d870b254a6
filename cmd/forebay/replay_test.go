package main

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

const replayConfig = `
bridge:
  embedded: {enabled: true, address: "127.0.0.1:0"}
  routes:
    - {name: all, topic: telemetry, create_topics: {partitions: 1}}
replay: {stream: replay}
`

func TestReplayToolsOnARunningGateway(t *testing.T) {
	dir := t.TempDir()
	c := serveWith(t, dir, replayConfig)
	addrs := c.listeners()
	addr, err := net.ResolveTCPAddr("tcp", addrs["tcp"])
	if err != nil {
		t.Fatal(err)
	}
	device := mqtttest.Dial(t, addr)
	t.Cleanup(device.Close)
	device.Connect(mqtttest.Connect{ID: "device"})
	f := func(wantCode int, want string, args ...string) string {
		t.Helper()
		code, stdout, stderr := forebay(append(args, "--config", filepath.Join(dir, "forebay.yaml"), "--admin", addrs["admin"])...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
		return stdout
	}
	status := func(args ...string) (s replay.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(f(exitOK, "{", append(args, "-o", "json")...)), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for i := range 6 {
		device.Publish(mqtttest.Publish{Topic: fmt.Sprintf("plant/%d", i%2), Payload: fmt.Sprint(i), QoS: 1})
	}

	f(exitUsage, "say where to: --route, --upstream or --to-mqtt", "replay", "--from", "-1h")
	f(exitFailed, `route "nine": no such route; there are: all`, "replay", "--route", "nine")
	f(exitFailed, "partition 9: the stream has 8, counted from 0", "replay", "--route", "all", "--from", "9:0")
	f(exitFailed, `"none": no such replay`, "replay", "show", "none")
	f(exitOK, "nothing is sent", "replay", "--route", "all", "--dry-run", "--from", "-1h")
	if s := status("replay", "--route", "all", "--from", "-1h", "--filter", "plant/1"); s.State != replay.Done || s.Sent != 3 {
		t.Errorf("%+v", s)
	}

	local := mqtttest.Dial(t, addr)
	t.Cleanup(local.Close)
	local.Connect(mqtttest.Connect{ID: "local"})
	local.Subscribe("again/#", 1)
	s := status("replay", "--to-mqtt", "--prefix", "again/", "--filter", "plant/0")
	if s.State != replay.Done || s.Sent != 3 {
		t.Errorf("%+v", s)
	}
	for _, payload := range []string{"0", "2", "4"} {
		pk := local.ExpectPublish(mqtttest.Publish{Topic: "again/plant/0", Payload: payload, QoS: 1})
		if users := pk.Properties.User; len(users) != 3 || users[0].Key != "forebay.replay" || users[0].Val != s.ID {
			t.Errorf("user properties %v, want forebay.replay %s first", users, s.ID)
		}
	}
	// What was published again is no new record of the stream that the route reads.
	dry := status("replay", "--route", "all", "--dry-run")
	if dry.Sent != 6 {
		t.Errorf("the route would send %d records, want the 6 of the device", dry.Sent)
	}
	f(exitOK, s.ID, "replay", "ls")
	f(exitOK, "mqtt, below again/", "replay", "show", s.ID)
	f(exitFailed, "is done, and there is nothing to cancel", "replay", "cancel", s.ID)
	f(exitFailed, "is done, and there is nothing to resume", "replay", "resume", s.ID)
	f(exitFailed, "is a dry run, which is not resumed", "replay", "resume", dry.ID)
}

// What is wrong with the command line itself is said before a gateway is asked: there is none here.
func TestReplayFaultsOfTheCommandLineAreThoseOfTheCommand(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"replay", "--admin", "127.0.0.1:1", "--token-file", "/nonexistent"}, args...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || strings.HasSuffix(strings.TrimSpace(stderr), ": invalid") {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, exitUsage, want, stdout, stderr)
		}
	}
	f(`from "soon": want a time like`, "--route", "all", "--from", "soon")
	f(`to "0:1,0:2": partition 0 comes twice`, "--route", "all", "--to", "0:1,0:2")
	f(`rate "abc": want records or bytes a second`, "--route", "all", "--rate", "abc")
	f(`a/#/b`, "--route", "all", "--filter", "a/#/b")
	f("do not go together", "--route", "all", "--to-mqtt")
	f("a topic goes with an upstream", "--route", "all", "--topic", "t")
	f("a prefix goes with to-mqtt", "--route", "all", "--prefix", "p/")
	f("is not before to", "--route", "all", "--from", "-1h", "--to", "-2h")
	f("topics that begin with $", "--to-mqtt", "--prefix", "$SYS/")
}
