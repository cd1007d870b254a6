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

// The values of a condition that CEL does not know itself: objects and arrays of the payload, user properties and topic levels,
// looked up where they are. What is seldom asked of them (conversion, concatenation) is asked of a copy in CEL's own types.
//
// CEL counts a look-up as one step, however large the value is that is searched. These count what they walk over, too: a
// payload is the device's, and must not make an innocent expression run for minutes.
type (
	celObject jsonNode
	celArray  jsonNode

	// celUser are the user properties, and celLevels the levels of the topic name, of the record in hand. They are part of the
	// scratch.
	celUser struct {
		p    *spool.Properties
		work *work
	}
	celLevels struct {
		topic string
		work  *work
	}
)

var (
	_ traits.Mapper = (*celObject)(nil)
	_ traits.Lister = (*celArray)(nil)
	_ traits.Mapper = (*celUser)(nil)
	_ traits.Lister = (*celLevels)(nil)
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
		// CEL's own functions count the characters of it, now and then at no cost.
		n.doc.work.spend(len(n.raw()) / bytesAStep)
		return types.String(n.str())
	case jsonBool:
		return types.Bool(n.raw()[0] == 't')
	case jsonNumber:
		n.doc.work.spend(len(n.raw()) / bytesAStep)
		return celNumber(view(n.raw()))
	}
	return types.NullValue
}

func celNumber(text string) ref.Val {
	const exact = 1 << 53
	if len(text) > 15 { // fewer digits are exact
		if i, err := strconv.ParseInt(text, 10, 64); err == nil && (i >= exact || i <= -exact) { // 2^53 itself is what 2^53+1 becomes as a double
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
	o.doc.work.spend(int(o.count))
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

// Size implements traits.Sizer. A name that comes twice counts once.
func (o *celObject) Size() ref.Val {
	if o.count < 2 {
		return types.Int(o.count)
	}
	return o.own().Size()
}

func (o *celObject) own() traits.Mapper {
	n := o.node()
	n.doc.work.spend(int(n.count) * copyStep)
	m := make(map[ref.Val]ref.Val, n.count)
	for i := n.i + 1; i < n.after; i = n.doc.nodes[i].after {
		m[types.String(n.doc.nodes[i].memberName())] = n.doc.nodes[i].cel()
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, m)
}

func (o *celObject) Iterator() traits.Iterator                   { return o.own().Iterator() }
func (o *celObject) ConvertToNative(t reflect.Type) (any, error) { return o.own().ConvertToNative(t) }
func (o *celObject) ConvertToType(t ref.Type) ref.Val            { return o.own().ConvertToType(t) }
func (o *celObject) Equal(other ref.Val) ref.Val                 { return o.own().Equal(copied(other)) }
func (o *celObject) Type() ref.Type                              { return types.MapType }
func (o *celObject) Value() any                                  { return o.own().Value() }

// copied is the other side of a comparison: a map is asked for every name of this one.
func copied(v ref.Val) ref.Val {
	switch v := v.(type) {
	case *celObject:
		return v.own()
	case *celArray:
		return v.own()
	}
	return v
}

func (a *celArray) node() *jsonNode { return (*jsonNode)(a) }

// Get implements traits.Indexer.
func (a *celArray) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	a.doc.work.spend(min(max(i, 0), int(a.count)) / valuesAStep)
	if n := a.node().at(i); n != nil {
		return n.cel()
	}
	return types.NewErr("index out of bounds: %d", i)
}

// Size implements traits.Sizer.
func (a *celArray) Size() ref.Val { return types.Int(a.count) }

func (a *celArray) own() traits.Lister {
	n := a.node()
	n.doc.work.spend(int(n.count) * copyStep)
	list := make([]ref.Val, 0, n.count)
	for i := n.i + 1; i < n.after; i = n.doc.nodes[i].after {
		list = append(list, n.doc.nodes[i].cel())
	}
	return types.NewRefValList(types.DefaultTypeAdapter, list)
}

// Contains implements traits.Container.
func (a *celArray) Contains(v ref.Val) ref.Val {
	for it := a.iterator(); it.more(); {
		if types.Equal(v, it.next()) == types.True {
			return types.True
		}
	}
	return types.False
}

// Iterator implements traits.Iterable, without a copy: lists are walked over more than anything else.
func (a *celArray) Iterator() traits.Iterator { return &celIterator{arrayIterator: a.iterator()} }

func (a *celArray) iterator() arrayIterator { return arrayIterator{array: a.node(), at: a.i + 1} }

// arrayIterator walks over the values of an array.
type arrayIterator struct {
	array *jsonNode
	at    uint32
}

func (it *arrayIterator) more() bool { return it.at < it.array.after }

func (it *arrayIterator) next() ref.Val {
	it.array.doc.work.spend(1)
	n := &it.array.doc.nodes[it.at]
	it.at = n.after
	return n.cel()
}

// celIterator is an arrayIterator as CEL wants it. Nobody asks it what it is.
type celIterator struct {
	ref.Val
	arrayIterator
}

var _ traits.Iterator = (*celIterator)(nil)

// HasNext implements traits.Iterator.
func (it *celIterator) HasNext() ref.Val { return types.Bool(it.more()) }

// Next implements traits.Iterator.
func (it *celIterator) Next() ref.Val { return it.next() }

func (a *celArray) Add(other ref.Val) ref.Val                   { return a.own().Add(other) }
func (a *celArray) ConvertToNative(t reflect.Type) (any, error) { return a.own().ConvertToNative(t) }
func (a *celArray) ConvertToType(t ref.Type) ref.Val            { return a.own().ConvertToType(t) }
func (a *celArray) Equal(other ref.Val) ref.Val                 { return a.own().Equal(copied(other)) }
func (a *celArray) Type() ref.Type                              { return types.ListType }
func (a *celArray) Value() any                                  { return a.own().Value() }

// Find implements traits.Mapper: the first user property of that name.
func (u *celUser) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	u.work.spend(len(u.p.User))
	for i := range u.p.User {
		if u.p.User[i].Name == string(name) {
			u.work.spend(len(u.p.User[i].Value) / bytesAStep)
			return types.String(u.p.User[i].Value), true
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
	u.work.spend(len(u.p.User) * copyStep)
	m := make(map[string]string, len(u.p.User))
	for _, p := range u.p.User {
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

// Get implements traits.Indexer.
func (l *celLevels) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	l.walk()
	if i >= 0 {
		if level, ok := topicLevel(l.topic, i); ok {
			return types.String(level)
		}
	}
	return types.NewErr("index out of bounds: %d", i)
}

// Size implements traits.Sizer.
func (l *celLevels) Size() ref.Val {
	l.walk()
	n := 1
	for i := range len(l.topic) {
		if l.topic[i] == '/' {
			n++
		}
	}
	return types.Int(n)
}

func (l *celLevels) walk() { l.work.spend(len(l.topic) / bytesAStep) }

func (l *celLevels) own() traits.Lister {
	l.work.spend(len(l.topic) / 2 * copyStep) // at most so many levels
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
