package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/configs"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// forebay runs a command line inside this process.
func forebay(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	code = run(root)
	return code, out.String(), errs.String()
}

// write makes a file for a test and returns its name.
func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "forebay.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestExitCodes(t *testing.T) {
	good, bad := write(t, "log: {level: warn}\n"), write(t, "log: {levle: warn}\n")
	f := func(want int, contains string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(args...)
		if code != want || !strings.Contains(stdout+stderr, contains) {
			t.Errorf("forebay %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, want, contains, stdout, stderr)
		}
	}
	f(exitOK, good+": ok", "config", "check", good)
	f(exitOK, good+": ok", "config", "check", "--config", good)
	f(exitFailed, "log.levle: unknown key (did you mean level?)", "config", "check", bad)
	f(exitFailed, "no such file", "config", "check", good+".missing")
	files := write(t, "mqtt:\n  auth:\n    methods: [anonymous]\n    acl: {file: /nowhere/acl}\n")
	f(exitFailed, "mqtt.auth.acl.file: /nowhere/acl: no such file or directory", "config", "check", files)
	f(exitOK, files+": ok", "config", "check", "--files=false", files)
	tls := write(t, "admin:\n  tls: {cert_file: /nowhere/crt, key_file: /nowhere/key, client_ca_file: /nowhere/ca, client_cert: optional}\n")
	f(exitFailed, "admin.tls.cert_file: open /nowhere/crt: no such file or directory", "config", "check", tls)
	f(exitOK, tls+": ok", "config", "check", "--files=false", tls)
	f(exitUsage, "are two files", "config", "check", "--config", good, bad)
	f(exitUsage, "unknown flag", "config", "check", "--strict", good)
	f(exitUsage, "want forebay config check [FILE] (--config names a configuration), got "+good+" "+bad, "config", "check", good, bad)
	f(exitUsage, "want forebay serve (--config names a configuration), got "+good, "serve", good)
	f(exitUsage, "want forebay route show ROUTE, got no argument", "route", "show")
	f(exitUsage, "want forebay route failover ROUTE --to UPSTREAM, and there is no --to: forebay route show a lists", "route", "failover", "a")
	f(exitUsage, "want forebay route show ROUTE, got a b", "route", "show", "a", "b")
	f(exitUsage, `unknown command "x" for "forebay"`, "help", "x")
	f(exitUsage, `unknown command "x" for "forebay route"`, "help", "route", "x")
	f(exitOK, "Show a route with its lanes", "help", "route", "show")
	f(exitUsage, `unknown command "x" for "forebay completion"`, "completion", "x")
	f(exitUsage, "want text or json", "version", "--output", "xml")
	f(exitUsage, `unknown command "sreve" for "forebay" (did you mean serve?)`, "sreve")
	f(exitUsage, `unknown command "chekc" for "forebay config" (did you mean check?)`, "config", "chekc")
	f(exitUsage, `unknown command "x" for "forebay"`, "x")
	f(exitUsage, "forebay spool inspect wants one of journal, meta, segment, stream first", "spool", "inspect", "-c", good)
	f(exitUsage, "forebay route wants one of ", "route", "--config", good)
	f(exitUsage, "unknown flag: --confg", "serve", "--confg", good)
	for _, command := range []string{"spool", "tier"} {
		f(exitUsage, "--limit: -1 is negative", command, "dump", "default", "-n", "-1", "--config", good)
		f(exitUsage, "--from 5 and --to 3: nothing is between them", command, "dump", "default", "--from", "5", "--to", "3", "--config", good)
		f(exitUsage, "nothing is between them", command, "dump", "default", "--since", "1h", "--until", "2h", "--config", good)
	}
	f(exitUsage, "log.levle", "serve", "--config", bad)
	f(exitUsage, "no such file", "serve", "--config", good+".missing")
	f(exitOK, "forebay", "version")
	f(exitOK, "forebay version", "--version")
	f(exitOK, "Usage:", "help")
}

