package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// read checks text as a value of type t and returns it as viper takes it: a string for types that read themselves from
// text, else the Go value. The error says what is allowed.
func read(t reflect.Type, text string) (any, error) {
	if isText(t) {
		v := reflect.New(t).Interface().(encoding.TextUnmarshaler)
		if err := v.UnmarshalText([]byte(text)); err != nil {
			return nil, err
		}
		return text, nil
	}
	switch t.Kind() {
	case reflect.String:
		return text, nil
	case reflect.Bool:
		switch text {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return nil, fmt.Errorf("%q is not a boolean: want true or false", text)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != f || f-f != 0 {
			return nil, fmt.Errorf("%q is not a number", text)
		}
		return f, nil
	}
	return readInt(t, text)
}

// readInt takes plain decimal numbers. YAML also knows 0x1F, 0o17 and 1_000, which nobody needs in this file.
func readInt(t reflect.Type, text string) (any, error) {
	smallest, largest := "0", strconv.FormatUint(1<<t.Bits()-1, 10)
	var value any
	var err error
	if t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 {
		value, err = strconv.ParseUint(text, 10, t.Bits())
	} else {
		smallest, largest = strconv.FormatInt(-1<<(t.Bits()-1), 10), strconv.FormatInt(1<<(t.Bits()-1)-1, 10)
		value, err = strconv.ParseInt(text, 10, t.Bits())
	}
	if errors.Is(err, strconv.ErrRange) || err != nil && strings.HasPrefix(text, "-") && smallest == "0" {
		return nil, fmt.Errorf("%s is not between %s and %s", text, smallest, largest)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a whole number", text)
	}
	return value, nil
}

// allowed says in a message what values of type t look like.
func allowed(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[unit.Bytes]():
		return unit.BytesAllowed
	case reflect.TypeFor[unit.Duration]():
		return unit.DurationAllowed
	case reflect.TypeFor[unit.Rate]():
		return unit.RateAllowed
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float64:
		return "a number"
	}
	if isText(t) {
		return "one value"
	}
	return "a whole number"
}

// plain is v as it stands in the file: sections as maps, lists as lists, sizes and durations as text.
func plain(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	if isText(v.Type()) {
		return text(v)
	}
	switch v.Kind() {
	case reflect.Struct:
		out := map[string]any{}
		for _, f := range reflect.VisibleFields(v.Type()) {
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if name == "-" || !f.IsExported() {
				continue
			}
			if value := plain(v.FieldByIndex(f.Index)); value != nil {
				out[name] = value
			}
		}
		return out
	case reflect.Slice:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plain(v.Index(i))
		}
		return out
	case reflect.String:
		return v.String()
	}
	return v.Interface()
}

// text is how a value that reads itself from text writes itself.
func text(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if b, err := m.MarshalText(); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v.Interface())
}
