package bridge

import (
	"cmp"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// judge is what is known about a route's upstreams from one look to the next.
type judge struct {
	progress time.Time                  // when the route was last seen to have nothing to deliver, or to deliver something
	acked    uint64                     // of the stint
	others   uint64                     // dead letters, and waiting for the route's rate
	strikes  int                        // moves in a row without an acknowledgement between
	returns  int                        // times in a row that the first upstream was left soon after the return to it
	backAt   time.Time                  // the return
	well     map[*upstream]time.Time    // since when it is usable without a break; no entry when it is not
	topics   map[*upstream]*kafka.Topic // of a route with one topic: what is known there of it
}

// How routes are watched.
const (
	lookEvery   = 250 * time.Millisecond
	aliveAgain  = 2 * time.Second // a sign of life that is older is asked for
	aliveFor    = 10 * time.Second
	maxPatience = 4 // doublings of failover.after and fail_back_after
)

// look decides whether r has to go elsewhere, and why.
func (r *route) look(now time.Time) (to *upstream, reason string) {
	fo, j, cfg := &r.failover, &r.failover.judge, &r.cfg.Failover
	active, _, by, _ := fo.where()
	j.watch(r, active, now)
	if r.stint.Load().taken() {
		return nil, ""
	}
	after, backAfter := time.Duration(cfg.After), time.Duration(cfg.FailBackAfter)
	if now.Sub(j.progress) >= after<<min(j.strikes, maxPatience) {
		for _, up := range fo.list {
			if up != active && !j.well[up].IsZero() && !r.lingers(up) {
				j.strikes++
				return up, r.complaint()
			}
		}
	}
	first := fo.list[0]
	if active == first && !j.backAt.IsZero() && now.Sub(j.backAt) >= backAfter<<min(j.returns, maxPatience) {
		j.backAt, j.returns = time.Time{}, 0 // it has held
	}
	if active == first || cfg.FailBack == FailBackNever || by == byOperator {
		return nil, ""
	}
	if well := j.well[first]; !well.IsZero() && now.Sub(well) >= backAfter<<min(j.returns, maxPatience) && !r.lingers(first) {
		return first, byReturn
	}
	return nil, ""
}

const byReturn = "fail_back"

// watch notes what can be seen of r and its upstreams.
func (j *judge) watch(r *route, active *upstream, now time.Time) {
	if j.well == nil {
		j.well, j.topics = make(map[*upstream]time.Time), make(map[*upstream]*kafka.Topic)
		j.progress = now
		if r.mapper.Constant() {
			for _, up := range r.failover.list {
				j.topics[up] = up.Topic(r.mapper.Text(), r.cfg.CreateTopics)
			}
		}
	}
	owes, acked := r.owes(now)
	if active.Up() {
		r.failover.missed.Store(false)
	}
	owes = owes || r.failover.missed.Load()
	others := r.counts.deadLettered.Load() + uint64(r.counts.limited.Load())
	if acked > j.acked {
		j.strikes = 0
	}
	if !owes || acked != j.acked || others != j.others || r.isPaused() {
		j.progress = now
	}
	j.acked, j.others = acked, others
	hindered := make(map[string]string)
	for _, up := range r.failover.list {
		if up == active {
			delete(j.well, up)
			continue
		}
		switch why := hindrance(up, j.topics[up], now); {
		case why != "":
			delete(j.well, up)
			hindered[up.Name()] = why
		case j.well[up].IsZero():
			j.well[up] = now
		}
	}
	r.failover.mu.Lock()
	r.failover.hindered = hindered
	r.failover.mu.Unlock()
}

// hindrance is the reason why a route should not go to up, empty when none is known.
func hindrance(up *upstream, topic *kafka.Topic, now time.Time) string {
	up.AliveSince(now.Add(-aliveAgain)) // asks
	if s := up.Status(); !s.Up || now.Sub(s.Alive) > aliveFor {
		reason, _ := kafka.ConnectionReason(s.ConnError)
		return cmp.Or(reason, "not_reachable")
	}
	if topic == nil {
		return ""
	}
	topic.Ask()
	s := topic.Status()
	switch {
	case s.Fault != nil:
		return s.Fault.Reason
	case s.Partitions == 0:
		return "topic_unknown"
	}
	for p := range s.Partitions {
		if v, faulty := topic.PartitionFault(p); faulty {
			return v.Reason
		}
	}
	return ""
}

// moved begins anew behind a move, which is at an end.
func (j *judge) moved(r *route, from, to *upstream, now time.Time) {
	wait := time.Duration(r.cfg.Failover.FailBackAfter) << min(j.returns, maxPatience)
	switch first := r.failover.list[0]; {
	case to == first:
		j.backAt = now
	case from == first && !j.backAt.IsZero():
		if now.Sub(j.backAt) < wait {
			j.returns++
		} else {
			j.returns = 0
		}
		j.backAt = time.Time{}
	}
	j.progress, j.acked = now, 0
	r.failover.missed.Store(false)
	clear(j.well)
}

// owes reports whether the route has something that its upstream should acknowledge now, and how much that has acknowledged since
// the route is there.
func (r *route) owes(now time.Time) (owes bool, acked uint64) {
	for _, f := range r.stint.Load().feeders {
		o, n := f.owes(now)
		owes, acked = owes || o, acked+n
	}
	return owes, acked
}

func (f *feeder) owes(now time.Time) (owes bool, acked uint64) {
	end := f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owesLocked(now, end), f.acked
}

func (f *feeder) owesLocked(now time.Time, end spool.Offset) bool {
	if f.waiting || now.Before(f.catchFrom) { // for an older backlog; for the route's rate
		return false
	}
	if f.exactly != nil && !f.opened {
		return f.openErr != nil && f.committed < end
	}
	if f.placing != nil && !f.up.Up() { // the tail waits
		return true
	}
	for _, l := range f.lanes {
		if l.busy() && l.owes() {
			return true
		}
	}
	return false
}

// owes reports whether l waits for its upstream and not for somebody else: what Kafka will not take is refused everywhere.
func (l *lane) owes() bool {
	return !l.paused && !l.poison && (!l.held || l.verdict.Class == kafka.Fault)
}

// complaint is what is wrong with the upstream that the route is on.
func (r *route) complaint() string {
	st := r.stint.Load()
	if s := st.up.Status(); !s.Up {
		if reason, _ := kafka.ConnectionReason(s.ConnError); reason != "" {
			return reason
		}
	}
	h := RouteHealth{}
	for _, f := range st.feeders {
		f.examine(&h, time.Now())
	}
	return cmp.Or(h.Reason, "no_acknowledgement")
}
