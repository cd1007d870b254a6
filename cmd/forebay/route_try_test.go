package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/bridge"
)

func TestRouteTestShowsWhatWouldBeSent(t *testing.T) {
	example := filepath.Join("..", "..", "configs", "mapping.yaml")
	f := func(wantCode int, want []string, args ...string) string {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"route", "test", "--config", example}, args...)...)
		if code != wantCode {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, wantCode, stderr)
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), w) {
				t.Errorf("%q: %q is not in\n%s%s", args, w, stdout, stderr)
			}
		}
		return stdout
	}
	hot := []string{"--route", "lines", "--topic", "plant/7/line/4/temp", "--client", "press-12", "--payload", `{"temp":36.50,"site":"north"}`}
	f(exitOK, []string{"result sent to embedded", "topic alarms.temperature", "key press-12", "partition by press-12", "site: north", "plant: 7", "counted bad_timestamp"}, hot...)
	f(exitOK, []string{"topic telemetry.line.4", "site: unknown", "choose[0].when", ": false"},
		"--route", "lines", "--topic", "plant/7/line/4/temp", "--payload", `{"temp":20}`)
	f(exitOK, []string{"not sent: condition"}, "--route", "lines", "--topic", "plant/7/line/4/temp", "--payload", `{}`)
	f(exitOK, []string{"not sent: invalid_json", "byte 0: "}, "--route", "lines", "--topic", "plant/7/line/4/temp", "--payload", `no`)
	f(exitOK, []string{"no filter of the route matches"}, "--route", "lines", "--topic", "x", "--payload", `no`)
	f(exitOK, []string{"value (none: a tombstone)", "key pump", "partition "}, "--route", "states", "--topic", "state/pump", "--partitions", "6")
	f(exitOK, []string{"ce_type: com.example.plant.start", "ce_id: plant-north/default/0/0", "mqtt.message_expiry_interval: 60", "a: 1", "content-type: text/plain"},
		"--route", "events", "--topic", "event/start", "--payload", "x", "--property", "a=1", "--content-type", "text/plain", "--expiry", "60s")
	f(exitFailed, []string{`"other": no such route`, "there are: lines, sampled, events, states"}, "--route", "other", "--topic", "x")
	f(exitUsage, []string{"which route?"}, "--topic", "x")
	f(exitUsage, []string{"want an MQTT topic name"}, "--route", "lines", "--topic", "x/#")
	f(exitUsage, []string{"is not name=value"}, "--route", "lines", "--topic", "x", "--property", "x")

	var trial bridge.Trial
	if err := json.Unmarshal([]byte(f(exitOK, nil, append(hot, "-o", "json")...)), &trial); err != nil {
		t.Fatal(err)
	}
	if trial.Fate != bridge.Sent || trial.Topic != "alarms.temperature" || trial.Value.Text != `{"temp":36.50,"site":"north"}` || trial.Key.Text != "press-12" || len(trial.Conditions) != 2 || !trial.Conditions[1].Holds {
		t.Errorf("trial %+v", trial)
	}

	dead := filepath.Join(t.TempDir(), "forebay.yaml")
	text := "spool:\n  streams:\n    - name: alarms\n      filters: [alarm/#]\nbridge:\n  embedded:\n    enabled: true\n  routes:\n    - name: r\n      topic: t.${json.a}\n"
	if err := os.WriteFile(dead, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	example = dead
	f(exitFailed, []string{"a dead letter: missing_field", "error \"json.a is missing\"", "hint "}, "--topic", "x", "--payload", "{}")
	f(exitOK, []string{"the spool puts this topic into stream alarms, and the route reads default"}, "--topic", "alarm/1", "--payload", `{"a":1}`)
	bad := strings.Replace(text, "${json.a}", "${jsn.a}", 1) + "      condition: json.a >\n"
	if err := os.WriteFile(dead, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	f(exitUsage, []string{`forebay.yaml:10:14: bridge.routes[0].topic: position 3: unknown field "jsn`, "forebay.yaml:11:18: bridge.routes[0].condition: line 1, column 9: "}, "--topic", "x")
}
