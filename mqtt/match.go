package mqtt

import (
	"strings"
	"sync"
	"sync/atomic"
)

// subscription is one topic filter of one session. Its fields do not change once it is in the index: a SUBSCRIBE for the
// same filter puts a new one in its place.
type subscription struct {
	sess   *session
	filter string // as sent, $share/{name}/ included
	topic  string // what topics are matched against
	group  *group // of a shared subscription, otherwise nil

	// from is the first offset on each lane that the subscription covers; nil covers everything that the feed reads. It is
	// set when the session was behind on some lane at SUBSCRIBE.
	from positions

	id             uint32 // Subscription Identifier, 0 is none
	place          int    // in its node's list
	qos            byte
	retainHandling byte
	noLocal        bool
	asPublished    bool // Retain As Published
}

// index finds the subscriptions and share groups that match a topic. The library's TopicsIndex is not used for it: `+/#`
// does not match a one-level topic there, a match copies every subscriber map on its way, and one `x/<device>/#` costs 2
// to 3 KiB of maps. Here a node costs about 100 bytes.
type index struct {
	mu   sync.RWMutex
	root node

	gen atomic.Uint64 // counts changes: a cached match of another generation is void

	used chan struct{} // closed while there is something to match; nil before the first look of somebody who waits for it
}

// inUse returns a channel that is closed as soon as there is something to match.
func (x *index) inUse() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.used == nil {
		x.used = make(chan struct{})
		if !x.root.empty() {
			close(x.used)
		}
	}
	return x.used
}

// changedLocked is called after each change. x.mu is held.
func (x *index) changedLocked() {
	x.gen.Add(1)
	if x.used == nil {
		return
	}
	closed := false
	select {
	case <-x.used:
		closed = true
	default:
	}
	switch empty := x.root.empty(); {
	case empty && closed:
		x.used = nil
	case !empty && !closed:
		close(x.used)
	}
}

// node is one level of the filters. The path to a node spells its filter.
type node struct {
	children levels
	plus     *node
	hash     *node // its lists hold the filters that end in # here
	subs     []*subscription
	groups   []*group
}

func (n *node) empty() bool {
	return n.plus == nil && n.hash == nil && len(n.subs) == 0 && len(n.groups) == 0 && n.children.len() == 0
}

// levels maps a topic level to its node: a list while there are few, which is nearly always, then a map.
type levels struct {
	few  []level
	many map[string]*node
}

type level struct {
	name string
	node *node
}

const fewLevels = 8 // a scan of 8 short strings costs no more than one hash

func (l *levels) len() int { return len(l.few) + len(l.many) }

func (l *levels) get(name string) *node {
	if l.many != nil {
		return l.many[name]
	}
	for i := range l.few {
		if l.few[i].name == name {
			return l.few[i].node
		}
	}
	return nil
}

func (l *levels) put(name string, n *node) {
	if l.many == nil && len(l.few) < fewLevels {
		l.few = append(l.few, level{name, n})
		return
	}
	if l.many == nil {
		l.many = make(map[string]*node, 2*fewLevels)
		for _, e := range l.few {
			l.many[e.name] = e.node
		}
		l.few = nil
	}
	l.many[name] = n
}

func (l *levels) remove(name string) {
	if l.many != nil {
		delete(l.many, name)
		return
	}
	for i := range l.few {
		if l.few[i].name == name {
			last := len(l.few) - 1
			l.few[i] = l.few[last]
			l.few[last] = level{}
			l.few = l.few[:last]
			return
		}
	}
}

// seek returns the node of a filter, made when create is set.
func (x *index) seek(filter string, create bool) *node {
	n := &x.root
	for rest, more := filter, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		var next *node
		switch name {
		case "+":
			if n.plus == nil && create {
				n.plus = &node{}
			}
			next = n.plus
		case "#":
			if n.hash == nil && create {
				n.hash = &node{}
			}
			next = n.hash
		default:
			next = n.children.get(name)
			if next == nil && create {
				next = &node{}
				n.children.put(strings.Clone(name), next)
			}
		}
		if next == nil {
			return nil
		}
		n = next
	}
	return n
}

