package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each testdata/*.bad.yaml starts with comments that hold the messages it must give, all of them and no others.
func TestBadFilesGiveTheirMessages(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %d bad files, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for line := range strings.Lines(string(data)) {
			message, ok := strings.CutPrefix(line, "# testdata/")
			if !ok {
				break
			}
			want = append(want, "testdata/"+strings.TrimSpace(message))
		}
		_, err = Parse(file, data, nil, nil)
		if _, ok := errors.AsType[Faults](err); !ok {
			t.Errorf("%s: error is %T (%v), want Faults", file, err, err)
			continue
		}
		if got := err.Error(); got != strings.Join(want, "\n") {
			t.Errorf("%s:\ngot  %s\nwant %s", file, got, strings.Join(want, "\nwant "))
		}
	}
}
