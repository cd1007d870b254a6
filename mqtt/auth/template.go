package auth

import (
	"errors"
	"fmt"
	"strings"
)

// template is a text with %u, %c and %{claim} in it; %% is a percent sign.
type template struct {
	text   string
	pieces []piece
}

// piece is a literal, or a variable when name is set: "u", "c" or "claim:" and the name of a claim.
type piece struct{ literal, name string }

const claimPrefix = "claim:"

func parseTemplate(s string) (template, error) {
	t := template{text: s}
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			t.pieces = append(t.pieces, piece{literal: b.String()})
			b.Reset()
		}
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch {
		case i == len(s):
			return t, errors.New("a % at the end: write %% for a percent sign")
		case s[i] == '%':
			b.WriteByte('%')
		case s[i] == 'u', s[i] == 'c':
			flush()
			t.pieces = append(t.pieces, piece{name: s[i : i+1]})
		case s[i] == '{':
			name, _, ok := strings.Cut(s[i+1:], "}")
			if !ok || name == "" {
				return t, errors.New("%{ without a name and }")
			}
			flush()
			t.pieces = append(t.pieces, piece{name: claimPrefix + name})
			i += len(name) + 1
		default:
			return t, fmt.Errorf("%%%c is not known: there are %%u (user), %%c (client ID), %%{claim} and %%%%", s[i])
		}
	}
	flush()
	return t, nil
}

// parseTopic is parseTemplate for a topic filter.
func parseTopic(s string) (template, error) {
	t, err := parseTemplate(s)
	if err != nil {
		return t, err
	}
	sample, _ := t.expand(func(string) []string { return []string{"x"} }, func(s string) (string, bool) { return s, true })
	return t, checkFilter(sample[0])
}

func (t *template) literal() bool {
	for _, p := range t.pieces {
		if p.name != "" {
			return false
		}
	}
	return true
}

// plain is the text of a literal template.
func (t *template) plain() string {
	var b strings.Builder
	for _, p := range t.pieces {
		b.WriteString(p.literal)
	}
	return b.String()
}

// maxExpansions bounds what lists of claims in one template multiply to.
const maxExpansions = 256

// expand puts values for the variables, every combination when there are several; put may refuse a value. ok is false when
// something could not be expanded; what could is returned all the same.
func (t *template) expand(values func(name string) []string, put func(value string) (string, bool)) (out []string, ok bool) {
	out, ok = []string{""}, true
	for _, p := range t.pieces {
		if p.name == "" {
			for i := range out {
				out[i] += p.literal
			}
			continue
		}
		var next []string
		vs := values(p.name)
		if len(vs) == 0 || len(vs)*len(out) > maxExpansions {
			return nil, false
		}
		for _, v := range vs {
			v, good := put(v)
			if !good {
				ok = false
				continue
			}
			for _, o := range out {
				next = append(next, o+v)
			}
		}
		out = next
	}
	return out, ok
}

// topics expands a topic filter. A value that is empty or holds a wildcard, a slash or NUL could mean more than was written,
// and so could one that makes the filter one of $ topics.
func (t *template) topics(values func(string) []string) (out []string, ok bool) {
	all, ok := t.expand(values, func(v string) (string, bool) { return v, v != "" && !strings.ContainsAny(v, "+#/\x00") })
	dollar := strings.HasPrefix(t.text, "$")
	for _, s := range all {
		if strings.HasPrefix(s, "$") && !dollar || checkFilter(s) != nil {
			ok = false
			continue
		}
		out = append(out, s)
	}
	return out, ok
}

// widen is the filter of everything that a topic filter could mean, whatever the variables are: all below the levels before
// the first of them.
func (t *template) widen() filter {
	var b strings.Builder
	for _, p := range t.pieces {
		if p.name != "" {
			break
		}
		b.WriteString(p.literal)
	}
	before := b.String()
	slash := strings.LastIndexByte(before, '/')
	if slash < 0 {
		return filter{text: "(everything)", all: true}
	}
	return newFilter(before[:slash+1] + "#")
}

// globs expands a pattern; a value stands for itself in it.
func (t *template) globs(values func(string) []string) (out []pattern, ok bool) {
	all, ok := t.expand(values, func(v string) (string, bool) {
		return escapeGlob.Replace(v), v != "" && !strings.ContainsRune(v, 0)
	})
	for _, s := range all {
		out = append(out, pattern(s))
	}
	return out, ok
}

var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`)
