package mapping

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// jsonDoc is a JSON text with a table of its values: one pass over the text, no copy of it. The table is used again for the
// next text.
type jsonDoc struct {
	text  []byte
	nodes []jsonNode
	work  *work // of the condition that asks
}

// jsonNode is one value. Those inside of an array or object follow it in the table, up to after.
type jsonNode struct {
	doc      *jsonDoc
	i        uint32 // where it stands in the table
	from, to uint32 // of the text; a string with its quotes
	name     uint32 // where the name of a member begins, at its quote; an array's values and the root have none
	nameTo   uint32
	after    uint32 // index in the table behind the value and all inside
	count    uint32 // members or values
	kind     jsonKind
	escaped  bool // the string has a backslash
	nameEsc  bool
}

type jsonKind uint8

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

const (
	maxDepth     = 128     // of values inside of values
	maxNodes     = 1 << 20 // of a table, 48 MiB: 16 MiB of JSON can be four million values
	maxKeptNodes = 1 << 14 // of a table that is kept for the next text, about 600 KiB
)

// jsonError says what is wrong with a text, and at which byte.
type jsonError struct {
	at   int
	what string
}

func (e *jsonError) Error() string { return fmt.Sprintf("byte %d: %s", e.at, e.what) }

var errManyValues = fmt.Errorf("more than %d values", maxNodes)

// parse makes the table of text. A text that is not JSON as in RFC 8259, in UTF-8, is an error.
func (d *jsonDoc) parse(text []byte) error {
	d.text = text
	if cap(d.nodes) > maxKeptNodes {
		d.nodes = nil
	}
	d.nodes = d.nodes[:0]
	at, err := d.value(d.space(0), 0, jsonNode{})
	if err != nil {
		return err
	}
	if at = d.space(at); at < len(text) {
		return &jsonError{at, "something follows the value"}
	}
	return nil
}

func (d *jsonDoc) root() *jsonNode { return &d.nodes[0] }

func (d *jsonDoc) space(at int) int {
	for at < len(d.text) {
		switch d.text[at] {
		case ' ', '\t', '\n', '\r':
			at++
		default:
			return at
		}
	}
	return at
}

// value reads the value at a byte, whose name n may have, and returns the byte behind it.
func (d *jsonDoc) value(at, depth int, n jsonNode) (int, error) {
	if at >= len(d.text) {
		return at, &jsonError{at, "the text ends where a value has to be"}
	}
	if depth > maxDepth {
		return at, &jsonError{at, fmt.Sprintf("more than %d values inside of each other", maxDepth)}
	}
	i := len(d.nodes)
	if i >= maxNodes {
		return at, errManyValues
	}
	n.doc, n.i, n.from = d, uint32(i), uint32(at)
	d.nodes = append(d.nodes, n)
	end, err := at, error(nil)
	switch c := d.text[at]; {
	case c == '{':
		n.kind = jsonObject
		end, n.count, err = d.members(at+1, depth)
	case c == '[':
		n.kind = jsonArray
		end, n.count, err = d.values(at+1, depth)
	case c == '"':
		n.kind = jsonString
		end, n.escaped, err = d.str(at)
	case c == 't':
		n.kind = jsonBool
		end, err = d.word(at, "true")
	case c == 'f':
		n.kind = jsonBool
		end, err = d.word(at, "false")
	case c == 'n':
		n.kind = jsonNull
		end, err = d.word(at, "null")
	case c == '-' || c >= '0' && c <= '9':
		n.kind = jsonNumber
		end, err = d.number(at)
	default:
		return at, &jsonError{at, "no value begins like this"}
	}
	if err != nil {
		return at, err
	}
	n.to, n.after = uint32(end), uint32(len(d.nodes))
	d.nodes[i] = n
	return end, nil
}

func (d *jsonDoc) members(at, depth int) (end int, count uint32, err error) {
	if at = d.space(at); at < len(d.text) && d.text[at] == '}' {
		return at + 1, 0, nil
	}
	for {
		if at = d.space(at); at >= len(d.text) || d.text[at] != '"' {
			return at, 0, &jsonError{at, "a name in quotes has to be here"}
		}
		n := jsonNode{name: uint32(at)}
		if at, n.nameEsc, err = d.str(at); err != nil {
			return at, 0, err
		}
		n.nameTo = uint32(at)
		if at = d.space(at); at >= len(d.text) || d.text[at] != ':' {
			return at, 0, &jsonError{at, "a colon has to be here"}
		}
		if at, err = d.value(d.space(at+1), depth+1, n); err != nil {
			return at, 0, err
		}
		count++
		if at = d.space(at); at < len(d.text) && d.text[at] == '}' {
			return at + 1, count, nil
		}
		if at >= len(d.text) || d.text[at] != ',' {
			return at, 0, &jsonError{at, "a comma or } has to be here"}
		}
		at++
	}
}

