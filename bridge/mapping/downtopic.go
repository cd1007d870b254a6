package mapping

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// checkTopicTemplate refuses what would make an illegal topic of every record, or one of the gateway's own.
func checkTopicTemplate(t *template) error {
	if strings.HasPrefix(t.text, "$") && !strings.HasPrefix(t.text, "${") || strings.HasPrefix(t.text, "$${") {
		return errors.New("topics that begin with $ are the gateway's own")
	}
	for i := range t.parts {
		p := &t.parts[i]
		text := p.literal
		if p.fallback != nil {
			text = *p.fallback
			if text == "" {
				return fmt.Errorf("%v: the text behind | is empty: it would leave a level without a name", p.field)
			}
		}
		if at := badInTopic(text); at != "" {
			return fmt.Errorf("%q has %s, which no topic name may have", text, at)
		}
		if p.encoding == asJSON {
			return fmt.Errorf("%v:json: quotes have no place in a topic name", p.field)
		}
		if p.field != nil && p.field.source == downValue {
			return errors.New("value: the whole value is no part of a topic name; want key, header.NAME or json.PATH")
		}
	}
	return nil
}

// badInTopic names what in s may not be in a topic name; empty when nothing is.
func badInTopic(s string) string {
	for _, r := range s {
		switch {
		case r == '+' || r == '#':
			return "a wildcard"
		case r == 0:
			return "U+0000"
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			return "a control character"
		case r == utf8.RuneError && !utf8.ValidString(s):
			return "bytes that are not UTF-8"
		case r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
			return "a code point that is no character"
		}
	}
	return ""
}

// topic makes a topic name of a template, whatever the fields have in them. reason is that of a name that is none.
func (s *DownScratch) topic(t *template, reason Reason) (string, error) {
	b, err := s.render(t, reason, true)
	if err != nil {
		return "", err
	}
	switch name := string(b); {
	case name == "":
		return "", &Fault{reason, errors.New("the topic name is empty")}
	case len(name) > 65535:
		return "", &Fault{reason, fmt.Errorf("the topic name has %d bytes, at most 65535", len(name))}
	case name[0] == '$':
		return "", &Fault{reason, fmt.Errorf("%.64q: topics that begin with $ are the gateway's own", name)}
	default:
		return name, nil
	}
}

// fits reports why a field's text has no place in a topic name.
func (s *DownScratch) fits(p *part, text string) error {
	switch {
	case text == "":
		return errors.New("is empty: it would leave a level without a name")
	case s.composite(p.field):
		return errors.New("is an object or an array")
	case badInTopic(text) != "":
		return fmt.Errorf("%.64q has %s, which no topic name may have", text, badInTopic(text))
	case p.encoding != asPath && strings.Contains(text, "/"):
		return fmt.Errorf("%.64q would be several levels; say :path behind the field where that is meant", text)
	case p.encoding == asPath && (strings.HasPrefix(text, "/") || strings.HasSuffix(text, "/") || strings.Contains(text, "//")):
		return fmt.Errorf("%.64q has a level without a name", text)
	}
	return nil
}
