package mqtt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every limit that has a counter is reached in some test, which names it, and stands in the table of docs/SECURITY.md.
func TestEveryLimitIsReachedInATest(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(b)
	}
	guide, err := os.ReadFile("../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range limitNames {
		if !strings.Contains(tests.String(), `"`+limit+`"`) {
			t.Errorf("no test reaches %s", limit)
		}
		if name := strings.Replace(limit, "listener_rate", "listeners[].rate", 1); !strings.Contains(string(guide), "`"+name) {
			t.Errorf("docs/SECURITY.md does not name %s", name)
		}
	}
}