func (d *jsonDoc) values(at, depth int) (end int, count uint32, err error) {
	if at = d.space(at); at < len(d.text) && d.text[at] == ']' {
		return at + 1, 0, nil
	}
	for {
		if at, err = d.value(d.space(at), depth+1, jsonNode{}); err != nil {
			return at, 0, err
		}
		count++
		if at = d.space(at); at < len(d.text) && d.text[at] == ']' {
			return at + 1, count, nil
		}
		if at >= len(d.text) || d.text[at] != ',' {
			return at, 0, &jsonError{at, "a comma or ] has to be here"}
		}
		at++
	}
}

func (d *jsonDoc) word(at int, word string) (int, error) {
	if end := at + len(word); end <= len(d.text) && string(d.text[at:end]) == word {
		return end, nil
	}
	return at, &jsonError{at, "no value begins like this"}
}

// str reads the string whose opening quote is at a byte.
func (d *jsonDoc) str(at int) (end int, escaped bool, err error) {
	from := at
	for at++; at < len(d.text); at++ {
		switch c := d.text[at]; {
		case c == '"':
			return at + 1, escaped, nil
		case c < ' ':
			return at, escaped, &jsonError{at, "a control character in a string"}
		case c == '\\':
			escaped = true
			at++
			if at >= len(d.text) {
				break
			}
			switch d.text[at] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					if at++; at >= len(d.text) || !isHex(d.text[at]) {
						return at, escaped, &jsonError{at, "\\u wants four hex digits"}
					}
				}
			default:
				return at, escaped, &jsonError{at, "an unknown escape"}
			}
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(d.text[at:])
			if r == utf8.RuneError && n == 1 {
				return at, escaped, &jsonError{at, "not UTF-8"}
			}
			at += n - 1
		}
	}
	return at, escaped, &jsonError{from, "a string without an end"}
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

func (d *jsonDoc) number(at int) (int, error) {
	from := at
	digits := func() bool {
		start := at
		for at < len(d.text) && d.text[at] >= '0' && d.text[at] <= '9' {
			at++
		}
		return at > start
	}
	is := func(c byte) bool { return at < len(d.text) && d.text[at] == c }
	if is('-') {
		at++
	}
	whole := at
	if !digits() || d.text[whole] == '0' && at > whole+1 {
		return from, &jsonError{from, "not a number"}
	}
	if is('.') {
		at++
		if !digits() {
			return from, &jsonError{from, "not a number"}
		}
	}
	if is('e') || is('E') {
		at++
		if is('+') || is('-') {
			at++
		}
		if !digits() {
			return from, &jsonError{from, "not a number"}
		}
	}
	return at, nil
}

// raw is the value as it stands in the text.
func (n *jsonNode) raw() []byte { return n.doc.text[n.from:n.to] }

// str is the text of a string.
func (n *jsonNode) str() string { return unquoted(n.doc.text[n.from:n.to], n.escaped) }

func (n *jsonNode) memberName() string {
	return unquoted(n.doc.text[n.name:n.nameTo], n.nameEsc)
}

// unquoted is the text of a string in quotes. Without escapes it is a view of it: payloads do not change.
func unquoted(quoted []byte, escaped bool) string {
	if !escaped {
		return view(quoted[1 : len(quoted)-1])
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		panic(fmt.Sprintf("BUG: mapping: the string %q was read and is none: %v", quoted, err))
	}
	return s
}

// member is the value of that name in an object, the last one if there are several; nil when there is none.
func (n *jsonNode) member(name string) (found *jsonNode) {
	if n.kind != jsonObject {
		return nil
	}
	for i := n.i + 1; i < n.after; i = n.doc.nodes[i].after {
		m := &n.doc.nodes[i]
		if !m.nameEsc && string(n.doc.text[m.name+1:m.nameTo-1]) == name || m.nameEsc && m.memberName() == name {
			found = m
		}
	}
	return found
}

// at is value i of an array, nil when it has fewer.
func (n *jsonNode) at(i int) *jsonNode {
	if n.kind != jsonArray || i < 0 || i >= int(n.count) {
		return nil
	}
	k := n.i + 1
	for ; i > 0; i-- {
		k = n.doc.nodes[k].after
	}
	return &n.doc.nodes[k]
}

// jsonStep is one step of a path: a member's name, or an index.
type jsonStep struct {
	name  string
	index int // when name is not used
	array bool
}

// find follows a path, nil when there is no such value.
func (n *jsonNode) find(path []jsonStep) *jsonNode {
	for _, s := range path {
		if s.array {
			n = n.at(s.index)
		} else {
			n = n.member(s.name)
		}
		if n == nil {
			return nil
		}
	}
	return n
}
