package main

import (
	"encoding/json"
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
	f(exitOK, "route all: idle", "route", "resume", "all", "--lane", "telemetry/0")
	f(exitOK, "route all: paused", "route", "pause", "all")
	f(exitOK, "forebay route resume all", "route", "ls")
	device.Publish(mqtttest.Publish{Topic: "a", Payload: "2", QoS: 1})
	f(exitOK, `"state": "paused"`, "route", "show", "all", "-o", "json")
	f(exitOK, "route all: ", "route", "resume", "all")
	sent(2)
}
