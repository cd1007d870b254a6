package mqtt_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

const conformanceFile = "../docs/CONFORMANCE.md"

// notKept is how a row says that the gateway fails its statement, and noTest that no test of ours is possible.
const (
	notKept = "not kept yet"
	noTest  = "–"
)

// listRow is one line of a table of docs/CONFORMANCE.md.
type listRow struct {
	clause  string // first cell
	binds   string // empty in tables that do not say
	shownBy string // last cell
}

var testName = regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w*`)

// docs/CONFORMANCE.md names each statement of the standards once, and only tests and bad packets that there are.
func TestConformanceListIsComplete(t *testing.T) {
	b, err := os.ReadFile(conformanceFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), "\n## MQTT 5.0\n")
	five, old, ok2 := strings.Cut(rest, "\n## MQTT 3.1.1\n")
	if !ok || !ok2 {
		t.Fatal("no chapter for MQTT 5.0 or MQTT 3.1.1")
	}
	tests := moduleTests(t)
	for _, c := range []struct {
		name, text, clauses string
		not                 string // what a CONNECT of the other version holds
	}{
		{name: "choices and body text", text: before, not: "no packet"},
		{name: "MQTT 5.0", text: five, clauses: "testdata/mqtt5-clauses.txt", not: "MQTT\x04"},
		{name: "MQTT 3.1.1", text: old, clauses: "testdata/mqtt311-clauses.txt", not: "MQTT\x05"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows := tableRows(t, c.text)
			packets := badPackets(t, c.not)
			for _, r := range rows {
				checkRow(t, r, tests, packets)
			}
			if c.clauses != "" {
				checkClauses(t, rows, c.clauses)
			}
		})
	}
}

// checkClauses holds the rows against the list of numbers.
func checkClauses(t *testing.T, rows []listRow, file string) {
	count := make(map[string]int)
	for _, r := range rows {
		count[r.clause]++
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		clause := strings.TrimSpace(line)
		if clause == "" || strings.HasPrefix(clause, "#") {
			continue
		}
		if count[clause] != 1 {
			t.Errorf("%s has %d rows, want 1", clause, count[clause])
		}
		delete(count, clause)
	}
	for clause := range count {
		t.Errorf("%s is no statement of the standard", clause)
	}
}

func checkRow(t *testing.T, r listRow, tests map[string]bool, packets map[string]bool) {
	t.Helper()
	names := testName.FindAllString(r.shownBy, -1)
	for _, name := range names {
		if !tests[name] {
			t.Errorf("%s: there is no test %s", r.clause, name)
		}
	}
	_, corpus, hasCorpus := strings.Cut(r.shownBy, "corpus: ")
	if hasCorpus {
		for name := range strings.SplitSeq(corpus, "; ") {
			if !packets[name] {
				t.Errorf("%s: the corpus has no packet %q for this version", r.clause, name)
			}
		}
	}
	shown := len(names) > 0 || hasCorpus
	switch {
	case !slices.Contains([]string{"", "server", "client", "both"}, r.binds):
		t.Errorf("%s: binds %q", r.clause, r.binds)
	case strings.Contains(r.shownBy, notKept):
		t.Logf("%s: %s", r.clause, r.shownBy)
	case r.shownBy == noTest && r.binds != "client":
		t.Errorf("%s binds the server, and nothing shows that it is kept", r.clause)
	case r.shownBy != noTest && !shown:
		t.Errorf("%s: no test in %q", r.clause, r.shownBy)
	}
}

// tableRows returns the rows of all tables whose last column is "Shown by".
func tableRows(t *testing.T, text string) (rows []listRow) {
	var head []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			head = nil
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case head == nil:
			head = cells
			if head[len(head)-1] != "Shown by" {
				t.Errorf("the last column of %q is not Shown by", line)
			}
		case strings.HasPrefix(cells[0], "---"):
		case len(cells) != len(head):
			t.Errorf("%q has %d cells, want %d", line, len(cells), len(head))
		default:
			r := listRow{clause: cells[0], shownBy: cells[len(cells)-1]}
			if i := slices.Index(head, "Binds"); i >= 0 {
				r.binds = cells[i]
				if r.binds == "" {
					t.Errorf("%s: binds nobody", r.clause)
				}
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// badPackets returns the names in the corpus, without those whose first packet holds not.
func badPackets(t *testing.T, not string) map[string]bool {
	names := make(map[string]bool)
	for _, m := range mqtttest.MalformedPackets(t) {
		other := map[string]string{"MQTT\x04": "v4", "MQTT\x05": "v5"}[not]
		if m.State != other && (m.State != "first" || !bytes.Contains(m.Bytes, []byte(not))) {
			names[m.Name] = true
		}
	}
	return names
}

// moduleTests returns the names of all tests and fuzz targets of the module.
func moduleTests(t *testing.T) map[string]bool {
	names := make(map[string]bool)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && testName.MatchString(fn.Name.Name) {
				names[fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
