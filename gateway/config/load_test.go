package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
)

// flagsOf are the flags of a command line.
func flagsOf(t *testing.T, args ...string) *Flags {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags := AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return flags
}

func TestEmptyFileIsDefaults(t *testing.T) {
	l, err := Parse("f.yaml", nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	new(Loaded).fillEntries("", reflect.ValueOf(&want).Elem())
	got, wanted := l.Values(), plain(reflect.ValueOf(want.Resolved()))
	if !reflect.DeepEqual(got, wanted) { // as values: no list and an empty one are the same
		t.Errorf("got  %+v\nwant %+v", got, wanted)
	}
}

func TestFlagsWinOverEnvironmentOverFile(t *testing.T) {
	file := []byte("log:\n  level: warn\n  format: json\ngateway:\n  data_dir: /file\nspool:\n  max_size: 20GiB\n")
	env := []string{"FOREBAY_GATEWAY_DATA_DIR=/env", "FOREBAY_SPOOL_MAX_SIZE=30GiB", "HOME=/root"}
	l, err := Parse("f.yaml", file, env, flagsOf(t, "--data-dir", "/flag", "--set", "spool.journal.files=4"))
	if err != nil {
		t.Fatal(err)
	}
	f := func(path string, got, want any, source string) {
		t.Helper()
		if got != want {
			t.Errorf("%s = %v, want %v", path, got, want)
		}
		if s := l.Source(path); s != source {
			t.Errorf("source of %s is %q, want %q", path, s, source)
		}
	}
	c := l.Config
	f("log.level", c.Log.Level, LevelWarn, "f.yaml:2")
	f("log.format", c.Log.Format, FormatJSON, "f.yaml:3")
	f("gateway.data_dir", c.Gateway.DataDir, "/flag", "flag --data-dir")
	f("spool.max_size", c.Spool.MaxSize, 30*unit.GiB, "environment FOREBAY_SPOOL_MAX_SIZE")
	f("spool.journal.files", c.Spool.Journal.Files, 4, "flag --set")
	f("spool.min_free", c.Spool.MinFree, DefaultConfig().Spool.MinFree, "default")
	f("spool.dir", c.Spool.Dir, "/flag/spool", "default")
}

func TestEnvironmentRefuses(t *testing.T) {
	f := func(entry, want string) {
		t.Helper()
		_, err := Parse("f.yaml", nil, []string{entry}, nil)
		if err == nil || err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", entry, err, want)
		}
	}
	f("FOREBAY_SPOOL_MAXSIZE=1GiB", "environment FOREBAY_SPOOL_MAXSIZE: sets no key (did you mean FOREBAY_SPOOL_MAX_SIZE?)")
	f("FOREBAY_ADMIN_PORT=9700", "environment FOREBAY_ADMIN_PORT: sets no key (did you mean FOREBAY_ADMIN_ADDRESS?)")
	f("FOREBAY_WHATEVER=1", "environment FOREBAY_WHATEVER: sets no key: the name is FOREBAY_ and the path of the key, such as FOREBAY_SPOOL_MAX_SIZE")
	f("FOREBAY_SPOOL_MAX_SIZE=1", `environment FOREBAY_SPOOL_MAX_SIZE: spool.max_size: "1" has no unit: want `+unit.BytesAllowed)
	f("FOREBAY_SPOOL_JOURNAL_FILES=1", "environment FOREBAY_SPOOL_JOURNAL_FILES: spool.journal.files: 1 is not between 2 and 64")
	f("FOREBAY_ADMIN_ALLOW_REMOTE=1", `environment FOREBAY_ADMIN_ALLOW_REMOTE: admin.allow_remote: "1" is not a boolean: want true or false`)
	f("FOREBAY_SPOOL_STREAMS=alarms", "environment FOREBAY_SPOOL_STREAMS: spool.streams: lists of objects can only be set in the file")
	f("FOREBAY_SPOOL_STREAMS_TTL=1h", "environment FOREBAY_SPOOL_STREAMS_TTL: spool.streams[].ttl: lists of objects can only be set in the file")
	f("FOREBAY_SPOOL_JOURNAL=x", "environment FOREBAY_SPOOL_JOURNAL: spool.journal: is a section: set the keys below it, such as FOREBAY_SPOOL_JOURNAL_FILE_SIZE")
}