// trim removes the nodes of filter that hold nothing any more.
func trim(n *node, filter string) {
	name, rest, more := strings.Cut(filter, "/")
	switch name {
	case "+":
		if n.plus != nil && more {
			trim(n.plus, rest)
		}
		if n.plus != nil && n.plus.empty() {
			n.plus = nil
		}
	case "#":
		if n.hash != nil && n.hash.empty() {
			n.hash = nil
		}
	default:
		child := n.children.get(name)
		if child == nil {
			return
		}
		if more {
			trim(child, rest)
		}
		if child.empty() {
			n.children.remove(name)
		}
	}
}

func (x *index) add(s *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.seek(s.topic, true)
	s.place = len(n.subs)
	n.subs = append(n.subs, s)
	x.changedLocked()
}

func (x *index) remove(s *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.seek(s.topic, false)
	if n == nil || s.place >= len(n.subs) || n.subs[s.place] != s {
		return
	}
	last := len(n.subs) - 1
	n.subs[s.place] = n.subs[last]
	n.subs[s.place].place = s.place
	n.subs[last] = nil
	n.subs = n.subs[:last]
	if last == 0 {
		n.subs = nil
		trim(&x.root, s.topic)
	}
	x.changedLocked()
}

func (x *index) addGroup(g *group) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.seek(g.topic, true)
	n.groups = append(n.groups, g)
	x.changedLocked()
}

func (x *index) removeGroup(g *group) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.seek(g.topic, false)
	if n == nil {
		return
	}
	for i := range n.groups {
		if n.groups[i] == g {
			n.groups = append(n.groups[:i], n.groups[i+1:]...)
			break
		}
	}
	if len(n.groups) == 0 {
		n.groups = nil
		trim(&x.root, g.topic)
	}
	x.changedLocked()
}

// match is what a topic matches: sessions, each with its matching subscriptions, and share groups.
type match struct {
	targets []target
	groups  []*group
}

type target struct {
	sess *session
	subs []*subscription
}

// lookup walks the index. Its cost is bounded by the topic's levels: at most two nodes a level and branch.
func (x *index) lookup(topic string) *match {
	m := &match{}
	var found []*subscription
	visit := func(n *node) {
		found = append(found, n.subs...)
		m.groups = append(m.groups, n.groups...)
	}
	x.mu.RLock()
	walk(&x.root, topic, true, visit)
	x.mu.RUnlock()

	switch len(found) {
	case 0:
		return m
	case 1:
		m.targets = []target{{found[0].sess, found}}
		return m
	}
	m.targets = make([]target, 0, len(found))
	at := make(map[*session]int, len(found))
	for _, s := range found {
		i, ok := at[s.sess]
		if !ok {
			i = len(m.targets)
			at[s.sess] = i
			m.targets = append(m.targets, target{sess: s.sess})
		}
		m.targets[i].subs = append(m.targets[i].subs, s)
	}
	return m
}

func walk(n *node, topic string, first bool, visit func(*node)) {
	name, rest, more := strings.Cut(topic, "/")
	wild := !first || !strings.HasPrefix(topic, "$") // MQTT 5, 4.7.2: a leading wildcard does not match $
	if n.hash != nil && wild {
		visit(n.hash)
	}
	step := func(next *node) {
		if next == nil {
			return
		}
		if more {
			walk(next, rest, false, visit)
			return
		}
		visit(next)
		if next.hash != nil { // MQTT 5, 4.7.1.2: # includes the parent level
			visit(next.hash)
		}
	}
	step(n.children.get(name))
	if wild {
		step(n.plus)
	}
}

// matchCache remembers matches by topic. It belongs to one goroutine.
type matchCache struct {
	index *index
	gen   uint64
	byTop map[string]*match
}

const cachedTopics = 4096 // about 0.5 MiB a lane when each topic has one subscriber

func newMatchCache(x *index) *matchCache {
	return &matchCache{index: x, byTop: make(map[string]*match)}
}

// get returns what topic matches now. A subscription that was added before the call is in it.
func (c *matchCache) get(topic string) *match {
	// The generation is read before the walk: a change in between makes the entry void at the next call, never stale.
	if gen := c.index.gen.Load(); gen != c.gen || len(c.byTop) >= cachedTopics {
		clear(c.byTop)
		c.gen = gen
	}
	m := c.byTop[topic]
	if m == nil {
		m = c.index.lookup(topic)
		c.byTop[topic] = m
	}
	return m
}
