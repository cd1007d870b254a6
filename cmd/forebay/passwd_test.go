package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// typed runs a command line with something on standard input.
func typed(input string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&errs)
	code = run(root)
	return code, out.String(), errs.String()
}

func TestPasswd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	f := func(want int, contains, input string, args ...string) {
		t.Helper()
		code, stdout, stderr := typed(input, append([]string{"passwd"}, args...)...)
		if code != want || !strings.Contains(stdout+stderr, contains) {
			t.Errorf("passwd %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, want, contains, stdout, stderr)
		}
	}
	f(exitFailed, "no such file", "", "ls", file)
	f(exitOK, "user ann created", "secret\n", "set", file, "ann", "--memory", "64KiB", "--groups", "ops,lab")
	f(exitOK, "user ann changed", "other", "set", file, "ann", "--memory", "64KiB", "--passes", "1", "--scram", "--iterations", "4096")
	f(exitOK, `"result": "created"`, "x y\r\n", "set", file, "bob", "--scram-only", "-o", "json")
	f(exitOK, "ann\tpassword,scram\tops,lab\nbob\tscram\t\n", "", "ls", file)
	f(exitOK, "password of ann is right", "other\n", "verify", file, "ann")
	f(exitFailed, "password of ann is wrong", "secret\n", "verify", file, "ann")
	f(exitOK, `"right": true`, "x y", "verify", file, "bob", "-o", "json")
	f(exitFailed, "no such user: eve", "x", "verify", file, "eve")
	f(exitFailed, "no password on standard input", "\n", "set", file, "kim")
	f(exitFailed, "nor hold a colon", "x", "set", file, "a:b")
	f(exitUsage, "--memory 4KiB is not between", "x", "set", file, "kim", "--memory", "4KiB")
	f(exitUsage, "--groups", "x", "set", file, "kim", "--groups", "a,,b")
	f(exitUsage, "want forebay passwd set FILE USER, got", "", "set", file)
	f(exitOK, "user ann deleted", "", "delete", file, "ann")
	f(exitFailed, "no such user: ann", "", "delete", file, "ann")
	f(exitUsage, "did you mean set?", "", "st")

	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file, []byte("# users\nann:plain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(exitFailed, file+":2: hash is not $argon2id", "x", "set", file, "bob")
	f(exitFailed, file+":2: hash is not $argon2id", "", "ls", file)
}

func TestACLTest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "acl")
	text := "group ops ann\ndeny publish topic=plant/%{site}/secret\nallow publish topic=plant/%c/# qos=0,1\nallow all topic=# group=ops\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want int, contains string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"acl", "test", file}, args...)...)
		if code != want || !strings.Contains(stdout+stderr, contains) {
			t.Errorf("acl test %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, want, contains, stdout, stderr)
		}
	}
	f(exitOK, "allowed: the first rule that matches, as plant/c/#\n"+file+":3: allow publish topic=plant/%c/#",
		"--client", "c", "--action", "publish", "--topic", "plant/c/x", "--claim", "site=s")
	f(exitFailed, "denied: the first rule that matches, as plant/#", "--client", "c", "--action", "publish", "--topic", "plant/c/x")
	f(exitFailed, "note: "+file+":2: a value for", "--client", "c", "--action", "publish", "--topic", "plant/c/x")
	f(exitFailed, "denied: no rule matches", "--client", "c", "--action", "publish", "--topic", "plant/c/x", "--claim", "site=s", "--qos", "2")
	f(exitOK, file+":4:", "--user", "ann", "--action", "subscribe", "--topic", "$share/g/a/#")
	f(exitOK, file+":4:", "--user", "kim", "--group", "ops", "--action", "subscribe", "--topic", "#")
	f(exitFailed, "no rule contains the filter", "--user", "ann", "--action", "subscribe", "--topic", "$SYS/#")
	f(exitOK, "no rule denies it", "--action", "connect")
	f(exitUsage, "want connect, publish or subscribe", "--action", "read", "--topic", "a")
	f(exitUsage, "holds no wildcards", "--action", "publish", "--topic", "a/#")
	f(exitUsage, "topic filter is empty", "--action", "subscribe")
	f(exitUsage, "is not 0, 1 or 2", "--action", "publish", "--topic", "a", "--qos", "3")
	f(exitUsage, "is not name=value", "--action", "publish", "--topic", "a", "--claim", "x")

	code, stdout, _ := forebay("acl", "test", file, "--user", "ann", "--action", "connect", "-o", "json")
	var got explained
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitOK || !got.Allowed || got.Why == "" || got.Skipped == nil {
		t.Errorf("%d, %v: %s", code, err, stdout)
	}
	if code, stdout, _ := forebay("acl", "check", file); code != exitOK || stdout != file+": ok\n" {
		t.Errorf("%d %s", code, stdout)
	}
	if err := os.WriteFile(file, []byte("\nallow publish topic=a#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := forebay("acl", "check", file); code != exitFailed || !strings.Contains(stderr, file+":2: topic: ") {
		t.Errorf("%d %s", code, stderr)
	}
}

// What the guide shows works.
func TestSecurityGuideExamplesLoad(t *testing.T) {
	guide := document(t, "docs/SECURITY.md")
	rules := 0
	for _, text := range blocks(guide, "") {
		rules++
		file := filepath.Join(t.TempDir(), "acl")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := forebay("acl", "check", file); code != exitOK {
			t.Errorf("%s\n%s", stderr, text)
		}
	}
	dir := certificateFiles(t)
	for _, text := range blocks(guide, "yaml") {
		rules++
		text = strings.ReplaceAll(text, "/etc/forebay/tls", dir)
		if code, _, stderr := forebay("config", "check", "--files=false", write(t, text)); code != exitOK {
			t.Errorf("%s\n%s", stderr, text)
		}
	}
	if rules != 4 {
		t.Errorf("%d examples", rules)
	}
}

// certificateFiles makes what the guide has below /etc/forebay/tls.
func certificateFiles(t *testing.T) string {
	dir, ca := t.TempDir(), mqtttest.NewCA(t, "devices")
	mqtttest.WritePair(t, dir, "gateway", ca.Issue("gateway"))
	mqtttest.WriteFile(t, filepath.Join(dir, "devices.crt"), ca.PEM())
	operators := mqtttest.NewCA(t, "operators")
	mqtttest.WritePair(t, dir, "admin", operators.Issue("gateway"))
	mqtttest.WriteFile(t, filepath.Join(dir, "operators.crt"), operators.PEM())
	mqtttest.WriteFile(t, filepath.Join(dir, "devices.crl"), ca.Revoke(time.Hour))
	return dir
}
