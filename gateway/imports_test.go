package gateway_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/forebay-gateway/forebay/"

type importRule struct {
	who    string   // a package and everything below it; empty is the whole module
	not    string   // import path prefix that it may not have
	except []string // subtrees that are free of the rule: imported ones for our own packages, importing ones for a library
	why    string
}

// importRules say who may know whom. Imports run one way, so that a part can be read, tested and replaced alone.
var importRules = []importRule{
	{"spool", module + "mqtt", nil, "the log does not know who writes it"},
	{"spool", module + "bridge", nil, "the log does not know who reads it"},
	{"spool", module + "tiering", nil, "the log does not know who moves its segments"},
	{"spool", module + "gateway", []string{"gateway/unit"}, "the log is opened by the gateway, not the other way round"},
	{"mqtt", module + "bridge", nil, "devices do not depend on an upstream"},
	{"mqtt", module + "tiering", nil, "devices do not depend on object storage"},
	{"mqtt", module + "gateway", []string{"gateway/unit"}, "parts are wired from above"},
	{"bridge", module + "mqtt", nil, "a route reads records, whatever brought them"},
	{"bridge", module + "tiering", nil, "replay reads through the spool"},
	{"bridge", module + "gateway", []string{"gateway/unit"}, "parts are wired from above"},
	{"tiering", module + "mqtt", nil, "a segment is a file, whatever brought its records"},
	{"tiering", module + "bridge", nil, "a segment is a file, whoever reads its records"},
	{"tiering", module + "gateway", []string{"gateway/unit"}, "parts are wired from above"},
	{"loadtest", module + "mqtt", nil, "who checks the product must not share its code"},
	{"loadtest", module + "spool", nil, "who checks the product must not share its code"},
	{"loadtest", module + "bridge", nil, "who checks the product must not share its code"},
	{"loadtest", module + "gateway", nil, "who checks the product must not share its code"},
	{"gateway/unit", module, nil, "the lowest layer knows nobody"},
	{"", module + "bridge/kafkatest", nil, "a test broker is not part of the product"},

	{"", "github.com/mochi-mqtt/", []string{"mqtt"}, "packets.Packet does not leave mqtt"},
	{"", "github.com/twmb/franz-go", []string{"bridge/kafka", "bridge/embedded", "loadtest"}, "kgo.Record does not leave bridge/kafka"},
	{"", "go.etcd.io/bbolt", []string{"spool"}, "the storage library stays in the spool"},
	{"", "gocloud.dev", []string{"tiering/store"}, "one place speaks to object stores"},
	{"", "github.com/parquet-go/", []string{"tiering/export"}, "columns are made in one place"},
	{"", "github.com/spf13/viper", []string{"gateway/config"}, "one place reads the configuration"},
	{"", "github.com/spf13/cobra", []string{"cmd"}, "flags belong to the command line"},
}

// TestImportsRunOneWay checks the direct imports of every package, tests left out. Direct imports are enough: a chain
// that breaks a rule has a link that breaks it.
func TestImportsRunOneWay(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := 0
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		packages++
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, imp := range p.Imports {
			if why := refused(name, imp); why != "" {
				t.Errorf("%s imports %s: %s", name, imp, why)
			}
		}
	}
	if packages < 8 {
		t.Errorf("looked at %d packages: go list did not show the module", packages)
	}
}

// refused returns why package name may not import imp, or "" when it may.
func refused(name, imp string) string {
	for _, r := range importRules {
		if within(name, r.who) && strings.HasPrefix(imp, r.not) && !r.excepts(name, imp) {
			return r.why
		}
	}
	return ""
}

// excepts looks at the imported package where the rule is about our own, at the importing one where it is about a library.
func (r importRule) excepts(name, imp string) bool {
	subject := name
	if own, ok := strings.CutPrefix(imp, module); ok {
		subject = own
	}
	for _, e := range r.except {
		if within(subject, e) {
			return true
		}
	}
	return false
}

// within says whether a package is tree or stands below it; the empty tree is the whole module.
func within(name, tree string) bool {
	return tree == "" || name == tree || strings.HasPrefix(name, tree+"/")
}

// The rules must be able to fail.
func TestImportRulesRefuse(t *testing.T) {
	f := func(name, imp string, want bool) {
		t.Helper()
		got := refused(name, imp) != ""
		if got != want {
			t.Errorf("%s imports %s: refused is %v, want %v", name, imp, got, want)
		}
	}
	f("mqtt", module+"bridge/kafka", true)
	f("spool/journal", module+"gateway", true)
	f("spool/journal", module+"gateway/unit", false)
	f("bridge", "github.com/twmb/franz-go/pkg/kgo", true)
	f("bridge/kafka", "github.com/twmb/franz-go/pkg/kgo", false)
	f("gateway", module+"bridge/kafkatest", true)
	f("loadtest/fleet", module+"spool", true)
}
