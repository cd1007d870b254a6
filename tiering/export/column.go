package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Field is a column that is taken out of payloads that are JSON.
type Field struct {
	Path   []string // keys, from the outside
	Column string
	Type   string // string, double, long or boolean
}

var columnName = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// ParseField reads PATH or PATH:TYPE, such as temperature:double or motor.state. A string column takes any value, as its JSON; another
// type is null where the value does not fit.
func ParseField(s string) (Field, error) {
	path, kind, typed := strings.Cut(s, ":")
	if !typed {
		kind = "string"
	}
	f := Field{Path: strings.Split(path, "."), Type: kind}
	for _, key := range f.Path {
		if key == "" {
			return f, fmt.Errorf("field %q: want PATH or PATH:TYPE, such as motor.speed:double", s)
		}
	}
	switch kind {
	case "string", "double", "long", "boolean":
	default:
		return f, fmt.Errorf("field %q: type %q is none of string, double, long, boolean", s, kind)
	}
	f.Column = "json_" + columnName.ReplaceAllString(strings.Join(f.Path, "_"), "_")
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
	j, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return string(j)
}
