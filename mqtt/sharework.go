package mqtt

import (
	"github.com/forebay-gateway/forebay/spool"
)

// giveBack takes deliveries of a member that is gone.
func (g *group) giveBack(at []place) {
	g.mu.Lock()
	g.orphans = append(g.orphans, at...)
	g.touchLocked()
	g.mu.Unlock()
	g.srv.catchUp.schedule(g)
}

func (g *group) workState() *work { return &g.work }

// Lock, Unlock, feedLocked, acceptLocked and name make the group a feeder.
func (g *group) Lock() { g.mu.Lock() }

func (g *group) Unlock() { g.mu.Unlock() }

func (g *group) name() string { return g.filter }

func (g *group) feedLocked() *feed {
	if g.gone || !g.indexed {
		return nil
	}
	return g.feed
}

func (g *group) acceptLocked(lane int, rec *spool.Record, enc *encoder) bool {
	if rec.QoS == 0 || !spool.MatchFilter(g.topic, rec.Topic) {
		return true
	}
	if _, ok := g.again[place{int32(lane), rec.Offset}]; ok {
		g.touchLocked()
		return true
	}
	c, ok := g.handLocked(lane, rec, enc)
	if ok {
		g.touchLocked()
		c.out.wake()
	}
	return ok
}

func (g *group) passedLocked(lane int, next spool.Offset) {
	for at := range g.again {
		if int(at.lane) == lane && at.off < next {
			delete(g.again, at)
		}
	}
}

// taken notes, at a restart, that a member has the QoS 2 delivery of a record.
func (g *group) taken(at place) {
	if g.again == nil {
		g.again = make(map[place]struct{})
	}
	g.again[at] = struct{}{}
}

// serve hands out first what members left behind, then what the group is behind.
func (g *group) serve(enc *encoder) bool {
	g.starved.Store(true)
	g.mu.Lock()
	f, on := g.feed, g.feedLocked() != nil
	g.mu.Unlock()
	if !on {
		if f != nil {
			f.close()
		}
		return false
	}
	if !g.serveOrphans(enc) {
		return false
	}
	if f.serve(g.srv, g, enc) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.behind == 0 && len(g.orphans) == 0 {
		g.starved.Store(false)
	}
	return false
}

func (g *group) serveOrphans(enc *encoder) bool {
	var f fetcher
	defer f.close()
	for {
		g.mu.Lock()
		if len(g.orphans) == 0 {
			g.orphans = nil
			g.mu.Unlock()
			return true
		}
		at := g.orphans[0]
		g.mu.Unlock()
		rec, err := f.fetch(g.srv, at.lane, at.off)
		if err != nil {
			g.srv.log.Warn("reading the spool for a share group, again soon", "err", err)
			return false
		}
		g.mu.Lock()
		taken := true
		if rec == nil {
			g.srv.metrics.drop(dropExpired)
		} else {
			enc.reset(rec, g.srv.now())
			var c *conn
			if c, taken = g.handLocked(int(at.lane), rec, enc); taken {
				c.out.wake()
			}
		}
		if taken {
			g.orphans = g.orphans[1:]
			g.touchLocked()
		}
		g.mu.Unlock()
		if !taken {
			return false
		}
	}
}
