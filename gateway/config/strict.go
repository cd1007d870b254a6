package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile  = 4 << 20 // a configuration is a few KiB: whoever names a log file or a disk image gets an answer, not a full memory
	maxNodes = 100_000 // aliases of aliases grow a small file without end; a configuration has hundreds of values
)

// place is where something stands in the file.
type place struct{ line, column int }

// strict is the first pass: one file against the tree of keys.
type strict struct {
	file   string
	faults Faults
	places map[string]place // by key path, of every key that the file gives
	nodes  int
}

// check reads the YAML in data. It returns what can be used of it, as viper takes it; what cannot has a fault and is left out.
func (s *strict) check(data []byte) map[string]any {
	if len(data) > maxFile {
		s.add(nil, "", fmt.Sprintf("has %d bytes, a configuration has at most %d", len(data), maxFile))
		return nil
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // an empty file takes every default
	} else if err != nil {
		s.syntax(err, data)
		return nil
	}
	root := doc.Content[0]
	values := s.section(Keys(), "", root)
	s.oneDocument(dec, data)
	return values
}

func (s *strict) oneDocument(dec *yaml.Decoder, data []byte) {
	var next yaml.Node
	switch err := dec.Decode(&next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		s.syntax(err, data)
	default:
		s.add(next.Content[0], "", "a second document starts here: want one document without --- in between")
	}
}

// section checks the keys of a mapping against those below k.
func (s *strict) section(k *Key, path string, n *yaml.Node) map[string]any {
	n = resolve(n)
	if n.ShortTag() == "!!null" {
		return nil // all keys below are commented out
	}
	if n.Kind != yaml.MappingNode {
		s.add(n, path, fmt.Sprintf("is %s: want keys below it (%s)", describe(n), strings.Join(k.names(), ", ")))
		return nil
	}
	values, first := map[string]any{}, map[string]place{}
	for i := 0; i+1 < len(n.Content) && len(s.faults) <= MaxFaults; i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind != yaml.ScalarNode {
			s.add(name, path, "a key is "+describe(name)+": want a word")
			continue
		}
		childPath := join(path, name.Value)
		if name.ShortTag() == "!!merge" {
			s.add(name, path, "merge keys (<<) are not supported: write the keys out")
			continue
		}
		if at, twice := first[name.Value]; twice {
			s.add(name, childPath, fmt.Sprintf("is given twice, first in line %d", at.line))
			continue
		}
		first[name.Value] = place{name.Line, name.Column}
		child := k.child(name.Value)
		if child == nil {
			s.add(name, childPath, unknown(k, name.Value))
			continue
		}
		s.places[childPath] = place{name.Line, name.Column}
		if v := s.value(child, childPath, value); v != nil {
			values[child.Name] = v
		}
	}
	return values
}

// value checks what stands behind a key. It returns nil when there is nothing to use.
func (s *strict) value(k *Key, path string, n *yaml.Node) any {
	n = resolve(n)
	if s.nodes++; s.nodes == maxNodes {
		s.add(n, path, fmt.Sprintf("the file has more than %d values here, those that aliases stand for counted", maxNodes))
	}
	if s.nodes >= maxNodes {
		return nil
	}
	switch k.Kind {
	case Section:
		if m := s.section(k, path, n); m != nil {
			return m
		}
		return nil
	case Scalars, Entries:
		return s.list(k, path, n)
	}
	s.places[path] = place{n.Line, n.Column}
	v, err := scalar(k.Type, n)
	if err != nil {
		s.add(n, path, err.Error())
		return nil
	}
	return v
}

// list checks the items of a list.
func (s *strict) list(k *Key, path string, n *yaml.Node) any {
	if n.Kind != yaml.SequenceNode {
		want := "want a list, such as [" + allowed(k.Type) + "]"
		if k.Kind == Entries {
			want = "want a list, each item with keys (" + strings.Join(k.names(), ", ") + ")"
		}
		if n.ShortTag() == "!!null" {
			want += ", or [] for none"
		}
		s.add(n, path, "is "+describe(n)+": "+want)
		return nil
	}
	item := &Key{Name: k.Name, Path: k.Path, Kind: Scalar, Type: k.Type, Keys: k.Keys}
	if k.Kind == Entries {
		item.Kind = Section
	}
	out := []any{}
	for i, c := range n.Content {
		if len(s.faults) > MaxFaults || s.nodes >= maxNodes {
			break
		}
		itemPath := path + "[" + strconv.Itoa(i) + "]"
		c = resolve(c)
		s.places[itemPath] = place{c.Line, c.Column}
		if k.Kind == Entries && c.ShortTag() == "!!null" {
			s.add(c, itemPath, "is empty: want keys ("+strings.Join(k.names(), ", ")+")")
			continue
		}
		// A faulty item keeps its place, so that the indexes in later faults are those of the file.
		if v := s.value(item, itemPath, c); v != nil || k.Kind == Entries {
			out = append(out, v)
		} else {
			out = append(out, reflect.Zero(k.Type).Interface())
		}
	}
	return out
}

