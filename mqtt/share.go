package mqtt

import (
	"sync"
	"sync/atomic"

	"github.com/forebay-gateway/forebay/spool"
)

// group is a shared subscription: its own position on the log, and members of which one gets each record. Members that
// are connected and have room in their window take turns; while none has, the group is behind and catches up.
//
// While no member is connected the group keeps its position, as long as a member with a session is left. A delivery of
// QoS 1 that its member has not acknowledged when its connection ends goes to another one; a delivery of QoS 2 stays with
// its member, and ends with the member's session (MQTT 5, 4.8.2). After a crash of the gateway, deliveries in flight to
// members with sessions are resent to them, those to other members are handed out again. A QoS 2 delivery of a member with
// a session is durable until the group's durable position has passed it, so that the group, when it reads its record once
// more, knows that it has been handed out.
type group struct {
	srv    *Server
	filter string // $share/{name}/{topic}
	topic  string
	work   work

	online  atomic.Int32 // connected members
	starved atomic.Bool  // waits for a member with room
	saved   atomic.Pointer[savedGroup]

	mu           sync.Mutex
	members      []*subscription
	turn         int
	feed         *feed
	orphans      []place
	again        map[place]struct{} // after a restart: QoS 2 deliveries that members have, and that were above the position
	indexed      bool
	cutLogged    int64 // as that of a session
	offlineSince int64 // own time in nanoseconds, as that of a session
	durable      bool
	dirty        bool
	gone         bool
}

// savedGroup is what the queue of durable changes holds of a group; it does not change. Session.checkpointLocked, which
// holds no lock of a group, looks at it.
type savedGroup struct {
	count uint32
	next  positions
}

func (g *group) saves() uint32 {
	if saved := g.saved.Load(); saved != nil {
		return saved.count
	}
	return 0
}

// addMember makes sub a member, in place of an earlier subscription of the same session.
func (g *group) addMember(sub *subscription) (added bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return false
	}
	if g.feed == nil {
		g.feed = newFeed(g.srv.lanes.begins())
	}
	for i := range g.members {
		if g.members[i].sess == sub.sess {
			g.members[i] = sub
			return true
		}
	}
	g.members = append(g.members, sub)
	return true
}

// removeMember takes a session out; empty tells that it was the last.
func (g *group) removeMember(s *session) (empty bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.members {
		if g.members[i].sess == s {
			g.members = append(g.members[:i], g.members[i+1:]...)
			break
		}
	}
	g.gone = len(g.members) == 0
	return g.gone
}

// refresh is called after a member came or went. It must not be called under a session's lock.
func (g *group) refresh() {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := int32(0)
	durable := false
	for _, m := range g.members {
		m.sess.mu.Lock()
		if m.sess.conn != nil {
			n++
		}
		durable = durable || m.sess.durable
		m.sess.mu.Unlock()
	}
	g.online.Store(n)
	g.durable = g.durable || durable
	switch {
	case n > 0 && !g.indexed:
		g.indexed = true
		g.srv.index.addGroup(g)
	case n == 0 && g.indexed:
		g.indexed = false
		g.offlineSince = g.srv.own().UnixNano()
		g.srv.index.removeGroup(g)
		for i := range g.feed.next {
			g.feed.leave(i, g.positionLocked(i))
		}
	}
	g.touchLocked()
	g.srv.catchUp.schedule(g)
}

func (g *group) positionLocked(i int) spool.Offset {
	next := g.feed.next[i]
	if g.feed.live[i] {
		next = max(next, g.srv.lanes.list[i].position())
	}
	return next
}

// offer is called by a lane's distributor for each record that matches.
func (g *group) offer(lane int, rec *spool.Record, enc *encoder) *conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone || rec.Offset < g.feed.next[lane] {
		return nil
	}
	if rec.QoS == 0 {
		c, _ := g.handLocked(lane, rec, enc)
		if c == nil {
			g.srv.metrics.drop(dropBufferFull)
		}
		return c
	}
	f := g.feed
	if !f.live[lane] {
		return nil
	}
	c, ok := g.handLocked(lane, rec, enc)
	if ok {
		f.next[lane] = rec.Offset + 1
		g.touchLocked()
		return c
	}
	f.leave(lane, rec.Offset)
	g.srv.metrics.fellBehind.Inc()
	// A member may have got room since it was asked: the worker marks the group as starved before it asks again.
	g.srv.catchUp.schedule(g)
	return nil
}

// handLocked gives rec to the next member that takes it. A record that no connected member may have is dropped.
func (g *group) handLocked(lane int, rec *spool.Record, enc *encoder) (*conn, bool) {
	var denied *conn
	others := false
	for i := range g.members {
		at := (g.turn + i) % len(g.members)
		sub := g.members[at]
		c, took := sub.sess.takeShared(lane, rec, sub, enc)
		switch took {
		case shareTaken:
			g.turn = (at + 1) % len(g.members)
			return c, true
		case shareDenied:
			denied = c
		case shareNoRoom:
			others = true
		}
	}
	if denied != nil && !others {
		g.srv.metrics.drop(dropDenied)
		return denied, true
	}
	return nil, false
}

// What a member makes of a record.
type shareAnswer byte

const (
	shareOffline shareAnswer = iota
	shareNoRoom
	shareDenied // the rules do not allow it, any more
	shareTaken
)

// takeShared delivers a record of a shared subscription if the session is connected and has room.
func (s *session) takeShared(lane int, rec *spool.Record, sub *subscription, enc *encoder) (*conn, shareAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	if c == nil || s.ended {
		return nil, shareOffline
	}
	h := how{qos: min(sub.qos, rec.QoS), retain: sub.asPublished && rec.Retain, group: sub.group}
	if sub.id != 0 {
		h.ids = []uint32{sub.id}
	}
	if !c.mayReceive(rec.Topic, h.qos) {
		return c, shareDenied
	}
	if h.qos == 0 {
		packet, _ := enc.encode(c.peer.Version, h)
		if s.tooLarge(c, packet) || !enc.alive {
			return c, shareTaken
		}
		if !c.deliver(enc, packet, 0, 0, false) {
			return nil, shareNoRoom
		}
		s.srv.metrics.publishSent(0, rec)
		return c, shareTaken
	}
	if s.waiting.len() > 0 || !s.roomLocked() || !s.sendLocked(int32(lane), rec, h, enc) {
		return nil, shareNoRoom
	}
	return c, shareTaken
}
