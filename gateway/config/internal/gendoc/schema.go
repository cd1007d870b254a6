package main

import (
	"encoding/json"
	"reflect"

	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/gateway/unit"
)

// The patterns are what unit's parsers take, but for the bounds.
const (
	number   = `[0-9]+(\.[0-9]+)?`
	size     = number + ` ?([kKmMgGtTpP][iI]?)?[bB]`
	duration = `(` + number + `(ns|us|µs|ms|s|m|h|d|w))+`
)

// schema is the JSON Schema, for editors that complete and check while one types.
func schema(s *source) ([]byte, error) {
	root, err := object(s, config.Keys())
	if err != nil {
		return nil, err
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Forebay configuration"
	data, err := json.MarshalIndent(root, "", "  ")
	return append(data, '\n'), err
}

func object(s *source, k *config.Key) (map[string]any, error) {
	properties := map[string]any{}
	for _, c := range k.Keys {
		p, err := property(s, c)
		if err != nil {
			return nil, err
		}
		properties[c.Name] = p
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
}

func property(s *source, k *config.Key) (map[string]any, error) {
	doc, err := s.doc(k)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	switch k.Kind {
	case config.Section:
		out, err = object(s, k)
		out["type"] = []string{"object", "null"} // all keys below may be commented out
	case config.Entries:
		item, itemErr := object(s, k)
		out, err = map[string]any{"type": "array", "items": item}, itemErr
	case config.Scalars:
		item, itemErr := scalarType(s, k.Type)
		out, err = map[string]any{"type": "array", "items": item}, itemErr
	case config.Scalar:
		out, err = scalarType(s, k.Type)
		if k.Default != nil && k.Default != "" {
			out["default"] = k.Default
		}
	}
	if err != nil {
		return nil, err
	}
	out["description"] = doc
	return out, nil
}

func scalarType(s *source, t reflect.Type) (map[string]any, error) {
	withUnit := func(pattern string) (map[string]any, error) {
		return map[string]any{"anyOf": []any{
			map[string]any{"type": "string", "pattern": "^(0|" + pattern + ")$"},
			map[string]any{"const": 0},
		}}, nil
	}
	switch t {
	case reflect.TypeFor[unit.Bytes]():
		return withUnit(size)
	case reflect.TypeFor[unit.Duration]():
		return withUnit(duration)
	case reflect.TypeFor[unit.Rate]():
		return withUnit(size + ` ?/s`)
	}
	words, err := s.values(t)
	if err != nil {
		return nil, err
	}
	if len(words) > 0 {
		return map[string]any{"enum": words}, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}, nil
	case reflect.String:
		return map[string]any{"type": "string"}, nil
	case reflect.Float64:
		return map[string]any{"type": "number"}, nil
	}
	return map[string]any{"type": "integer"}, nil
}
