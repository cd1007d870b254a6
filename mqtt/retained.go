package mqtt

import (
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
	publishes int // 1, of a message without payload too
	n         int
	size      int64
}

// reserve makes room for rec, and says which limit is in the way when there is none; 0 is no limit. What was reserved
// is released when rec has been applied, or is given up. A message without payload needs no room.
func (r *retainedStore) reserve(rec *spool.Record, n int, size int64) (res reservation, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(rec.Payload) == 0 {
		r.reserved.publishes++
		return reservation{publishes: 1}, nil
	}
	res = reservation{publishes: 1, n: 1, size: retainedSize(rec)}
	freed := int64(0)
	if old := r.getLocked(rec.Topic); old != nil {
		res.n, freed = 0, retainedSize(old)
	}
	switch {
	case n > 0 && res.n > 0 && r.n+r.reserved.n >= n:
		return reservation{}, errRetainedCount
	case size > 0 && r.size+r.reserved.size+res.size-freed > size:
		return reservation{}, errRetainedSize
	}
	r.reserved.publishes++
	r.reserved.n += res.n
	r.reserved.size += res.size
	return res, nil
}

// behind reports whether a retained publish may be in the log and not in the store yet. Whoever subscribes then begins behind its
// record, and has to ask the store later: an entry that is appended now is durable when the store has it.
func (r *retainedStore) behind() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reserved.publishes > 0
}

// reserveRetained is reserve within the limits of the configuration.
func (srv *Server) reserveRetained(rec *spool.Record) (reservation, error) {
	return srv.retained.reserve(rec, srv.cfg.MaxRetained, int64(srv.cfg.MaxRetainedSize))
}

func (r *retainedStore) release(res reservation) {
	if res == (reservation{}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved.publishes -= res.publishes
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

// expired lists topics whose message is over. It looks at a part of the store at a time, because a publish of a retained
// message waits for the lock.
func (r *retainedStore) expired(now time.Time) (topics []string) {
	for last, more := "", true; more; {
		more = false
		r.mu.RLock()
		w := retainedWalk{after: last != "", left: retainedSteps}
		for w.left > 0 { // what is left may only end a walk that has begun with something
			rec := w.walk(&r.root, "#", last, false)
			if rec == nil {
				break
			}
			last, more, w.after = rec.Topic, true, true
			if rec.ExpiresAt != 0 && rec.ExpiresAt <= now.UnixNano() {
				topics = append(topics, rec.Topic)
			}
		}
		if w.stopped {
			last, more = w.at, true
		}
		r.mu.RUnlock()
	}
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

// clears reports whether rec removes a retained message. That is possible while the spool is full, because it makes room; to
// remove what is not there is not, as a client could go on with it.
func (srv *Server) clears(rec *spool.Record) bool {
	return rec.Retain && len(rec.Payload) == 0 && srv.retained.get(rec.Topic) != nil
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
