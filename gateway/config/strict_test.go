package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fault is the text of what Parse finds in yaml, without the environment.
func fault(t *testing.T, yaml string) string {
	t.Helper()
	_, err := Parse("f.yaml", []byte(yaml), nil, nil)
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestStrictRefuses(t *testing.T) {
	f := func(yaml, want string) {
		t.Helper()
		if got := fault(t, yaml); got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", yaml, got, want)
		}
	}
	f("hello\n", "f.yaml:1:1: is text: want keys below it ("+strings.Join(Keys().names(), ", ")+")")
	f("log: [level]\n", "f.yaml:1:6: log: is a list: want keys below it (level, format)")
	f("log:\n  level:\n", "f.yaml:2:9: log.level: has no value: want text, or leave the key out for the default")
	f("log:\n  level: [info]\n", "f.yaml:2:10: log.level: is a list: want text")
	f("gateway:\n  id: 007\n", `f.yaml:2:7: gateway.id: 007 is a number here: want text, in quotes: "007"`)
	f("gateway:\n  id: 2026-01-02\n", `f.yaml:2:7: gateway.id: 2026-01-02 is a date here: want text, in quotes: "2026-01-02"`)
	f("admin:\n  allow_remote: yes\n", `f.yaml:2:17: admin.allow_remote: "yes" is text: want true or false`)
	f("admin:\n  Address: localhost:1\n", "f.yaml:2:3: admin.Address: unknown key (did you mean address?)")
	f("spool:\n  streams:\n", "f.yaml:2:11: spool.streams: is empty: want a list, each item with keys "+
		"(name, filters, partitions, partition_by, retention, max_size, ttl, max_ttl, when_full, ack, ack_routes, ack_timeout, ack_fallback), or [] for none")
	f("spool:\n  streams:\n    - name: a\n      filters: a/#\n",
		"f.yaml:4:16: spool.streams[0].filters: is text: want a list, such as [text]")
	f("log:\n  <<: {level: info}\n", "f.yaml:2:3: log: merge keys (<<) are not supported: write the keys out")
	f("? [a]\n: b\n", "f.yaml:1:3: a key is a list: want a word")
	f("a: b: c\n", "f.yaml:1: not YAML: mapping values are not allowed in this context")
	f("log:\n  level: *nope\n", "f.yaml:2: not YAML: unknown anchor 'nope' referenced")
	f("log:\n  level: \xff\n", "f.yaml:2: not YAML: invalid leading UTF-8 octet")
	f("spool:\n  journal: {files: 99999999999999999999}\n",
		"f.yaml:2:20: spool.journal.files: 99999999999999999999 is not between -9223372036854775808 and 9223372036854775807")
}

func TestStrictTakes(t *testing.T) {
	f := func(yaml string) {
		t.Helper()
		if got := fault(t, yaml); got != "" {
			t.Errorf("%q: %s", yaml, got)
		}
	}
	f("")
	f("# nothing but a comment\n")
	f("---\nlog: {level: warn}\n")
	f("log:\n  # level: info\n")
	f("spool: {streams: []}\n")
	f("spool: {streams: [{name: a, filters: &f [a/#]}, {name: b, filters: *f}]}\n")
	f("spool: {streams: [{name: a, ttl: 0}]}\n")
}

// A file that is a few KiB may stand for more than fits into memory.
func TestStrictBoundsAliases(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("spool:\n  streams:\n    - &s {name: a, filters: &f [" + strings.Repeat("a,", 20000) + "a]}\n")
	yaml.WriteString(strings.Repeat("    - *s\n", 1000))
	if got := fault(t, yaml.String()); !strings.Contains(got, "the file has more than 100000 values here") {
		t.Errorf("got %.300s", got)
	}
}

func TestStrictBoundsFile(t *testing.T) {
	if got := fault(t, strings.Repeat("#", maxFile+1)); !strings.Contains(got, "a configuration has at most") {
		t.Errorf("got %q", got)
	}
}

// An error of Validate about a key that is already at fault would be an echo.
func TestFaultIsToldOnce(t *testing.T) {
	got := fault(t, "spool:\n  streams:\n    - nam: alarms\n")
	if want := "f.yaml:3:7: spool.streams[0].nam: unknown key (did you mean name?)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("log:\n  level: info\n")
	f.Add("spool: {streams: [{name: a, filters: &f [a/#]}, {name: b, filters: *f}]}\n")
	f.Add("? [a]\n: b\n---\n<<: *x\n")
	f.Add("bridge: {embedded: {enabled: true}, routes: [{name: a, topic: t, create_topics: {partitions: 3, configs: [a=b]}}]}\n")
	f.Add("mqtt: {listeners: [{name: a, type: websocket, address: '127.0.0.1:0', path: /m, origins: ['*']}]}\n")
	f.Fuzz(func(t *testing.T, yaml string) {
		l, err := Parse("f.yaml", []byte(yaml), nil, nil)
		if err != nil {
			if strings.Contains(err.Error(), "BUG") {
				t.Fatal(err)
			}
			return
		}
		var out strings.Builder
		if err := l.Print(&out); err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("printed.yaml", []byte(out.String()), nil, nil); err != nil {
			t.Fatalf("does not load what it printed: %v\n%s", err, &out)
		}
	})
}

// Whoever names another file as the configuration gets an answer that can be read, and soon: not a line for each of its lines.
func TestFaultsWithoutEndAreCut(t *testing.T) {
	f := func(name, yaml string) {
		t.Helper()
		_, err := Parse("f.yaml", []byte(yaml), nil, nil)
		faults, _ := errors.AsType[Faults](err)
		if len(faults) != MaxFaults+1 || faults[MaxFaults].Problem != "has more faults than these 100" {
			t.Errorf("%s: %d faults, the last %v", name, len(faults), err)
		}
	}
	many := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	f("unknown keys", "mqtt:\n"+many("  k%d: 3\n", 2000))
	f("items of the wrong type", "spool:\n  streams:\n"+many("    - %d\n", 2000))
	f("items that are not valid", "spool:\n  streams:\n"+many("    - {name: A%d}\n", 1000))
	f("no items", "bridge:\n  routes:\n"+many("    - {} # %d\n", 1000))
}

func TestMoreValuesThanAConfigurationHas(t *testing.T) {
	yaml := "spool:\n  streams:\n    - name: a\n      filters:\n" + strings.Repeat("        - a\n", maxNodes)
	want := "the file has more than 100000 values here, those that aliases stand for counted"
	if got := fault(t, yaml); !strings.Contains(got, want) || strings.Contains(got, "\n") {
		t.Errorf("got  %.200s\nwant %s", got, want)
	}
}