// scalar reads one value. YAML has guessed a type by its looks, and a guess that is not the wanted type is a fault: a client
// ID of 007 would arrive as 7.
func scalar(t reflect.Type, n *yaml.Node) (any, error) {
	if n.Kind != yaml.ScalarNode {
		return nil, fmt.Errorf("is %s: want %s", describe(n), allowed(t))
	}
	tag := n.ShortTag()
	switch {
	case tag == "!!null":
		return nil, fmt.Errorf("has no value: want %s, or leave the key out for the default", allowed(t))
	case isText(t): // 10GiB looks like text and 0 like a number: the type itself decides
	case t.Kind() == reflect.String && tag != "!!str":
		return nil, fmt.Errorf("%s is %s here: want text, in quotes: %q", n.Value, describe(n), n.Value)
	case t.Kind() == reflect.Bool && tag != "!!bool":
		return nil, fmt.Errorf("%s is %s: want true or false", shown(n), describe(n))
	case t.Kind() != reflect.String && t.Kind() != reflect.Bool && tag != "!!int" && tag != "!!float":
		return nil, fmt.Errorf("%s is %s: want %s", shown(n), describe(n), allowed(t))
	}
	return read(t, n.Value)
}

// add notes a fault at n; without n it is about the file.
func (s *strict) add(n *yaml.Node, key, problem string) {
	f := Fault{File: s.file, Key: key, Problem: problem}
	if n != nil {
		f.Line, f.Column = n.Line, n.Column
	}
	s.faults = append(s.faults, f)
}

// resolve follows aliases.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// describe names what n is, with its article.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section with keys"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "empty"
	case "!!bool":
		return "a boolean"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	}
	return "text"
}

// shown is the value of n for a message, quoted when it is text.
func shown(n *yaml.Node) string {
	if n.ShortTag() == "!!str" {
		return strconv.Quote(n.Value)
	}
	return n.Value
}

var (
	yamlLine  = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	tabIndent = regexp.MustCompile(`^ *\t`)
)

// syntax notes that data is not YAML at all. A tab in the indentation is the usual reason, and the parser's words for it
// ("found character that cannot start any token") help nobody.
func (s *strict) syntax(err error, data []byte) {
	for i, line := range strings.Split(string(data), "\n") {
		if loc := tabIndent.FindStringIndex(line); loc != nil && strings.TrimSpace(line) != "" {
			s.add(&yaml.Node{Line: i + 1, Column: loc[1]}, "", "a tab in the indentation: YAML wants spaces")
			return
		}
	}
	message := err.Error()
	f := Fault{File: s.file, Line: whereabouts(message, data), Problem: "not YAML: " + yamlLine.ReplaceAllString(message, "")}
	s.faults = append(s.faults, f)
}

var unknownAnchor = regexp.MustCompile(`unknown anchor '(.*)' referenced`)

// whereabouts is the line that a parser's message is about. The parser leaves it out for the first line, for anchors, and for
// bytes that are not text.
func whereabouts(message string, data []byte) int {
	if m := yamlLine.FindStringSubmatch(message); m != nil && m[1] != "" {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	if m := unknownAnchor.FindStringSubmatch(message); m != nil {
		return lineOf(data, bytes.Index(data, []byte("*"+m[1])))
	}
	for i, r := range string(data) {
		if r == utf8.RuneError || r < ' ' && r != '\n' && r != '\r' && r != '\t' {
			return lineOf(data, i)
		}
	}
	return 1
}

// lineOf is the line of the byte at offset.
func lineOf(data []byte, offset int) int { return 1 + bytes.Count(data[:max(offset, 0)], []byte("\n")) }
