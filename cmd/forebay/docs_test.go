package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The documents that an operator reads: nothing in them may be out of date without a test that says so.
func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documents are the names of README.md, CONTRIBUTING.md and all of docs.
func documents(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil || len(found) < 10 {
		t.Fatal(found, err)
	}
	names := []string{"README.md", "CONTRIBUTING.md"}
	for _, path := range found {
		names = append(names, "docs/"+filepath.Base(path))
	}
	return names
}

// blocks are the fenced blocks of a document in the given language; "" is a block without one.
func blocks(text, language string) []string {
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		if m[1] == language {
			out = append(out, m[2])
		}
	}
	return out
}

func TestReadmeConfigurationsLoad(t *testing.T) {
	found := append(blocks(document(t, "README.md"), "yaml"), append(blocks(document(t, "docs/SPOOL.md"), "yaml"), blocks(document(t, "docs/TIERING.md"), "yaml")...)...)
	if len(found) == 0 {
		t.Fatal("README.md shows no configuration")
	}
	for _, text := range found {
		if n := strings.Count(text, "\n"); n > 15 {
			t.Errorf("a configuration of %d lines: fifteen are promised", n)
		}
		if code, _, stderr := forebay("config", "check", "--files=false", write(t, text)); code != exitOK {
			t.Errorf("exit code %d: %s\n%s", code, stderr, text)
		}
	}
}

// Every command line of the README is one that exists. What they do is shown by the tests of the commands.
func TestReadmeCommandsExist(t *testing.T) {
	makefile := document(t, "Makefile")
	readme := document(t, "README.md")
	lines := strings.Split(strings.Join(blocks(readme, ""), "\n"), "\n")
	for _, m := range regexp.MustCompile("`((?:make|bin/forebay) [^`]*)`").FindAllStringSubmatch(readme, -1) {
		lines = append(lines, m[1])
	}
	seen := 0
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " #")
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0] == "make":
			seen++
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(words[1]) + `:`).MatchString(makefile) {
				t.Errorf("%q: the Makefile has no target %s", line, words[1])
			}
		case len(words) > 1 && words[0] == "bin/forebay":
			seen++
			cmd, rest, err := newRoot().Find(words[1:])
			if err != nil || cmd.Name() == "forebay" {
				t.Errorf("%q: no such command: %v", line, err)
				continue
			}
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
	}
	if seen < 8 {
		t.Errorf("saw %d command lines in README.md: the test does not find them any more", seen)
	}
}

// Every command line that a document names, in a sentence or in a block, is one that exists.
func TestDocumentsNameRealCommands(t *testing.T) {
	seen := 0
	for _, name := range documents(t) {
		text := document(t, name)
		lines := regexp.MustCompile("`forebay ([^`|]*)`").FindAllStringSubmatch(text, -1)
		for _, block := range blocks(text, "") {
			lines = append(lines, regexp.MustCompile(`(?m)^(?:bin/)?forebay ([^|#\n]*)`).FindAllStringSubmatch(block, -1)...)
		}
		for _, m := range lines {
			seen++
			words := strings.Fields(strings.ReplaceAll(m[1], "'", ""))
			cmd, rest, err := newRoot().Find(words)
			if err != nil || cmd.Name() == "forebay" {
				t.Errorf("%s: %q: no such command: %v", name, m[1], err)
				continue
			}
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: %q: %v", name, m[1], err)
			}
		}
	}
	if seen < 60 {
		t.Errorf("saw %d command lines: the test does not find them any more", seen)
	}
}

// Every metric that a document names is one that the program has.
func TestDocumentsNameRealMetrics(t *testing.T) {
	var source strings.Builder
	for _, part := range []string{"spool", "mqtt", "bridge", "gateway", "tiering"} {
		err := filepath.WalkDir(filepath.Join("..", "..", part), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			source.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range documents(t) {
		text := regexp.MustCompile(`\]\(#[^)]*\)`).ReplaceAllString(document(t, name), "]") // an anchor runs a metric and its label together
		for _, m := range regexp.MustCompile(`\bforebay_(?:spool|mqtt|bridge|downlink|replay|gateway|tiering)_([a-z_]+)\b`).FindAllStringSubmatch(text, -1) {
			if s := source.String(); !strings.Contains(s, `"`+m[0]+`"`) && !strings.Contains(s, `"`+m[1]+`"`) {
				t.Errorf("%s names the metric %s, which nothing registers", name, m[0])
			}
		}
	}
}

// The map names rooms that are there; what stands in brackets is still to come.
func TestDesignNamesRealFiles(t *testing.T) {
	_, house, _ := strings.Cut(document(t, "docs/DESIGN.md"), "## The house, room by room")
	house, _, _ = strings.Cut(house, "A PUBLISH walks")
	house = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(house, "")
	there := map[string]bool{}
	for _, part := range []string{"cmd", "gateway", "mqtt", "spool", "bridge", "loadtest", "tiering"} {
		if err := filepath.WalkDir(filepath.Join("..", "..", part), func(path string, d os.DirEntry, err error) error {
			there[d.Name()] = true
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	names := regexp.MustCompile(`[a-z0-9]+\.go`).FindAllString(house, -1)
	if len(names) < 40 {
		t.Errorf("found %d files on the map", len(names))
	}
	for _, name := range names {
		if !there[name] {
			t.Errorf("docs/DESIGN.md names %s, which is not there", name)
		}
	}
}

// What the documents link to is there.
func TestDocumentsLinkToWhatIsThere(t *testing.T) {
	for _, name := range documents(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(document(t, name), -1) {
			if _, err := os.Stat(filepath.Join("..", "..", filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