func TestConfigCheckJSON(t *testing.T) {
	f := func(text string, wantCode int, wantOK bool, wantFaults int) {
		t.Helper()
		code, stdout, stderr := forebay("config", "check", "--output", "json", "--print", write(t, text))
		var got checked
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		if code != wantCode || got.OK != wantOK || len(got.Faults) != wantFaults || stderr != "" {
			t.Errorf("%q: exit code %d, %+v, stderr %q", text, code, got, stderr)
		}
		if wantOK != (got.Config["log"] != nil) {
			t.Errorf("%q: config is %v", text, got.Config)
		}
	}
	f("log: {level: warn}\n", exitOK, true, 0)
	f("log: {level: loud}\nlgo: {}\n", exitFailed, false, 2)
}

func TestConfigCheckPrint(t *testing.T) {
	t.Setenv("FOREBAY_LOG_FORMAT", "json")
	file := write(t, "log: {level: warn}\n")
	code, stdout, stderr := forebay("config", "check", "--print", "--data-dir", "/somewhere", file)
	if code != exitOK {
		t.Fatal(stderr)
	}
	for _, want := range []string{
		"level: warn # " + file + ":1\n",
		"format: json # environment FOREBAY_LOG_FORMAT\n",
		"data_dir: /somewhere # flag --data-dir\n",
		"max_size: 10GiB\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestConfigInitNeverOverwrites(t *testing.T) {
	name := filepath.Join(t.TempDir(), "forebay.yaml")
	if code, _, stderr := forebay("config", "init", name); code != exitOK {
		t.Fatal(stderr)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, configs.Example) {
		t.Errorf("wrote %.60q, %v", got, err)
	}
	if code, _, _ := forebay("config", "check", name); code != exitOK {
		t.Error("what init wrote does not check")
	}
	if err := os.WriteFile(name, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := forebay("config", "init", name); code != exitFailed || !strings.Contains(stderr, "exists") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if got, _ := os.ReadFile(name); string(got) != "mine" {
		t.Errorf("overwrote the file with %.60q", got)
	}
}

func TestConfigInitWritesToStandardOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"config", "init"}, {"config", "init", "-"}} {
		code, stdout, stderr := forebay(args...)
		if code != exitOK || stdout != string(configs.Example) {
			t.Errorf("%q: code %d, %d bytes, stderr %q", args, code, len(stdout), stderr)
		}
	}
	if made, err := os.ReadDir("."); err != nil || len(made) != 0 {
		t.Errorf("files were made: %v, %v", made, err)
	}
}

func TestConfigSchemaIsJSON(t *testing.T) {
	code, stdout, _ := forebay("config", "schema")
	if code != exitOK || !json.Valid([]byte(stdout)) {
		t.Errorf("exit code %d, %.100s", code, stdout)
	}
}

func TestVersion(t *testing.T) {
	_, stdout, _ := forebay("version", "--output", "json")
	var got map[string]string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || got["go"] == "" || got["commit"] == "" {
		t.Errorf("%v, %v", got, err)
	}
}

// The flags of serve are named in the reference, and the environment variable in every help.
func TestHelpNamesTheFile(t *testing.T) {
	_, stdout, _ := forebay("serve", "--help")
	if !strings.Contains(stdout, config.EnvFile) || !strings.Contains(stdout, config.DefaultFile) {
		t.Errorf("got %s", stdout)
	}
}

// Every command that is called wrongly names itself and what it wants.
func TestCommandsSayWhatTheyWant(t *testing.T) {
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Annotations[cobra.BashCompOneRequiredFlag] != nil {
				t.Errorf("%s --%s: cobra says that it is missing, in its own words", cmd.CommandPath(), flag.Name)
			}
		})
		args := append(strings.Fields(cmd.CommandPath())[1:], "a", "b", "c", "d")
		if cmd.HasSubCommands() || cmd.Args == nil || cmd.Name() == "help" || cmd.Args(cmd, args[len(args)-4:]) == nil {
			return
		}
		seen++
		code, _, stderr := forebay(args...)
		if want := "forebay: want " + cmd.CommandPath(); code != exitUsage || !strings.HasPrefix(stderr, want) {
			t.Errorf("forebay %s: exit code %d, %q, want %q", strings.Join(args, " "), code, stderr, want)
		}
	}
	walk(newRoot())
	if seen < 30 {
		t.Errorf("saw %d commands", seen)
	}
}
