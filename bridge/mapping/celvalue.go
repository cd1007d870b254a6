package mapping

import (
	"math"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/forebay-gateway/forebay/spool"
)

// The values of a condition that CEL does not know itself: objects and arrays of the payload and user properties, looked up
// where they are. What is seldom asked of them (conversion, concatenation, iteration) is asked of a copy in CEL's own types.
type (
	celObject jsonNode
	celArray  jsonNode
	celUser   spool.Properties
)

var (
	_ traits.Mapper = (*celObject)(nil)
	_ traits.Lister = (*celArray)(nil)
	_ traits.Mapper = (*celUser)(nil)

	noProperties spool.Properties
)

// cel is the value as a condition sees it. A number is a double, as CEL has it for JSON; a whole one that a double cannot
// hold exactly is an int or uint.
func (n *jsonNode) cel() ref.Val {
	switch n.kind {
	case jsonObject:
		return (*celObject)(n)
	case jsonArray:
		return (*celArray)(n)
	case jsonString:
		return types.String(n.str())
	case jsonBool:
		return types.Bool(n.raw()[0] == 't')
	case jsonNumber:
		return celNumber(view(n.raw()))
	}
	return types.NullValue
}

func celNumber(text string) ref.Val {
	const exact = 1 << 53
	if len(text) > 15 { // fewer digits are exact
		if i, err := strconv.ParseInt(text, 10, 64); err == nil && (i > exact || i < -exact) {
			return types.Int(i)
		}
		if u, err := strconv.ParseUint(text, 10, 64); err == nil && u > math.MaxInt64 {
			return types.Uint(u)
		}
	}
	f, _ := strconv.ParseFloat(text, 64) // out of range is an infinity
	return types.Double(f)
}

func (o *celObject) node() *jsonNode { return (*jsonNode)(o) }

// Find implements traits.Mapper.
func (o *celObject) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	n := o.node().member(string(name))
	if n == nil {
		return nil, false
	}
	return n.cel(), true
}

// Get implements traits.Indexer.
func (o *celObject) Get(key ref.Val) ref.Val {
	if v, ok := o.Find(key); ok {
		return v
	}
	return types.NewErr("no such key: %v", key)
}

// Contains implements traits.Container.
func (o *celObject) Contains(key ref.Val) ref.Val {
	_, ok := o.Find(key)
	return types.Bool(ok)
}

// Size implements traits.Sizer.
func (o *celObject) Size() ref.Val { return types.Int(o.count) }

func (o *celObject) own() traits.Mapper {
	n := o.node()
	m := make(map[ref.Val]ref.Val, n.count)
	for i := n.i + 1; i < n.after; i = n.doc.nodes[i].after {
		m[types.String(n.doc.nodes[i].memberName())] = n.doc.nodes[i].cel()
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, m)
}

func (o *celObject) Iterator() traits.Iterator                   { return o.own().Iterator() }
func (o *celObject) ConvertToNative(t reflect.Type) (any, error) { return o.own().ConvertToNative(t) }
func (o *celObject) ConvertToType(t ref.Type) ref.Val            { return o.own().ConvertToType(t) }
func (o *celObject) Equal(other ref.Val) ref.Val                 { return o.own().Equal(other) }
func (o *celObject) Type() ref.Type                              { return types.MapType }
func (o *celObject) Value() any                                  { return o.own().Value() }

func (a *celArray) node() *jsonNode { return (*jsonNode)(a) }

// Get implements traits.Indexer.
func (a *celArray) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if n := a.node().at(i); n != nil {
		return n.cel()
	}
	return types.NewErr("index out of bounds: %d", i)
}

// Size implements traits.Sizer.
func (a *celArray) Size() ref.Val { return types.Int(a.count) }

func (a *celArray) own() traits.Lister {
	n := a.node()
	list := make([]ref.Val, 0, n.count)
	for i := n.i + 1; i < n.after; i = n.doc.nodes[i].after {
		list = append(list, n.doc.nodes[i].cel())
	}
	return types.NewRefValList(types.DefaultTypeAdapter, list)
}

