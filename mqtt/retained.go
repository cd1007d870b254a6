package mqtt

import (
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// retainedStore keeps the retained message of each topic. Its durable form is written in the same group as the record of
// the message; here it changes when that group is durable, in the order of the log. The children of a node are sorted, so
// that a walk can go on after the topic where it stopped: a slow subscriber to # costs one topic name, not a copy.
type retainedStore struct {
	mu   sync.RWMutex
	root retainedNode
	n    int
	size int64

	// reserved is what publishes that are not durable yet will add at most.
	reserved reservation
}

// reservation is room in the store, for a message that is on the way to the log.
type reservation struct {
	n    int
	size int64
}

// reserve makes room for rec, and returns false when there is none within the limits, of which 0 is none. What was reserved
// is released when rec has been applied, or is given up. A message without payload needs no room.
func (r *retainedStore) reserve(rec *spool.Record, n int, size int64) (res reservation, ok bool) {
	if len(rec.Payload) == 0 {
		return res, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res = reservation{n: 1, size: retainedSize(rec)}
	freed := int64(0)
	if old := r.getLocked(rec.Topic); old != nil {
		res.n, freed = 0, retainedSize(old)
	}
	if n > 0 && res.n > 0 && r.n+r.reserved.n >= n || size > 0 && r.size+r.reserved.size+res.size-freed > size {
		return reservation{}, false
	}
	r.reserved.n += res.n
	r.reserved.size += res.size
	return res, true
}

func (r *retainedStore) release(res reservation) {
	if res == (reservation{}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved.n -= res.n
	r.reserved.size -= res.size
}

const retainedOverhead = 256 // of a node and a record, measured

// retainedSize is about what a message costs in memory.
func retainedSize(rec *spool.Record) int64 {
	n := retainedOverhead + len(rec.Topic) + len(rec.ClientID) + len(rec.UserName) + len(rec.Payload)
	if p := rec.Properties; p != nil {
		n += len(p.ContentType) + len(p.ResponseTopic) + len(p.CorrelationData)
		for _, u := range p.User {
			n += len(u.Name) + len(u.Value) + 32
		}
	}
	return int64(n)
}

type retainedNode struct {
	name     string
	children []*retainedNode // by name
	rec      *spool.Record
}

func (n *retainedNode) find(name string) (int, bool) {
	i := sort.Search(len(n.children), func(i int) bool { return n.children[i].name >= name })
	return i, i < len(n.children) && n.children[i].name == name
}

// apply makes rec the retained message of its topic, or removes it when rec has no payload (MQTT 5, 3.3.1-6).
func (r *retainedStore) apply(rec *spool.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(rec.Payload) == 0 {
		r.removeLocked(&r.root, rec.Topic)
		return
	}
	n := &r.root
	for rest, more := rec.Topic, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		i, ok := n.find(name)
		if !ok {
			n.children = append(n.children, nil)
			copy(n.children[i+1:], n.children[i:])
			n.children[i] = &retainedNode{name: name}
		}
		n = n.children[i]
	}
	if n.rec == nil {
		r.n++
	} else {
		r.size -= retainedSize(n.rec)
	}
	n.rec = rec
	r.size += retainedSize(rec)
}

func (r *retainedStore) removeLocked(n *retainedNode, topic string) {
	name, rest, more := strings.Cut(topic, "/")
	i, ok := n.find(name)
	if !ok {
		return
	}
	child := n.children[i]
	if more {
		r.removeLocked(child, rest)
	} else if child.rec != nil {
		r.size -= retainedSize(child.rec)
		child.rec = nil
		r.n--
	}
	if child.rec == nil && len(child.children) == 0 {
		n.children = append(n.children[:i], n.children[i+1:]...)
	}
}

// get returns the retained message of a topic, nil when there is none.
func (r *retainedStore) get(topic string) *spool.Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.getLocked(topic)
}

func (r *retainedStore) getLocked(topic string) *spool.Record {
	n := &r.root
	for rest, more := topic, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		i, ok := n.find(name)
		if !ok {
			return nil
		}
		n = n.children[i]
	}
	return n.rec
}

func (r *retainedStore) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.n
}

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

// expired lists topics whose message is over.
func (r *retainedStore) expired(now time.Time) (topics []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var visit func(n *retainedNode)
	visit = func(n *retainedNode) {
		if n.rec != nil && n.rec.ExpiresAt != 0 && n.rec.ExpiresAt <= now.UnixNano() {
			topics = append(topics, n.rec.Topic)
		}
		for _, c := range n.children {
			visit(c)
		}
	}
	visit(&r.root)
	return topics
}

