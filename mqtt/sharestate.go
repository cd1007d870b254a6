package mqtt

import (
	"encoding/binary"

	"github.com/forebay-gateway/forebay/spool"
)

func (g *group) touchLocked() {
	if g.durable && !g.dirty {
		g.dirty = true
		g.srv.dirty.add(g)
	}
}

// saveLocked makes the position durable, with the deliveries that nobody else remembers. The members' sessions go first:
// what the group has handed out is in one of the two.
//
//	version 1 | positions | n × place
func (g *group) saveLocked() {
	g.dirty = false
	if g.gone || g.feed == nil {
		return
	}
	next := make(positions, len(g.feed.next))
	for i := range next {
		next[i] = g.positionLocked(i)
	}
	list := append([]place{}, g.orphans...)
	for _, m := range g.members {
		m.sess.mu.Lock()
		if m.sess.durable {
			m.sess.saveLocked()
		} else {
			m.sess.flights.all(func(fl *flight) {
				if fl.group == g && fl.state < flightCompleted {
					list = append(list, place{fl.lane, fl.off})
				}
			})
		}
		m.sess.mu.Unlock()
	}
	b := g.srv.lanes.appendPositions([]byte{stateVersion}, next)
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, at := range list {
		b = g.srv.lanes.appendPlace(b, &flight{lane: at.lane, off: at.off})
	}
	g.srv.writer.put(stateEntry{changes: []spool.Change{{Space: spaceShare, Key: g.filter, Value: b}}})
	g.saved.Store(&savedGroup{count: g.saves() + 1, next: next})
}

func (g *group) checkpoint() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dirty {
		g.saveLocked()
	}
}

func (g *group) restore(value []byte, base positions) error {
	d := openState(value)
	g.feed = newFeed(g.srv.lanes.positions(d, base))
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		lane, off, _, ok := g.srv.lanes.place(d)
		if !ok {
			continue
		}
		if _, taken := g.again[place{lane, off}]; !taken {
			g.orphans = append(g.orphans, place{lane, off})
		}
	}
	g.durable = true
	g.offlineSince = g.srv.own().UnixNano()
	return d.err
}