// Kubernetes and Docker describe a service called forebay to every container in variables of this form.
func TestEnvironmentOfContainersIsNoFault(t *testing.T) {
	env := []string{
		"FOREBAY_CONFIG=/etc/forebay/forebay.yaml",
		"FOREBAY_SERVICE_HOST=10.0.0.1", "FOREBAY_SERVICE_PORT=1883", "FOREBAY_SERVICE_PORT_MQTT=1883",
		"FOREBAY_PORT=tcp://10.0.0.1:1883", "FOREBAY_PORT_1883_TCP=tcp://10.0.0.1:1883", "FOREBAY_PORT_1883_TCP_ADDR=10.0.0.1",
		"FOREBAY_MQTT_SERVICE_HOST=10.0.0.1", "FOREBAY_MQTT_PORT=tcp://10.0.0.1:1883", "FOREBAY_MQTT_PORT_1883_TCP_PROTO=tcp",
		"FOREBAY_LOG_LEVEL=", // empty counts as not set
	}
	if _, err := Parse("f.yaml", nil, env, nil); err != nil {
		t.Error(err)
	}
}

func TestFlagsRefuse(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		_, err := Parse("f.yaml", nil, nil, flagsOf(t, args...))
		if err == nil || err.Error() != want {
			t.Errorf("%v:\ngot  %v\nwant %s", args, err, want)
		}
	}
	f("flag --set: want key=value, got spool.max_size", "--set", "spool.max_size")
	f("flag --set: spool.maxsize: unknown key (did you mean spool.max_size?)", "--set", "spool.maxsize=1GiB")
	f("flag --set: spool.streams: sections and lists of objects can only be set in the file", "--set", "spool.streams=a")
	f("flag --set: spool.streams[0].ttl: unknown key", "--set", "spool.streams[0].ttl=1h")
	f(`flag --log-level: log.level: "loud" is not a level: want debug, info, warn or error`, "--log-level", "loud")
	f("flag --set: admin.address: \"x\" is not an address: want host:port, such as 127.0.0.1:9600", "--set", "admin.address=x")
}

