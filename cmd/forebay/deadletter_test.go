package main

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

const routedConfig = `
bridge:
  embedded: {enabled: true, address: "127.0.0.1:0"}
  routes:
    - {name: all, topic: telemetry, create_topics: {partitions: 1, configs: ["max.message.bytes=20000"]}}
`

// routed is a running gateway with a route to the embedded upstream, and a way to call forebay on it.
func routed(t *testing.T) (c *child, device *mqtttest.Client, call func(wantCode int, want string, args ...string) string) {
	t.Helper()
	dir := t.TempDir()
	c = serveWith(t, dir, routedConfig)
	addrs := c.listeners()
	addr, err := net.ResolveTCPAddr("tcp", addrs["tcp"])
	if err != nil {
		t.Fatal(err)
	}
	device = mqtttest.Dial(t, addr)
	t.Cleanup(device.Close)
	device.Connect(mqtttest.Connect{ID: "device"})
	call = func(wantCode int, want string, args ...string) string {
		t.Helper()
		code, stdout, stderr := forebay(append(args, "--config", filepath.Join(dir, "forebay.yaml"), "--admin", addrs["admin"])...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
		return stdout
	}
	return c, device, call
}

func TestDeadLetterNamesItsDestinationAsFarAsItWasDecided(t *testing.T) {
	f := func(want, topic string, partition int32) {
		t.Helper()
		if got := destination(bridge.DeadLetter{KafkaTopic: topic, KafkaPartition: partition}); got != want {
			t.Errorf("topic %q partition %d: got %q, want %q", topic, partition, got, want)
		}
	}
	f("-", "", -1)
	f("telemetry", "telemetry", -1)
	f("telemetry/0", "telemetry", 0)
}

// What was not even asked has no result.
func TestDeadLetterWorkWithoutAnAnswerPrintsNoResult(t *testing.T) {
	dir := t.TempDir()
	if _, err := api.MakeToken(dir); err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, work := range []string{"redrive", "purge"} {
		for _, format := range []string{"text", "json"} {
			code, stdout, stderr := forebay("deadletter", work, "--all", "-o", format, "--admin", gone.Listener.Addr().String(), "--token-file", filepath.Join(dir, api.TokenFile))
			if code != exitFailed || stdout != "" || !strings.Contains(stderr, "admin address") {
				t.Errorf("%s: exit code %d, %q, %q", work, code, stdout, stderr)
			}
		}
	}
}

func TestDeadLetterToolsOnARunningGateway(t *testing.T) {
	_, device, f := routed(t)
	large := make([]byte, 50_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(large)
	for _, topic := range []string{"a/1", "a/2", "b/1"} {
		device.Publish(mqtttest.Publish{Topic: topic, Payload: string(large), QoS: 1})
		device.Publish(mqtttest.Publish{Topic: topic, Payload: "fits", QoS: 1})
	}
	var page bridge.DeadLetterPage
	for late := time.Now().Add(patience); len(page.Letters) < 3; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("dead letters %+v", page)
		}
		if err := json.Unmarshal([]byte(f(exitOK, "dead_letters", "deadletter", "ls", "-o", "json")), &page); err != nil {
			t.Fatal(err)
		}
	}
	f(exitOK, "too_large", "deadletter", "ls", "--route", "all")
	f(exitOK, "more: --limit -1", "deadletter", "ls", "--limit", "1")
	f(exitOK, "max.message.bytes", "deadletter", "show", "0:1")
	f(exitOK, `"payload_encoding": "base64"`, "deadletter", "show", "0:1", "--output", "json")
	f(exitFailed, "no such dead letter", "deadletter", "show", "0:7")
	f(exitUsage, "want partition:offset", "deadletter", "show", "x")
	f(exitUsage, "want partition:offset", "deadletter", "redrive", "0:1", "1")
	f(exitOK, "ID", "deadletter", "ls", "--route", "all", "--reason", "null_key")
	f(exitFailed, `no dead letters of a route or downlink "al", and no such one; there are: all`, "deadletter", "ls", "--route", "al")
	f(exitFailed, `no dead letters of a route or downlink "al"`, "deadletter", "purge", "--route", "al")
	f(exitUsage, "--all", "deadletter", "redrive")
	f(exitUsage, "is not a time", "deadletter", "ls", "--since", "yesterday")
	f(exitOK, "2 dead letters would be redriven", "deadletter", "redrive", "--dry-run", "--filter", "a/#")
	f(exitFailed, "refused again", "deadletter", "redrive", "0:0")
	f(exitOK, "1 of 1 dead letters purged", "deadletter", "purge", "0:0")
	if out := f(exitFailed, "1 of 1: no such dead letter", "deadletter", "purge", "0:0"); out != "" {
		t.Errorf("a purge of nothing prints %q before its error", out)
	}
	f(exitOK, `"done": 2`, "deadletter", "purge", "--all", "-o", "json")
	f(exitOK, "ID", "deadletter", "ls")
	f(exitUsage, "filter", "deadletter", "ls", "--filter", "a/#/b")
}
