package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/forebay-gateway/forebay/gateway/config"
)

const root = "../../../.."

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	s := newSource(root)
	for name, write := range files {
		want, err := write(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the code says: run make generate", name)
		}
	}
}

// setting is a line of the example that is a setting and not a remark.
var setting = regexp.MustCompile(`(?m)^( *)#(\S|  )`)

// Whoever takes a # away must get a file that loads, and so must whoever takes all of them.
func TestEverySettingOfTheExampleLoads(t *testing.T) {
	file := filepath.Join(root, "configs/forebay.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Parse(file, data, nil, nil); err != nil {
		t.Error(err)
	}
	all := setting.ReplaceAll(data, []byte("$1$2"))
	if bytes.Equal(all, data) {
		t.Fatal("found no settings")
	}
	if _, err := config.Parse(file, all, nil, nil); err != nil {
		t.Errorf("with every setting:\n%v", err)
	}
}

func TestFilesInConfigsLoad(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(root, "configs/*.yaml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("found %q, %v", names, err)
	}
	for _, name := range names {
		if base := filepath.Base(name); base == "alerts.yaml" || base == "slo.yaml" { // rules of Prometheus, which have tests of their own
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Parse(name, data, nil, nil); err != nil {
			t.Error(err)
		}
	}
}
