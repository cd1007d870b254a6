package main

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/forebay-gateway/forebay/gateway/config"
)

const exampleHead = `# Every key of Forebay with its meaning and its default. Written by make generate.
#
# A line that starts with # and no space is a setting: take the # away to change it. What stays commented out follows the
# defaults of later versions. forebay config check FILE says what is wrong with a file.
`

// examples are values for keys that have no default and must have a value, so that a list shows an item that loads.
var examples = map[string]string{
	"spool.streams[].name":    "alarms",
	"spool.streams[].filters": "[alarm/#, plant/+/alarm/#]",
}

// example is the file with everything in it.
func example(s *source) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(exampleHead)
	for _, section := range config.Keys().Keys {
		doc, err := s.doc(section)
		if err != nil {
			return nil, err
		}
		out.WriteString("\n")
		comment(&out, "", doc)
		out.WriteString(section.Name + ":\n")
		if err := settings(&out, s, section, "  "); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// settings writes the keys below k. Sections are real lines, so that what is below them can be switched on alone.
func settings(out *bytes.Buffer, s *source, k *config.Key, indent string) error {
	for i, key := range k.Keys {
		if i > 0 {
			out.WriteString("\n")
		}
		doc, err := s.doc(key)
		if err != nil {
			return err
		}
		comment(out, indent, doc)
		switch key.Kind {
		case config.Section:
			out.WriteString(indent + key.Name + ":\n")
			err = settings(out, s, key, indent+"  ")
		case config.Entries:
			out.WriteString(indent + "#" + key.Name + ":\n")
			err = item(out, s, key, indent+"#  ")
		default:
			out.WriteString(indent + "#" + key.Name + ": " + inline(key) + "\n")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// item writes the items that a list has by default, or one with the defaults of its keys; all of it is commented out.
func item(out *bytes.Buffer, s *source, k *config.Key, indent string) error {
	lead := indent + "- "
	next := indent + "  "
	for _, key := range k.Keys {
		doc, err := s.doc(key)
		if err != nil {
			return err
		}
		if lead != next {
			comment(out, strings.TrimSuffix(lead, "- ")+"  ", doc)
		} else {
			comment(out, next, doc)
		}
		switch key.Kind {
		case config.Section:
			out.WriteString(lead + key.Name + ":\n")
			err = item(out, s, key, next+"  ")
		case config.Entries:
			out.WriteString(lead + key.Name + ":\n")
			err = item(out, s, key, next+"  ")
		default:
			out.WriteString(lead + key.Name + ": " + inline(key) + "\n")
		}
		if err != nil {
			return err
		}
		lead = next
	}
	return nil
}

// inline is a key's example or default as YAML on one line.
func inline(k *config.Key) string {
	if text, ok := examples[k.Path]; ok {
		return text
	}
	if k.Default == "0" {
		return "0" // a size or duration, which takes it without a unit and without quotes
	}
	n := &yaml.Node{}
	if err := n.Encode(k.Default); err != nil {
		return `""`
	}
	n.Style |= yaml.FlowStyle
	text, err := yaml.Marshal(n)
	if err != nil {
		return `""`
	}
	return strings.TrimSpace(string(text))
}

// comment writes text as lines of at most 110 letters, after indent.
func comment(out *bytes.Buffer, indent, text string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 110 {
			out.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	out.WriteString(line + "\n")
}
