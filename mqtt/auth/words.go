package auth

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	maxFileSize = 64 << 20 // of a file of passwords, rules or bans: a million users are about 200 bytes each
	maxLine     = 64 << 10 // longest topic filter, and change
)

// eachLine calls fn with every line of a file that is neither empty nor a comment, and collects what is wrong, at most
// maxFaults of them.
func eachLine(file string, data []byte, fn func(line int, text string) error) error {
	const maxFaults = 20
	if len(data) > maxFileSize {
		return &FileError{File: file, Problem: fmt.Sprintf("has more than %d bytes", maxFileSize)}
	}
	var faults []error
	number := 0
	for text := range strings.Lines(string(data)) {
		number++
		text = strings.TrimRight(text, "\r\n")
		if t := strings.TrimSpace(text); t == "" || t[0] == '#' {
			continue
		}
		err := error(nil)
		switch {
		case len(text) > maxLine:
			err = fmt.Errorf("line is longer than %d bytes", maxLine)
		case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
			err = errors.New("line is not text")
		default:
			err = fn(number, text)
		}
		if err != nil {
			faults = append(faults, &FileError{File: file, Line: number, Problem: err.Error()})
			if len(faults) == maxFaults {
				break
			}
		}
	}
	return errors.Join(faults...)
}

// splitWords cuts a line at spaces and tabs. Double quotes keep them together, also inside of a word; within quotes \" and \\
// stand for themselves. A word that starts with # begins a comment.
func splitWords(line string) ([]string, error) {
	var words []string
	var b strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quoted && c == '\\' && i+1 < len(line) && (line[i+1] == '"' || line[i+1] == '\\'):
			i++
			b.WriteByte(line[i])
		case c == '"':
			quoted = !quoted
			in = true
		case !quoted && (c == ' ' || c == '\t'):
			if in {
				words = append(words, b.String())
				b.Reset()
				in = false
			}
		case !quoted && !in && c == '#':
			return words, nil
		default:
			b.WriteByte(c)
			in = true
		}
	}
	if quoted {
		return nil, errors.New("a quote is not closed")
	}
	if in {
		words = append(words, b.String())
	}
	return words, nil
}

// pattern is a glob: * stands for any run of characters, ? for one, \ takes the meaning from the next.
type pattern string

// match reports whether all of s matches.
func (p pattern) match(s string) bool {
	pi, si := 0, 0
	starP, starS := -1, 0
	for si < len(s) {
		if pi < len(p) {
			switch c := p[pi]; {
			case c == '*':
				starP, starS = pi, si
				pi++
				continue
			case c == '?':
				_, n := utf8.DecodeRuneInString(s[si:])
				pi, si = pi+1, si+n
				continue
			case c == '\\' && pi+1 < len(p) && p[pi+1] == s[si]:
				pi, si = pi+2, si+1
				continue
			case c != '\\' && c == s[si], c == '\\' && pi+1 == len(p) && s[si] == '\\':
				pi, si = pi+1, si+1
				continue
			}
		}
		if starP < 0 {
			return false
		}
		starS++
		pi, si = starP+1, starS
	}
	for pi < len(p) && p[pi] == '*' {
		pi++
	}
	return pi == len(p)
}
