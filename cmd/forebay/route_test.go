package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

func TestRouteToolsOnARunningGateway(t *testing.T) {
	_, device, f := routed(t)
	sent := func(want uint64) {
		t.Helper()
		var routes api.Routes
		for late := time.Now().Add(patience); len(routes.Routes) == 0 || routes.Routes[0].Sent < want; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("routes %+v, want %d sent", routes, want)
			}
			if err := json.Unmarshal([]byte(f(exitOK, "routes", "route", "ls", "-o", "json")), &routes); err != nil {
				t.Fatal(err)
			}
		}
	}
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "1", QoS: 1})
	sent(1)
	f(exitOK, "idle", "route", "ls")
	f(exitOK, "telemetry/0", "route", "show", "all")
	f(exitFailed, "no such route", "route", "show", "other")
	f(exitFailed, "want the Kafka topic and partition", "route", "pause", "all", "--lane", "x")
	f(exitOK, "route all: paused", "route", "pause", "all", "--lane", "telemetry/0")
	f(exitOK, "route all: not paused, but lane telemetry/0 is by itself: forebay route resume all --lane telemetry/0\n", "route", "resume", "all")
	f(exitOK, "route all: idle", "route", "resume", "all", "--lane", "telemetry/0")
	f(exitOK, "route all: paused", "route", "pause", "all")
	f(exitOK, "forebay route resume all", "route", "ls")
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "2", QoS: 1})
	f(exitOK, `"state": "paused"`, "route", "show", "all", "-o", "json")
	f(exitOK, "route all: ", "route", "resume", "all")
	sent(2)
}

// Nobody types a name twice the same way: a route that was renamed keeps its records, the gateway says so, and it can be retired.
func TestRenamedRouteIsToldOfAndRetired(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "forebay.yaml")
	route := func(name string) string {
		return strings.ReplaceAll(routedConfig, "name: all", "name: "+name)
	}
	c := serveWith(t, dir, route("old"))
	if line := c.until("route is new"); line["route"] != "old" || line["from"] != "beginning" || line["records_before_it"] != 0.0 {
		t.Errorf("start of the route: %v", line)
	}
	c.listeners()
	c.stop()

	f := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append(args, "--config", config)...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
	}
	for _, running := range []bool{true, false} {
		c = serveWith(t, dir, route("new"))
		if line := c.until("cursors of nobody keep records in the spool"); line["route"] != "old" || !strings.Contains(fmt.Sprint(line["hint"]), "forebay route retire old --yes") {
			t.Errorf("orphan: %v", line)
		}
		addrs := c.listeners()
		get := func(path string) string {
			_, body := status(t, "http://"+addrs["admin"]+path)
			return body
		}
		if health := get("/healthz"); !strings.Contains(health, "route old is not in the configuration any more") || !strings.Contains(health, `"degraded"`) {
			t.Errorf("health %s", health)
		}
		if metrics := get("/metrics"); !strings.Contains(metrics, "forebay_bridge_orphaned_routes 1\n") {
			t.Error("no metric of the orphan")
		}
		at := []string{"--admin", addrs["admin"]}
		if !running {
			c.stop()
			at = nil
		} else {
			f(exitOK, "orphaned", append([]string{"route", "ls"}, at...)...)
		}
		f(exitUsage, "nothing is changed without --yes", append([]string{"route", "retire", "old"}, at...)...)
		f(exitFailed, "nothing is kept for a route of that name", append([]string{"route", "retire", "other"}, at...)...)
		if running {
			f(exitFailed, "the configuration has this route", append([]string{"route", "retire", "new", "--yes"}, at...)...)
		}
		f(exitOK, "route old is retired", append([]string{"route", "retire", "old", "--yes"}, at...)...)
		if running {
			if health := get("/healthz"); strings.Contains(health, "route old") {
				t.Errorf("health after it was retired: %s", health)
			}
			c.stop()
			c = serveWith(t, dir, route("old")) // for the second round
			c.listeners()
			c.stop()
			f(exitOK, "route new is retired", "route", "retire", "new", "--yes")
		}
	}
}
