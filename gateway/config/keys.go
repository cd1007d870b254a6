package config

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
)

// Kind is the shape of a key's value in the file.
type Kind uint8

// The shapes. There are no maps, see the package comment.
const (
	Scalar  Kind = iota // one value: max_size: 10GiB
	Scalars             // a list of values: filters: [plant/#, lab/#]
	Section             // keys below it: journal: {files: 3}
	Entries             // a list whose items have keys: streams: [{name: alarms}]
)

// Key is one key of the configuration, with the keys below it: the composed structs as a tree.
type Key struct {
	Name string // "ttl"
	Path string // "spool.streams[].ttl"
	Kind Kind
	Type reflect.Type // of the value, or of one item of a list

	// Owner and Field say where the doc comment stands. The root has none.
	Owner reflect.Type
	Field string

	// Default is the value of an empty file, as plain has it; inside of a list, that of an item that leaves the key out.
	Default any

	Keys []*Key // of a Section or of Entries, in the order of the struct
}

// Keys is the tree of all keys, under a root without a name.
var Keys = sync.OnceValue(func() *Key {
	return keysOf(&Key{Kind: Section, Type: reflect.TypeFor[Config]()}, reflect.ValueOf(DefaultConfig()))
})

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// isText says whether values of t read themselves from text, as sizes and durations do.
func isText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textUnmarshaler) }

// keyName is what viper leaves alone: lower case and without dots.
var keyName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// keysOf fills in the keys below k, whose Type is a struct and whose default is v.
func keysOf(k *Key, v reflect.Value) *Key {
	for _, field := range reflect.VisibleFields(k.Type) {
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if name == "-" || !field.IsExported() {
			continue
		}
		if field.Anonymous || !keyName.MatchString(name) {
			panic(fmt.Sprintf("BUG: %v.%s: the yaml tag %q is not a snake_case key", k.Type, field.Name, name))
		}
		child := &Key{Name: name, Path: join(k.Path, name), Owner: k.Type, Field: field.Name}
		child.Kind, child.Type = shape(field.Type)
		value := v.FieldByIndex(field.Index)
		child.Default = plain(value)
		switch child.Kind {
		case Section:
			keysOf(child, orZero(value))
		case Entries:
			child.Path += "[]"
			keysOf(child, withDefaults(reflect.Zero(child.Type)))
			child.Path = strings.TrimSuffix(child.Path, "[]")
		case Scalar, Scalars:
			checkType(child)
		}
		k.Keys = append(k.Keys, child)
	}
	return k
}

// orZero looks through a pointer.
func orZero(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer {
		return v
	}
	if v.IsNil() {
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}

// withDefaults is the list item v with what it leaves out filled in, by its method WithDefaults when it has one. One that
// wants to know more than the item (a route asks for the only upstream) is given nothing, and fills that in when it is used.
func withDefaults(v reflect.Value) reflect.Value {
	m := v.MethodByName("WithDefaults")
	if !m.IsValid() || m.Type().NumOut() != 1 || m.Type().Out(0) != v.Type() {
		return v
	}
	args := make([]reflect.Value, m.Type().NumIn())
	for i := range args {
		args[i] = reflect.Zero(m.Type().In(i))
	}
	return m.Call(args)[0]
}

// shape says how a value of type t stands in the file.
func shape(t reflect.Type) (Kind, reflect.Type) {
	if t.Kind() == reflect.Pointer { // a pointer is a value that may be left out
		t = t.Elem()
	}
	switch {
	case isText(t):
		return Scalar, t
	case t.Kind() == reflect.Struct:
		return Section, t
	case t.Kind() == reflect.Slice:
		if kind, elem := shape(t.Elem()); kind == Section {
			return Entries, elem
		}
		return Scalars, t.Elem()
	}
	return Scalar, t
}

// checkType refuses types that the file cannot be checked against, when the program starts and not when a user hits one.
func checkType(k *Key) {
	if k.Type.PkgPath() == "time" {
		panic(fmt.Sprintf("BUG: %s: %v does not say its unit in the file, use unit.Duration", k.Path, k.Type))
	}
	if isText(k.Type) {
		return
	}
	switch k.Type.Kind() {
	case reflect.String, reflect.Bool, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
	default:
		panic(fmt.Sprintf("BUG: %s: values of type %v cannot be configured", k.Path, k.Type))
	}
}

// child is the key called name directly below k, nil when there is none.
func (k *Key) child(name string) *Key {
	for _, c := range k.Keys {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// names are the names of the keys directly below k.
func (k *Key) names() []string {
	out := make([]string, len(k.Keys))
	for i, c := range k.Keys {
		out[i] = c.Name
	}
	return out
}

// settable calls fn with every key outside of lists whose value is a scalar or a list of scalars: those that the environment
// and flags can set.
func (k *Key) settable(fn func(*Key)) {
	for _, c := range k.Keys {
		switch c.Kind {
		case Section:
			c.settable(fn)
		case Scalar, Scalars:
			fn(c)
		case Entries:
		}
	}
}

// Walk calls fn with every key below k, parents first.
func (k *Key) Walk(fn func(*Key)) {
	for _, c := range k.Keys {
		fn(c)
		c.Walk(fn)
	}
}

// find is the key at path, in which indexes may stand: spool.streams[1].ttl. It is nil when there is none.
func (k *Key) find(path string) *Key {
	for path != "" && k != nil {
		var step string
		step, path, _ = strings.Cut(path, ".")
		name, _, _ := strings.Cut(step, "[")
		k = k.child(name)
	}
	return k
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
