package main

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/gateway/unit"
)

const markdownHead = `<!-- Written by make generate from the doc comments in the code. Change those. -->
# Configuration

One YAML file: ` + "`forebay serve --config forebay.yaml`" + `, else the file that ` + "`FOREBAY_CONFIG`" + ` names, else
` + "`" + config.DefaultFile + "`" + `. Every key may be left out. ` + "`forebay config check FILE`" + ` says everything that is wrong with a file, with
line and column; ` + "`--print`" + ` shows every value as the gateway would use it and where it came from. ` + "`forebay config init`" + ` writes a
file with every key.

- **Environment.** A variable sets the key whose path it spells: ` + "`FOREBAY_SPOOL_MAX_SIZE=10GiB`" + ` sets ` + "`spool.max_size`" + `. It wins over
  the file. Lists of values have commas in between; lists of objects can only be set in the file. A variable that starts with
  ` + "`FOREBAY_`" + ` and sets no key is an error, except ` + "`FOREBAY_CONFIG`" + ` and those that Kubernetes and Docker make for a service called
  forebay. An empty variable counts as not set.
- **Flags** win over both: ` + "`--data-dir`, `--log-level`, `--log-format`" + `, and ` + "`--set KEY=VALUE`" + ` for any key outside of lists of objects.
- **Values carry their unit.** Sizes: ` + "`512B`, `64KiB`, `10GiB`, `1MB`" + `. Durations: ` + "`250ms`, `30s`, `1h30m`, `72h`, `7d`" + `. A bare number is
  refused, 0 excepted.
`

// markdown is the reference: a table for each section.
func markdown(s *source) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(markdownHead)
	if err := sections(&out, s, config.Keys()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// sections writes the keys of every section directly below k, then of those below them.
func sections(out *bytes.Buffer, s *source, k *config.Key) error {
	for _, section := range k.Keys {
		if section.Kind != config.Section && section.Kind != config.Entries {
			continue
		}
		title := section.Path
		if section.Kind == config.Entries {
			title += "[]"
		}
		doc, err := s.doc(section)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n## %s\n\n%s\n\n| Key | Value | Default | Meaning |\n|---|---|---|---|\n", title, doc)
		for _, key := range section.Keys {
			doc, err := s.doc(key)
			if err != nil {
				return err
			}
			kind, err := valueKind(s, key)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", key.Name, cell(kind), cell(defaultText(key)), cell(doc))
		}
		if err := sections(out, s, section); err != nil {
			return err
		}
	}
	return nil
}

// valueKind says in a word or two what a key takes.
func valueKind(s *source, k *config.Key) (string, error) {
	switch k.Kind {
	case config.Section:
		return "section", nil
	case config.Entries:
		return "list, see below", nil
	}
	word := ""
	switch k.Type {
	case reflect.TypeFor[unit.Bytes]():
		word = "size"
	case reflect.TypeFor[unit.Duration]():
		word = "duration"
	case reflect.TypeFor[unit.Rate]():
		word = "rate"
	}
	words, err := s.values(k.Type)
	switch {
	case err != nil:
		return "", err
	case word != "":
	case len(words) > 0:
		word = "`" + strings.Join(words, "`, `") + "`"
	case k.Type.Kind() == reflect.Bool:
		word = "`true`, `false`"
	case k.Type.Kind() == reflect.String:
		word = "text"
	case k.Type.Kind() == reflect.Float64:
		word = "number"
	default:
		word = "whole number"
	}
	if k.Kind == config.Scalars {
		word = "list of " + word
	}
	return word, nil
}

// defaultText is a key's default for the table; empty values are no defaults that would need saying.
func defaultText(k *config.Key) string {
	switch v := k.Default.(type) {
	case nil, map[string]any:
		return ""
	case []any:
		if len(v) == 0 {
			return "`[]`"
		}
		if k.Kind == config.Entries {
			return fmt.Sprintf("%d, see configs/forebay.yaml", len(v))
		}
		return "`" + fmt.Sprint(v) + "`"
	case string:
		if v == "" {
			return ""
		}
		return "`" + v + "`"
	default:
		return fmt.Sprintf("`%v`", v)
	}
}

// cell keeps text from ending its cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
