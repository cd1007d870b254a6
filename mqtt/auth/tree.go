package auth

import (
	"math"
	"strings"
)

// tree finds the first of many entries by the levels of a topic, at a cost that depends on the depth of the topic and not on
// the number of entries.
type tree struct {
	root node
	all  []int32 // entries without a filter
}

type node struct {
	children map[string]*node
	plus     *node
	here     []int32 // entries whose filter ends here, in order
	hash     []int32 // entries whose filter ends in # below here
	lowest   int32   // of all entries at and below this node
}

const none = math.MaxInt32

func newTree(list []entry) *tree {
	t := &tree{root: node{lowest: none}}
	for i := range list {
		f := &list[i].filter
		if f.all {
			t.all = append(t.all, int32(i))
			continue
		}
		n := &t.root
		n.lowest = min(n.lowest, int32(i))
		hash := false
		for level := range strings.SplitSeq(f.text, "/") {
			if hash = level == "#"; hash {
				break
			}
			n = n.child(level)
			n.lowest = min(n.lowest, int32(i))
		}
		if hash {
			n.hash = append(n.hash, int32(i))
		} else {
			n.here = append(n.here, int32(i))
		}
	}
	return t
}

func (n *node) child(level string) *node {
	if level == "+" {
		if n.plus == nil {
			n.plus = &node{lowest: none}
		}
		return n.plus
	}
	c := n.children[level]
	if c == nil {
		if n.children == nil {
			n.children = make(map[string]*node)
		}
		c = &node{lowest: none}
		n.children[level] = c
	}
	return c
}

// search is one question.
type search struct {
	list   []entry
	qos    byte
	retain bool
	best   int32
}

// first returns the index of the first entry that fits, or none.
func (t *tree) first(list []entry, topic string, qos byte, retain bool) int32 {
	s := search{list: list, qos: qos, retain: retain, best: none}
	s.take(t.all)
	s.walk(&t.root, topic, true, strings.HasPrefix(topic, "$"))
	return s.best
}

// take looks for an earlier entry than the best.
func (s *search) take(indexes []int32) {
	for _, i := range indexes {
		if i >= s.best {
			return
		}
		if s.list[i].fits(s.qos, s.retain) {
			s.best = i
			return
		}
	}
}

// walk goes down to the levels in rest. literal leaves out the wildcards of this level (MQTT 5, 4.7.2-1).
func (s *search) walk(n *node, rest string, more, literal bool) {
	if n.lowest >= s.best {
		return
	}
	if !literal {
		s.take(n.hash)
	}
	if !more {
		s.take(n.here)
		return
	}
	level, rest, more := strings.Cut(rest, "/")
	if c := n.children[level]; c != nil {
		s.walk(c, rest, more, false)
	}
	if n.plus != nil && !literal {
		s.walk(n.plus, rest, more, false)
	}
}
