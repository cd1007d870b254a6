package mqtt

import (
	"sort"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
)

// next returns the retained message of the first topic after last, in the store's order, that filter matches; "" starts.
// What is added or removed between two calls is seen or not, as the order has it; nothing that stays is left out. A call
// visits at most budget nodes and returns what is left of it; when nothing is left, the search goes on after the topic at.
func (r *retainedStore) next(filter, last string, budget int) (rec *spool.Record, at string, left int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	w := retainedWalk{after: last != "", left: budget}
	rec = w.walk(&r.root, filter, last, true)
	if w.stopped {
		return nil, w.at, 0
	}
	return rec, "", max(w.left, 1)
}

// retainedWalk visits the topics that match a filter in order. A node comes before its children.
type retainedWalk struct {
	after bool // still on the path to last: skip what is not behind it

	left    int    // nodes that it may visit
	stopped bool   // it has no more, and
	at      string // this is the topic of the last that it visited
}

// walk visits below n, where rest is what is left of the filter and last what is left of the topic to go on after.
func (w *retainedWalk) walk(n *retainedNode, rest, last string, first bool) *spool.Record {
	name, deeper, more := strings.Cut(rest, "/")
	lastName, lastDeeper, lastMore := "", "", false
	start := 0
	if w.after {
		lastName, lastDeeper, lastMore = strings.Cut(last, "/")
		start, _ = n.find(lastName)
	}
	if name != "+" && name != "#" {
		i, ok := n.find(name)
		if !ok || i < start {
			return nil
		}
		start = i
	}
	for i := start; i < len(n.children); i++ {
		child := n.children[i]
		if name != "+" && name != "#" && child.name != name {
			return nil
		}
		if first && (name == "+" || name == "#") && strings.HasPrefix(child.name, "$") { // MQTT 5, 4.7.2
			i = sort.Search(len(n.children), func(i int) bool { return n.children[i].name >= "%" }) - 1 // the next letter
			continue
		}
		onPath := w.after && child.name == lastName
		w.after = onPath
		if !onPath {
			w.left--
		}
		// Of a node on the path only what is below it comes after last, and the node itself if last does not end here.
		visit := !onPath
		here := name == "#" || !more || deeper == "#"
		if visit && here && child.rec != nil {
			return child.rec
		}
		if onPath && !lastMore {
			w.after = false // last itself: its children come after it
		}
		if w.left <= 0 {
			w.stopped, w.at = true, child.name
			return nil
		}
		var found *spool.Record
		switch {
		case name == "#":
			found = w.walk(child, "#", lastDeeper, false)
		case more:
			found = w.walk(child, deeper, lastDeeper, false)
		}
		if found != nil {
			return found
		}
		if w.stopped {
			w.at = child.name + "/" + w.at
			return nil
		}
		w.after = false
	}
	return nil
}
