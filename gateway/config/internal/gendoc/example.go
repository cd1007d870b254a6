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
	"mqtt.listeners[].max_qos":          "2",
	"mqtt.listeners[].retain_available": "true",

	"mqtt.auth.certificate.users[].match": "'press-*.plant.example.com'",
	"mqtt.auth.certificate.users[].user":  "press",

	"spool.streams[].name":    "alarms",
	"spool.streams[].filters": "[alarm/#, plant/+/alarm/#]",

	"spool.encryption.keys[].id":   "1",
	"spool.encryption.keys[].file": "/etc/forebay/spool.key",

	"bridge.upstreams[].name":    "main",
	"bridge.upstreams[].brokers": "[kafka-1.example.com:9092, kafka-2.example.com:9092]",

	"bridge.routes[].name":                     "telemetry",
	"bridge.routes[].upstream":                 "main",
	"bridge.routes[].topic":                    "telemetry",
	"bridge.routes[].choose[].when":            "has(json.alarm)",
	"bridge.routes[].choose[].topic":           "alarms",
	"bridge.routes[].create_topics.partitions": "12",

	"bridge.downlinks[].name":   "commands",
	"bridge.downlinks[].topics": "[commands]",
	"bridge.downlinks[].topic":  "commands/${key}",

	"tiering.url":            "s3://telemetry/substation-7?region=eu-central-1",
	"tiering.streams[].name": "default",
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
			err = items(out, s, key, indent+"#  ")
		default:
			out.WriteString(indent + "#" + key.Name + ": " + inline(key) + "\n")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// items writes what a list has by default, or one item with the examples and defaults of its keys; all of it is commented out.
// What the keys mean stands in the first item.
func items(out *bytes.Buffer, s *source, k *config.Key, indent string) error {
	defaults, _ := k.Default.([]any)
	if len(defaults) == 0 {
		return item(out, s, k, indent, nil, true)
	}
	for i, d := range defaults {
		if err := item(out, s, k, indent, d.(map[string]any), i == 0); err != nil {
			return err
		}
	}
	return nil
}

// item writes the keys of one item or of a section in it. A value that is not in values is the example or the default.
func item(out *bytes.Buffer, s *source, k *config.Key, indent string, values map[string]any, withDoc bool) error {
	next := indent
	if k.Kind == config.Entries {
		next, indent = indent+"  ", indent+"- "
	}
	for _, key := range k.Keys {
		doc, err := s.doc(key)
		if err != nil {
			return err
		}
		if withDoc {
			comment(out, next, doc)
		}
		switch key.Kind {
		case config.Section:
			out.WriteString(indent + key.Name + ":\n")
			err = item(out, s, key, next+"  ", nil, withDoc)
		case config.Entries:
			out.WriteString(indent + key.Name + ":\n")
			err = items(out, s, key, next+"  ")
		default:
			text := inline(key)
			if v, ok := values[key.Name]; ok {
				text = yamlText(v)
			}
			out.WriteString(indent + key.Name + ": " + text + "\n")
		}
		if err != nil {
			return err
		}
		indent = next
	}
	return nil
}

// inline is a key's example or default as YAML on one line.
func inline(k *config.Key) string {
	if text, ok := examples[k.Path]; ok {
		return text
	}
	return yamlText(k.Default)
}

func yamlText(v any) string {
	if v == "0" {
		return "0" // a size or duration, which takes it without a unit and without quotes
	}
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
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