func TestFaultsFromEverywhereAtOnce(t *testing.T) {
	_, err := Parse("f.yaml", []byte("log: {colour: red}\n"), []string{"FOREBAY_SPOOL_SNYC=sync"}, flagsOf(t, "--log-format", "xml"))
	want := strings.Join([]string{
		"f.yaml:1:7: log.colour: unknown key: allowed are format, level",
		"environment FOREBAY_SPOOL_SNYC: sets no key (did you mean FOREBAY_SPOOL_SYNC?)",
		`flag --log-format: log.format: "xml" is not a log format: want text or json`,
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// viper folds keys and splits them at dots: values must come through as they are.
func TestValuesAreLeftAlone(t *testing.T) {
	file := "gateway: {id: Plant.North_7}\nspool:\n  streams:\n    - name: alarms\n      filters: [Plant/+/Temp.C, 'a.b/#', '07']\n"
	l, err := Parse("f.yaml", []byte(file), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Config.Gateway.ID; got != "Plant.North_7" {
		t.Errorf("gateway.id = %q", got)
	}
	if got, want := l.Config.Spool.Streams[0].Filters, []string{"Plant/+/Temp.C", "a.b/#", "07"}; !reflect.DeepEqual(got, want) {
		t.Errorf("filters = %q, want %q", got, want)
	}
}

func TestEntriesGetTheirDefaults(t *testing.T) {
	l, err := Parse("f.yaml", []byte("spool: {streams: [{name: alarms, partitions: 3}]}\n"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := l.Config.Spool.Streams[0]
	if got.Partitions != 3 || got.WhenFull == "" || got.Retention == 0 {
		t.Errorf("got %+v", got)
	}
}

// A list in the file replaces the default list as a whole: nothing of an item that is not there any more may shine through.
func TestListReplacesDefaultList(t *testing.T) {
	f := func(yaml string, want ...mqtt.ListenerConfig) {
		t.Helper()
		l, err := Parse("f.yaml", []byte(yaml), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Config.MQTT.Listeners; fmt.Sprint(got) != fmt.Sprint(want) { // no origins and an empty list of them are the same
			t.Errorf("%q: got %+v, want %+v", yaml, got, want)
		}
	}
	f("mqtt: {listeners: []}\n")
	f("mqtt: {listeners: [{name: a, type: tcp, address: '127.0.0.1:1'}]}\n", mqtt.ListenerConfig{Name: "a", Type: "tcp", Address: "127.0.0.1:1"})
	f("mqtt: {max_queued: 7}\n", mqtt.DefaultConfig().Listeners...)
}

func TestPrintLoadsAgain(t *testing.T) {
	file := "gateway: {id: '007'}\nlog:\n  level: warn\nspool:\n  streams:\n    - {name: alarms, filters: [\"#\", \"it's\"]}\n"
	l, err := Parse("f.yaml", []byte(file), []string{"FOREBAY_LOG_FORMAT=json"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := l.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  level: warn # f.yaml:3\n", "  format: json # environment FOREBAY_LOG_FORMAT\n", "  min_free: 256MiB\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	again, err := Parse("printed.yaml", []byte(out.String()), nil, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if !reflect.DeepEqual(again.Config, l.Config) {
		t.Errorf("got  %+v\nwant %+v", again.Config, l.Config)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.yaml")
	if _, err := Load(flagsOf(t, "--config", missing)); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("got %v", err)
	}
	file := filepath.Join(dir, "f.yaml")
	if err := os.WriteFile(file, []byte("log: {level: warn}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvFile, file)
	l, err := Load(nil)
	if err != nil || l.Config.Log.Level != LevelWarn {
		t.Errorf("got %v", err)
	}
	if _, err := Load(flagsOf(t, "--config", missing)); err == nil {
		t.Error("the environment won over the flag")
	}
}

// Two keys with one variable would set each other.
func TestEveryKeyHasItsOwnVariable(t *testing.T) {
	seen := map[string]string{}
	Keys().settable(func(k *Key) {
		name := EnvName(k.Path)
		if other, ok := seen[name]; ok {
			t.Errorf("%s sets %s and %s", name, other, k.Path)
		}
		if foreign(name, "tcp://10.0.0.1:1883") {
			t.Errorf("%s would set %s, but counts as a variable of the container", name, k.Path)
		}
		seen[name] = k.Path
	})
	if len(seen) < 15 {
		t.Errorf("only %d keys can be set", len(seen))
	}
}

// Validate's errors lead to a line only when they start with the path of a key.
func TestLocate(t *testing.T) {
	l := &Loaded{file: "f.yaml", places: map[string]place{"spool": {3, 1}, "spool.streams": {7, 3}, "spool.streams[1]": {9, 7}}}
	f := func(text, want string) {
		t.Helper()
		if got := l.locate(errors.New(text)).Error(); got != want {
			t.Errorf("locate(%q) = %q, want %q", text, got, want)
		}
	}
	f("spool.streams[1].name: is missing", "f.yaml:9:7: spool.streams[1].name: is missing")
	f("spool.streams: too many", "f.yaml:7:3: spool.streams: too many")
	f("spool.max_size: too small", "f.yaml:3:1: spool.max_size: too small")
	f("admin.address: taken", "f.yaml: admin.address: taken")
	f("Something else: went wrong", "f.yaml: Something else: went wrong")
}