// removeExpired removes the message of a topic if it is over now.
func (r *retainedStore) removeExpired(topic string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.getLocked(topic)
	if rec != nil && rec.ExpiresAt != 0 && rec.ExpiresAt <= now.UnixNano() {
		r.removeLocked(&r.root, topic)
	}
}

// retainedJob is a SUBSCRIBE whose retained messages are being sent.
type retainedJob struct {
	sub  *subscription
	last string // topic that was sent last
}

// addRetainedLocked adds jobs. A filter has one: if it comes again before it is through, its job begins anew, in its place.
func (s *session) addRetainedLocked(jobs []retainedJob) {
	at := make(map[string]int, len(s.retained)+len(jobs))
	for i := range s.retained {
		at[s.retained[i].sub.filter] = i
	}
	for _, j := range jobs {
		if i, ok := at[j.sub.filter]; ok {
			s.retained[i] = j
			continue
		}
		at[j.sub.filter] = len(s.retained)
		s.retained = append(s.retained, j)
	}
}

// dropRetainedLocked forgets the job of a filter.
func (s *session) dropRetainedLocked(filter string) {
	if len(s.retained) == 0 {
		return
	}
	s.retained = slices.DeleteFunc(s.retained, func(j retainedJob) bool { return j.sub.filter == filter })
	if len(s.retained) == 0 {
		s.retained = nil
	}
}

// asGiven is rec with the expiry that its publisher gave. What a stream's ttl and max_ttl make of it binds the record in the
// stream, not the retained message, which is what it was before and after a restart.
func asGiven(rec *spool.Record, expiresAt int64) *spool.Record {
	if rec.ExpiresAt == expiresAt && !rec.StreamTTL {
		return rec
	}
	own := *rec
	own.ExpiresAt, own.StreamTTL = expiresAt, false
	return &own
}

// retainedChange keeps a retained message, or deletes it.
func retainedChange(rec *spool.Record) spool.Change {
	if len(rec.Payload) == 0 {
		return spool.Change{Space: spaceRetained, Key: rec.Topic}
	}
	return spool.Change{Space: spaceRetained, Key: rec.Topic, Value: appendMessage([]byte{stateVersion}, rec)}
}

// A turn of serveRetained: so many messages, or so many nodes of the store, whichever comes first. Filters that match
// nothing must not cost others anything, and neither the session's lock nor the store's is held for long.
const (
	retainedChunk = 4 * serveChunk
	retainedNodes = 4096
	retainedSteps = 256 // nodes under one lock
)

// serveRetained sends retained messages while there is room. more means that there is room for others, parked that there
// is none.
func (s *session) serveRetained(enc *encoder) (more, parked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := retainedNodes
	for n := 0; len(s.retained) > 0; n++ {
		if s.conn == nil {
			return false, true
		}
		if n == retainedChunk || nodes <= 0 {
			return true, false
		}
		job := s.retained[0]
		s.mu.Unlock()
		rec, at, left := s.srv.retainedFor(job.sub.topic).next(job.sub.topic, job.last, retainedSteps)
		s.mu.Lock()
		nodes -= retainedSteps - left + 1
		if len(s.retained) == 0 || s.retained[0] != job {
			continue // another SUBSCRIBE or UNSUBSCRIBE came
		}
		switch {
		case left == 0:
			s.retained[0].last = at
		case rec == nil || s.subs.get(job.sub.filter) == nil:
			s.retained = s.retained[1:]
			if len(s.retained) == 0 {
				s.retained = nil
			}
		case s.conn == nil || !s.sendRetainedLocked(job.sub, rec, enc):
			return false, true
		default:
			s.retained[0].last = rec.Topic
		}
		s.touchLocked()
	}
	return false, false
}

func (s *session) sendRetainedLocked(sub *subscription, rec *spool.Record, enc *encoder) bool {
	if sub.noLocal && rec.ClientID == s.id {
		return true
	}
	h := how{qos: min(sub.qos, rec.QoS), retain: true} // MQTT 5, 3.3.1-8
	if sub.id != 0 {
		h.ids = []uint32{sub.id}
	}
	enc.reset(rec, s.srv.now())
	if !enc.alive {
		return true
	}
	if h.qos > 0 {
		return s.roomLocked() && s.sendLocked(noLane, rec, h, enc)
	}
	packet, _ := enc.encode(s.conn.peer.Version, h)
	if s.tooLarge(s.conn, packet) || s.denied(s.conn, rec.Topic, 0) {
		return true
	}
	if !s.conn.out.message(packet, 0, 0, false, s.srv.outputLimit) {
		return false
	}
	s.srv.metrics.publishSent(0, rec)
	return true
}
