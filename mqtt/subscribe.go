package mqtt

import (
	"context"
	"encoding/binary"
	"strings"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// subscribe deals with a SUBSCRIBE. The subscriptions take effect at once; SUBACK follows when they are durable, if the
// session is, together with the position from which they count. It also follows later when a retained message is on its way: the
// log shows a record before its completion runs, which gives the message to the store. In between a subscription begins behind
// the record, and does not find it in the store.
func (c *conn) subscribe(p *wire.Subscribe) {
	c.acks.waitFinished() // one at a time: what waits for the log is bounded by one packet
	s := c.sess
	reasons := make([]byte, len(p.Filters))
	var changes []spool.Change
	var jobs []retainedJob
	var joined []*group
	for i := range p.Filters {
		f := &p.Filters[i]
		f.QoS = min(f.QoS, c.lst.offer.maxQoS)
		reasons[i] = c.maySubscribe(f)
		if reasons[i] >= 0x80 {
			c.srv.metrics.refused(reasons[i])
			continue
		}
		sub, isNew := s.newSubscription(f, p.SubscriptionID)
		if sub == nil {
			return // the session is over
		}
		if sub.group != nil {
			joined = append(joined, sub.group)
		}
		changes = append(changes, sub.change())
		// MQTT 5, 3.3.1-9 to 3.3.1-11; none for shared subscriptions: 3.8.4.
		if c.lst.offer.retain && f.Share == "" && (f.RetainHandling == 0 || f.RetainHandling == 1 && isNew) {
			jobs = append(jobs, retainedJob{sub: sub})
		}
	}
	for _, g := range joined {
		g.refresh()
		g.mu.Lock()
		if g.durable && s.durable { // a session's being durable is decided at CONNECT
			g.saveLocked()
		}
		g.mu.Unlock()
	}

	behind := len(jobs) > 0 && c.srv.retained.behind() // asked after the subscriptions have their beginning
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	if s.feed != nil && s.feed.behind > 0 {
		c.srv.catchUp.schedule(s)
	}
	answer := func() {
		s.addRetainedLocked(jobs)
		c.suback(p.PacketID, reasons)
		if len(jobs) > 0 {
			c.srv.catchUp.schedule(s)
		}
	}
	switch durable := s.durable && len(changes) > 0; {
	case durable:
		changes = append(changes, s.checkpointLocked()...)
	case behind:
		changes = nil // an entry that says when what is before it is done
	default:
		answer()
		c.out.wake()
		return
	}
	c.acks.finish(1)
	c.srv.writer.putAll(changes, func(_ *spool.Record, err error) {
		defer c.acks.finish(-1)
		if err != nil {
			c.closeFor(err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.conn == c {
			answer()
			c.srv.flushAfterGroup(c)
		}
	})
}

// settled waits until what the client has published so far is in the log, so that a subscription begins behind it and finds its
// retained messages. Nobody is told of a QoS 0 publish: an entry behind it says that it is done.
func (c *conn) settled(ctx context.Context) bool {
	c.acks.settle()
	if !c.unacked {
		return true
	}
	if err := c.srv.persist(ctx, nil); err != nil {
		c.closeFor(err)
		return false
	}
	c.unacked = false
	return true
}

// maySubscribe returns the granted QoS or the reason for a refusal.
func (c *conn) maySubscribe(f *wire.Filter) byte {
	s := c.sess
	s.mu.Lock()
	kept := s.durable || f.Share != "" // a filter that is kept is part of a key of the log
	s.mu.Unlock()
	switch {
	case c.srv.tooDeep(f.Topic):
		c.limitReached(limitTopicLevels, errTopicDepth)
		return reasonFilterInvalid
	case len(f.Filter) > c.srv.cfg.MaxTopicLength:
		c.limitReached(limitTopicLength, errTopicLong)
		return reasonFilterInvalid
	}
	if kept && len(filterKey(s.id, f.Filter)) > spool.MaxKey {
		return reasonFilterInvalid
	}
	if err := c.maySubscribeTo(f.Filter, f.QoS); err != nil {
		c.recordDenied("subscribe", f.Filter)
		return reasonOf(err)
	}
	s.mu.Lock()
	have := s.subs.get(f.Filter) != nil
	n := s.subs.len()
	s.mu.Unlock()
	switch limit := c.srv.cfg.MaxSubscriptions; {
	case have:
	case limit > 0 && n >= limit:
		c.limitReached(limitSubscriptions, ErrQuotaExceeded)
		return reasonQuotaExceeded
	case !c.srv.roomFor(subscriptionOverhead + int64(len(f.Filter))):
		c.limitReached(limitSessionsSize, ErrQuotaExceeded)
		return reasonQuotaExceeded
	}
	return f.QoS
}

// newSubscription puts a subscription into the session and into the index; sub is nil when the session has ended.
func (s *session) newSubscription(f *wire.Filter, id uint32) (sub *subscription, isNew bool) {
	sub = &subscription{
		sess: s, filter: strings.Clone(f.Filter), id: id,
		qos: f.QoS, retainHandling: f.RetainHandling, noLocal: f.NoLocal, asPublished: f.RetainAsPublished,
	}
	sub.topic = sub.filter[len(f.Filter)-len(f.Topic):]
	if f.Share != "" {
		s.srv.joinGroup(sub)
	}
	s.mu.Lock()
	ended := s.ended
	if !ended {
		isNew = s.putLocked(sub)
	}
	s.mu.Unlock()
	if ended {
		if sub.group != nil {
			s.srv.leaveGroup(sub.group, s)
		}
		return nil, false
	}
	return sub, isNew
}

func (s *session) putLocked(sub *subscription) (isNew bool) {
	old := s.subs.get(sub.filter)
	if sub.group == nil {
		s.startLocked(sub, old)
	}
	s.subs.put(sub)
	s.matcher = nil
	if sub.group != nil {
		if old == nil {
			s.groups = append(s.groups, sub.group)
		}
	} else {
		// The new one first: a record in between is matched by both and sent once, not by none.
		s.srv.index.add(sub)
		if old != nil {
			s.srv.index.remove(old)
		}
	}
	if old == nil {
		s.srv.subscribed(1)
		s.srv.sessionBytes.Add(sub.size())
	}
	return old == nil
}

// startLocked sets where the subscription begins: at what the distributors offer next, and above what is acknowledged. An
// earlier subscription to the same filter goes on.
func (s *session) startLocked(sub, old *subscription) {
	fresh := old == nil || old.qos == 0 && sub.qos > 0
	if s.feed == nil && sub.qos > 0 {
		s.feed = newFeed(s.srv.lanes.ends())
		for i := range s.feed.live {
			s.feed.join(i)
		}
	}
	if !fresh {
		sub.from = old.from
		return
	}
	for i, l := range s.srv.lanes.list {
		// What the feed still has to read on a lane where it is behind was published before this SUBSCRIBE.
		behind := sub.qos > 0 && !s.feed.live[i]
		if !behind && l.begin() == l.position() {
			continue
		}
		if sub.from == nil {
			sub.from = make(positions, len(s.srv.lanes.list))
		}
		sub.from[i] = l.begin()
	}
}

// change keeps the subscription: version 1 | options 1 | identifier uvarint | has from 1 | [ positions ].
func (sub *subscription) change() spool.Change {
	options := sub.qos | byte(b2i(sub.noLocal))<<2 | byte(b2i(sub.asPublished))<<3 | sub.retainHandling<<4
	b := []byte{stateVersion, options}
	b = binary.AppendUvarint(b, uint64(sub.id))
	if sub.from == nil {
		b = append(b, 0)
	} else {
		b = sub.sess.srv.lanes.appendPositions(append(b, 1), sub.from)
	}
	return spool.Change{Space: spaceSubscription, Key: filterKey(sub.sess.id, sub.filter), Value: b}
}

func (s *session) restoreSubscription(filter string, value []byte) error {
	d := openState(value)
	options := d.byte()
	sub := &subscription{sess: s, filter: filter, topic: filter}
	sub.qos = options & 3
	sub.noLocal = options&4 != 0
	sub.asPublished = options&8 != 0
	sub.retainHandling = options >> 4 & 3
	sub.id = uint32(d.uvarint())
	if d.byte() == 1 {
		sub.from = s.srv.lanes.positions(d, make(positions, len(s.srv.lanes.list)))
	}
	if d.err != nil {
		return d.err
	}
	if rest, ok := strings.CutPrefix(filter, "$share/"); ok {
		if _, topic, ok := strings.Cut(rest, "/"); ok {
			sub.topic = topic
			s.srv.joinGroup(sub)
			s.groups = append(s.groups, sub.group)
		}
	}
	s.subs.put(sub)
	s.srv.subscribed(1)
	s.srv.sessionBytes.Add(sub.size())
	return nil
}

// unsubscribe deals with an UNSUBSCRIBE. Deliveries in flight go on (MQTT 5, 3.10.4-3).
func (c *conn) unsubscribe(p *wire.Unsubscribe) {
	c.acks.waitFinished()
	s := c.sess
	reasons := make([]byte, len(p.Filters))
	var changes []spool.Change
	var left []*group
	s.mu.Lock()
	for i, filter := range p.Filters {
		sub := s.subs.get(filter)
		if sub == nil || s.conn != c {
			reasons[i] = reasonNoSubscription
			continue
		}
		s.removeLocked(sub)
		if sub.group != nil {
			left = append(left, sub.group)
		}
		changes = append(changes, spool.Change{Space: spaceSubscription, Key: filterKey(s.id, filter)})
	}
	s.mu.Unlock()
	for _, g := range left {
		c.srv.leaveGroup(g, s)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	if !s.durable || len(changes) == 0 {
		c.unsuback(p.PacketID, reasons)
		c.out.wake()
		return
	}
	c.acks.finish(1)
	c.srv.writer.putAll(changes, func(_ *spool.Record, err error) {
		defer c.acks.finish(-1)
		if err != nil {
			c.closeFor(err)
			return
		}
		c.unsuback(p.PacketID, reasons)
		c.srv.flushAfterGroup(c)
	})
}

func (s *session) removeLocked(sub *subscription) {
	s.subs.remove(sub.filter)
	s.dropRetainedLocked(sub.filter)
	s.matcher = nil
	s.srv.subscribed(-1)
	s.srv.sessionBytes.Add(-sub.size())
	if sub.group == nil {
		s.srv.index.remove(sub)
		return
	}
	for i, g := range s.groups {
		if g == sub.group {
			s.groups = append(s.groups[:i], s.groups[i+1:]...)
			break
		}
	}
}

// joinGroup finds or makes the group of a shared subscription.
func (srv *Server) joinGroup(sub *subscription) {
	for {
		srv.shareMu.Lock()
		g := srv.groups[sub.filter]
		if g == nil {
			g = &group{srv: srv, filter: sub.filter, topic: sub.topic}
			srv.groups[sub.filter] = g
		}
		srv.shareMu.Unlock()
		sub.group = g
		if g.addMember(sub) {
			return
		}
		// It lost its last member meanwhile, and leaveGroup is about to take it out of the table.
		srv.shareMu.Lock()
		if srv.groups[sub.filter] == g {
			delete(srv.groups, sub.filter)
		}
		srv.shareMu.Unlock()
	}
}

// leaveGroup takes a session out of a group, which ends with its last member.
func (srv *Server) leaveGroup(g *group, s *session) {
	if !g.removeMember(s) {
		g.refresh()
		return
	}
	g.mu.Lock()
	durable := g.durable
	g.mu.Unlock()
	srv.shareMu.Lock()
	if srv.groups[g.filter] == g {
		delete(srv.groups, g.filter)
		if durable {
			srv.writer.put(stateEntry{changes: []spool.Change{{Space: spaceShare, Key: g.filter}}})
		}
	}
	srv.shareMu.Unlock()
	g.mu.Lock()
	if g.indexed {
		g.indexed = false
		srv.index.removeGroup(g)
	}
	g.mu.Unlock()
	srv.catchUp.schedule(g) // closes what it read with
}
