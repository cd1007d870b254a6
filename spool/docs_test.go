package spool

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentNamesTestsThatExist holds docs/SPOOL.md against the code: a table of proofs is worth what its tests are.
func TestDocumentNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("../docs/SPOOL.md")
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Benchmark)\\w+)`").FindAllSubmatch(text, -1)
	if len(named) < 30 {
		t.Errorf("%d tests are named", len(named))
	}
	for _, m := range named {
		if name := string(m[1]); !there[name] {
			t.Errorf("docs/SPOOL.md names %s, which is not there", name)
		}
	}
	for n := range 11 {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| I%d \\|.*`Test", n+1))
		if !row.Match(text) {
			t.Errorf("invariant I%d has no test", n+1)
		}
	}
}
