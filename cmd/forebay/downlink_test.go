package main

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

const downConfig = routedConfig + `  downlinks:
    - {name: back, topics: [telemetry], topic: "back/${key}", from: beginning, own_records: pass}
    - {name: later, topics: [not-there], topic: "later/${key}"}
`

func TestDownlinkToolsOnARunningGateway(t *testing.T) {
	dir := t.TempDir()
	c := serveWith(t, dir, downConfig)
	addrs := c.listeners()
	addr, err := net.ResolveTCPAddr("tcp", addrs["tcp"])
	if err != nil {
		t.Fatal(err)
	}
	device := mqtttest.Dial(t, addr)
	t.Cleanup(device.Close)
	device.Connect(mqtttest.Connect{ID: "device"})
	device.Subscribe("back/#", 1)
	f := func(wantCode int, want string, args ...string) string {
		t.Helper()
		code, stdout, stderr := forebay(append(args, "--config", filepath.Join(dir, "forebay.yaml"), "--admin", addrs["admin"])...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
		return stdout
	}
	show := func() (i downlink.Info) {
		t.Helper()
		if err := json.Unmarshal([]byte(f(exitOK, `"downlink": "back"`, "downlink", "show", "back", "-o", "json")), &i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	until := func(what string, cond func(downlink.Info) bool) {
		t.Helper()
		for late := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			i := show()
			if cond(i) {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("not in time: %s: %+v", what, i)
			}
		}
	}
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "1", QoS: 1})
	device.ExpectPublish(mqtttest.Publish{Topic: "back/device", Payload: "1", QoS: 1})
	until("one record and no lag", func(i downlink.Info) bool {
		return i.Records == 1 && i.Lag != nil && *i.Lag == 0 && len(i.PartitionList) == 1
	})
	f(exitOK, "back/${key}", "downlink", "ls")
	f(exitOK, "topic_missing", "downlink", "ls")
	f(exitOK, "telemetry/0", "downlink", "show", "back")
	f(exitOK, `"downlinks": [`, "downlink", "ls", "-o", "json")
	f(exitFailed, `"other": no such downlink`, "downlink", "show", "other")
	f(exitFailed, `"a/b": no such downlink`, "downlink", "pause", "a/b")
	f(exitUsage, "want forebay downlink pause DOWNLINK", "downlink", "pause")

	f(exitOK, "downlink back: paused", "downlink", "pause", "back")
	f(exitOK, "downlink back: paused", "downlink", "pause", "back") // it is so
	f(exitOK, "forebay downlink resume back", "downlink", "ls")
	f(exitOK, "not known", "downlink", "show", "back")
	if i := show(); i.State != downlink.Paused || i.Since.IsZero() || i.Lag != nil {
		t.Errorf("paused: %+v", i)
	}
	if _, health := status(t, "http://"+addrs["admin"]+"/healthz"); !strings.Contains(health, "downlink back: paused since") || !strings.Contains(health, "downlink later: topic_missing since") {
		t.Errorf("health %s", health)
	}
	if _, metrics := status(t, "http://"+addrs["admin"]+"/metrics"); !strings.Contains(metrics, `forebay_downlink_paused{downlink="back"} 1`) ||
		strings.Contains(metrics, `forebay_downlink_lag_records{downlink="back"}`) || !strings.Contains(metrics, `forebay_downlink_records_total{downlink="back"} 1`) {
		t.Error("metrics of a paused downlink")
	}
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "2", QoS: 1})
	f(exitOK, "downlink back: ", "downlink", "resume", "back")
	device.ExpectPublish(mqtttest.Publish{Topic: "back/device", Payload: "2", QoS: 1})
	until("two records", func(i downlink.Info) bool { return i.Records == 2 && i.State != downlink.Paused })
}
