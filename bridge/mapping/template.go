package mapping

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// template is text with fields in it:
//
//	${field}             the field's text
//	${field:json}        as JSON: a JSON field as it stands in the payload, other text in quotes
//	${field:base64}      as base64
//	${field|text}        text when the record has no such field; also behind :json and :base64, and then taken as it is
//	$${                  ${ itself
type template struct {
	text  string
	parts []part
	vars  int
}

type part struct {
	literal  string // without a field
	field    *field
	encoding encoding
	fallback *string
}

type encoding uint8

const (
	asText encoding = iota
	asJSON
	asBase64
	asPath // text that may be several levels of an MQTT topic; of downlinks only
)

// dialect is the fields that a template may have.
type dialect struct {
	field func(s string) (field, int, error)
	path  bool // :path is known
}

var upward = dialect{field: parseField}

const maxTemplate = 16 << 10 // bytes of a template

// parseTemplate reads a template. Positions in errors count bytes from 1.
func parseTemplate(s string) (*template, error) { return upward.parse(s) }

func (d dialect) parse(s string) (*template, error) {
	if len(s) > maxTemplate {
		return nil, fmt.Errorf("%d bytes, at most %d", len(s), maxTemplate)
	}
	t := &template{text: s}
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			t.parts = append(t.parts, part{literal: literal.String()})
			literal.Reset()
		}
	}
	for at := 0; at < len(s); {
		switch {
		case strings.HasPrefix(s[at:], "$${"):
			literal.WriteString("${")
			at += 3
		case strings.HasPrefix(s[at:], "${"):
			p, n, err := d.parsePart(s[at+2:])
			if err != nil {
				return nil, fmt.Errorf("position %d: %w", at+1, err)
			}
			flush()
			t.parts = append(t.parts, p)
			t.vars++
			at += 2 + n
		default:
			literal.WriteByte(s[at])
			at++
		}
	}
	flush()
	return t, nil
}

// parsePart reads what stands behind ${, up to the closing brace, and returns how many bytes that is.
func (d dialect) parsePart(s string) (p part, n int, err error) {
	f, n, err := d.field(s)
	if err != nil {
		return p, 0, err
	}
	p.field = &f
	if rest, ok := strings.CutPrefix(s[n:], ":"); ok {
		switch {
		case strings.HasPrefix(rest, "json"):
			p.encoding = asJSON
			n += len(":json")
		case strings.HasPrefix(rest, "base64"):
			p.encoding = asBase64
			n += len(":base64")
		case d.path && strings.HasPrefix(rest, "path"):
			p.encoding = asPath
			n += len(":path")
		case d.path:
			return p, 0, fmt.Errorf("behind the colon: want path, json or base64")
		default:
			return p, 0, fmt.Errorf("behind the colon: want json or base64")
		}
	}
	if rest, ok := strings.CutPrefix(s[n:], "|"); ok {
		text, _, closed := strings.Cut(rest, "}")
		if !closed {
			return p, 0, errors.New("${ has no closing brace")
		}
		p.fallback = &text
		n += 1 + len(text)
	}
	switch {
	case n >= len(s):
		return p, 0, errors.New("${ has no closing brace")
	case s[n] != '}':
		return p, 0, fmt.Errorf("%q behind %s: want a closing brace, :json, :base64 or |text", s[n], s[:n])
	}
	return p, n + 1, nil
}

// appendTo appends what the template makes of the record in hand. A field that is missing leaves nothing, and is told.
func (t *template) appendTo(to []byte, s *Scratch) (_ []byte, missing *field, err error) {
	for i := range t.parts {
		p := &t.parts[i]
		if p.field == nil {
			to = append(to, p.literal...)
			continue
		}
		var ok bool
		if to, ok, err = p.appendTo(to, s); err != nil {
			return to, nil, err
		}
		if !ok && missing == nil {
			missing = p.field
		}
	}
	return to, missing, nil
}

// appendTo appends the part's value. It reports whether there is one.
func (p *part) appendTo(to []byte, s *Scratch) ([]byte, bool, error) {
	text, ok, err := s.text(p.field)
	switch {
	case err != nil:
		return to, false, err
	case !ok && p.fallback != nil:
		return append(to, *p.fallback...), true, nil
	case !ok && p.encoding == asJSON:
		return append(to, "null"...), false, nil
	case !ok:
		return to, false, nil
	case p.encoding == asBase64:
		return base64.StdEncoding.AppendEncode(to, []byte(text)), true, nil
	case p.encoding == asText:
		return append(to, text...), true, nil
	}
	switch p.field.source {
	case fromJSON:
		n, err := s.json(p.field.path)
		return append(to, n.raw()...), true, err
	case fromQoS, fromRetain, fromReceivedMS, fromFormat:
		return append(to, text...), true, nil // JSON as they are
	}
	return appendJSONString(to, text), true, nil
}

// has reports whether a field of one of these sources is in the template.
func (t *template) has(sources ...source) bool {
	for i := range t.parts {
		if f := t.parts[i].field; f != nil {
			for _, s := range sources {
				if f.source == s {
					return true
				}
			}
		}
	}
	return false
}

func (f *field) String() string {
	switch f.source {
	case fromLevel:
		return fmt.Sprintf("topic[%d]", f.level)
	case fromUser:
		return fmt.Sprintf("user[%q]", f.name)
	case downLevel:
		return fmt.Sprintf("topic[%d]", f.level)
	case downHeader:
		return fmt.Sprintf("header[%q]", f.name)
	case fromJSON:
		var b strings.Builder
		b.WriteString("json")
		for _, s := range f.path {
			switch {
			case s.array:
				fmt.Fprintf(&b, "[%d]", s.index)
			case strings.ContainsAny(s.name, ".[]{}|:\"' ") || s.name == "":
				fmt.Fprintf(&b, "[%q]", s.name)
			default:
				b.WriteString("." + s.name)
			}
		}
		return b.String()
	}
	for _, fields := range []map[string]source{plainFields, downFields} {
		for name, source := range fields {
			if source == f.source {
				return name
			}
		}
	}
	return "?"
}