func (a *celArray) Add(other ref.Val) ref.Val                   { return a.own().Add(other) }
func (a *celArray) Contains(v ref.Val) ref.Val                  { return a.own().Contains(v) }
func (a *celArray) Iterator() traits.Iterator                   { return a.own().Iterator() }
func (a *celArray) ConvertToNative(t reflect.Type) (any, error) { return a.own().ConvertToNative(t) }
func (a *celArray) ConvertToType(t ref.Type) ref.Val            { return a.own().ConvertToType(t) }
func (a *celArray) Equal(other ref.Val) ref.Val                 { return a.own().Equal(other) }
func (a *celArray) Type() ref.Type                              { return types.ListType }
func (a *celArray) Value() any                                  { return a.own().Value() }

// Find implements traits.Mapper: the first user property of that name.
func (u *celUser) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	for i := range u.User {
		if u.User[i].Name == string(name) {
			return types.String(u.User[i].Value), true
		}
	}
	return nil, false
}

// Get implements traits.Indexer.
func (u *celUser) Get(key ref.Val) ref.Val {
	if v, ok := u.Find(key); ok {
		return v
	}
	return types.NewErr("no such key: %v", key)
}

// Contains implements traits.Container.
func (u *celUser) Contains(key ref.Val) ref.Val {
	_, ok := u.Find(key)
	return types.Bool(ok)
}

// Size implements traits.Sizer.
func (u *celUser) Size() ref.Val { return u.own().Size() }

func (u *celUser) own() traits.Mapper {
	m := make(map[string]string, len(u.User))
	for _, p := range u.User {
		if _, ok := m[p.Name]; !ok {
			m[p.Name] = p.Value
		}
	}
	return types.NewStringStringMap(types.DefaultTypeAdapter, m)
}

func (u *celUser) Iterator() traits.Iterator                   { return u.own().Iterator() }
func (u *celUser) ConvertToNative(t reflect.Type) (any, error) { return u.own().ConvertToNative(t) }
func (u *celUser) ConvertToType(t ref.Type) ref.Val            { return u.own().ConvertToType(t) }
func (u *celUser) Equal(other ref.Val) ref.Val                 { return u.own().Equal(other) }
func (u *celUser) Type() ref.Type                              { return types.MapType }
func (u *celUser) Value() any                                  { return u.own().Value() }

// celLevels are the levels of an MQTT topic name. It is part of the scratch, for the record in hand.
type celLevels struct{ topic string }

var _ traits.Lister = (*celLevels)(nil)

func (s *Scratch) levels() *celLevels {
	s.celLevels.topic = s.rec.Topic
	return &s.celLevels
}

// Get implements traits.Indexer.
func (l *celLevels) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if i >= 0 {
		if level, ok := topicLevel(l.topic, i); ok {
			return types.String(level)
		}
	}
	return types.NewErr("index out of bounds: %d", i)
}

// Size implements traits.Sizer.
func (l *celLevels) Size() ref.Val {
	n := 1
	for i := range len(l.topic) {
		if l.topic[i] == '/' {
			n++
		}
	}
	return types.Int(n)
}

func (l *celLevels) own() traits.Lister {
	return types.NewStringList(types.DefaultTypeAdapter, strings.Split(l.topic, "/"))
}

func (l *celLevels) Add(other ref.Val) ref.Val                   { return l.own().Add(other) }
func (l *celLevels) Contains(v ref.Val) ref.Val                  { return l.own().Contains(v) }
func (l *celLevels) Iterator() traits.Iterator                   { return l.own().Iterator() }
func (l *celLevels) ConvertToNative(t reflect.Type) (any, error) { return l.own().ConvertToNative(t) }
func (l *celLevels) ConvertToType(t ref.Type) ref.Val            { return l.own().ConvertToType(t) }
func (l *celLevels) Equal(other ref.Val) ref.Val                 { return l.own().Equal(other) }
func (l *celLevels) Type() ref.Type                              { return types.ListType }
func (l *celLevels) Value() any                                  { return l.own().Value() }
