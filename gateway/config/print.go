package config

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Print writes the configuration as the gateway uses it, as YAML that loads again, with the source of every value that is not
// a default as a comment.
func (l *Loaded) Print(w io.Writer) error {
	root := l.node(Keys(), "", reflect.ValueOf(l.Config))
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("config: print: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// Values is the configuration as the gateway uses it, as maps, lists and values, for JSON.
func (l *Loaded) Values() map[string]any {
	return plain(reflect.ValueOf(l.Config)).(map[string]any)
}

// node is v, the value of the key at path, as YAML.
func (l *Loaded) node(k *Key, path string, v reflect.Value) *yaml.Node {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch k.Kind {
	case Section:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, c := range k.Keys {
			childPath := join(path, c.Name)
			value := l.node(c, childPath, v.FieldByName(c.Field))
			if value == nil {
				continue
			}
			name := &yaml.Node{Kind: yaml.ScalarNode, Value: c.Name}
			if source := l.Source(childPath); source != "default" && c.Kind != Section {
				comment(name, value, source)
			}
			n.Content = append(n.Content, name, value)
		}
		return n
	case Scalars, Entries:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		item := *k
		item.Kind = Scalar
		if k.Kind == Entries {
			item.Kind = Section
		}
		if k.Kind == Scalars || v.Len() == 0 {
			n.Style = yaml.FlowStyle
		}
		for i := range v.Len() {
			n.Content = append(n.Content, l.node(&item, path+"["+strconv.Itoa(i)+"]", v.Index(i)))
		}
		return n
	}
	n := &yaml.Node{}
	value := plain(v)
	if s, ok := value.(string); ok {
		n.SetString(s)
		if isText(k.Type) && n.Style == 0 {
			n.Tag = "" // 0 is a fine size without quotes
		}
		return n
	}
	if err := n.Encode(value); err != nil {
		panic(fmt.Sprintf("BUG: %s: %v", path, err)) // numbers and booleans always encode
	}
	return n
}

// comment puts the source where the encoder keeps it on the line of the key.
func comment(name, value *yaml.Node, source string) {
	if value.Kind == yaml.ScalarNode || value.Style == yaml.FlowStyle {
		value.LineComment = source
		return
	}
	name.LineComment = source
}
