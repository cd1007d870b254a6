package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Field is a column that is taken out of payloads that are JSON.
type Field struct {
	Path   []string // keys, from the outside
	Column string
	Type   string // string, double, long or boolean
}

var columnName = regexp.MustCompile(`[^A-Za-z0-9_]+`)

const fieldForm = "want PATH, PATH:TYPE or either with =COLUMN, such as motor.speed:double; a dot, colon, equals sign or backslash in a key has a backslash before it"

// ParseFields reads fields of the form PATH[:TYPE][=COLUMN], such as temperature:double, motor.state or a\.b:long=ab. A string column, the
// default, takes any value, as its JSON; another type is null where the value does not fit. No two may make the same column.
func ParseFields(specs []string) (fields []Field, err error) {
	of := make(map[string]string)
	for _, s := range specs {
		f, err := parseField(s)
		if err != nil {
			return nil, err
		}
		if other, ok := of[f.Column]; ok {
			return nil, fmt.Errorf("fields %q and %q make the same column %s: name one, as in %s=COLUMN", other, s, f.Column, s)
		}
		of[f.Column] = s
		fields = append(fields, f)
	}
	return fields, nil
}

func parseField(s string) (Field, error) {
	fault := fmt.Errorf("field %q: %s", s, fieldForm)
	f := Field{Type: "string"}
	part, rest := byte('.'), s
	for part == '.' {
		var key strings.Builder
		part = 0
		for i := 0; i < len(rest) && part == 0; i++ {
			switch c := rest[i]; c {
			case '\\':
				if i++; i == len(rest) {
					return f, fault
				}
				key.WriteByte(rest[i])
			case '.', ':', '=':
				part, rest = c, rest[i+1:]
			default:
				key.WriteByte(c)
			}
		}
		if key.Len() == 0 {
			return f, fault
		}
		f.Path = append(f.Path, key.String())
	}
	column := ""
	switch named := false; part {
	case ':':
		f.Type, column, named = strings.Cut(rest, "=")
		if named && column == "" {
			return f, fault
		}
	case '=':
		if column = rest; column == "" {
			return f, fault
		}
	}
	switch f.Type {
	case "string", "double", "long", "boolean":
	default:
		return f, fmt.Errorf("field %q: type %q is none of string, double, long, boolean; %s", s, f.Type, fieldForm)
	}
	if column == "" {
		column = "json_" + columnName.ReplaceAllString(strings.Join(f.Path, "_"), "_")
	}
	if f.Column = column; columnName.MatchString(column) || slices.Contains(rowColumns, column) {
		return f, fmt.Errorf("field %q: column %q has other characters than letters, digits and _, or is one that every file has", s, column)
	}
	return f, nil
}

// decode reads a payload once for all fields; nil when it is not a JSON object.
func decode(payload []byte) map[string]any {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var v map[string]any
	if dec.Decode(&v) != nil {
		return nil
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) { // something behind it
		return nil
	}
	return v
}

// value is what the field has in a decoded payload, in its type; nil when it has none that fits.
func (f *Field) value(doc map[string]any) any {
	var v any = doc
	for _, key := range f.Path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		if v, ok = m[key]; !ok {
			return nil
		}
	}
	switch f.Type {
	case "double":
		if n, ok := v.(json.Number); ok {
			if x, err := n.Float64(); err == nil {
				return x
			}
		}
		return nil
	case "long":
		if n, ok := v.(json.Number); ok {
			if x, err := n.Int64(); err == nil {
				return x
			}
			if x, err := n.Float64(); err == nil && x == math.Trunc(x) && math.Abs(x) <= 1<<53 { // 21.0, or 2e3
				return int64(x)
			}
		}
		return nil
	case "boolean":
		if b, ok := v.(bool); ok {
			return b
		}
		return nil
	}
	switch s := v.(type) {
	case nil:
		return nil
	case string:
		return s
	case json.Number:
		return s.String()
	}
	return jsonOf(v)
}

// jsonOf is v as JSON, in which < stays <.
func jsonOf(v any) string {
	var j strings.Builder
	enc := json.NewEncoder(&j)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // what was decoded, and strings, can be encoded
	return strings.TrimSuffix(j.String(), "\n")
}
