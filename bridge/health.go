package bridge

import (
	"fmt"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// State says how a route is.
type State string

// The states: an operator has paused the route or some of its lanes, and otherwise health follows acknowledgements: a route that is connected but delivers nothing of what it has is stuck; one
// that has nothing is idle, and healthy.
const (
	OK     State = "ok"
	Idle   State = "idle"
	Stuck  State = "stuck"
	Paused State = "paused"

	// Degraded is a route that is well, on another upstream than its first.
	Degraded State = "degraded"
)

// stuckAfter is how long a route may have something to deliver without an acknowledgement: a broker that restarts is
// back before.
const stuckAfter = 30 * time.Second

// RouteHealth is how a route is, and what an operator can do about it.
type RouteHealth struct {
	Route    string    `json:"route"`
	Upstream string    `json:"upstream"`
	State    State     `json:"state"`
	Since    time.Time `json:"since,omitzero"` // stuck or paused: since when
	Where    string    `json:"where,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`
	Warning  string    `json:"warning,omitempty"` // what the route does not keep, whatever its state
	Lag      uint64    `json:"lag_records"`
	LagAge   float64   `json:"lag_seconds"`

	Failover *FailoverState `json:"failover,omitempty"` // of a route that has one
	Backlog  *BacklogState  `json:"backlog,omitempty"`  // of a route that has one
}

// RouteStats are a route's figures.
type RouteStats struct {
	Route, Upstream, Stream string
	Sent, SentBytes         uint64 // acknowledged
	Retried                 uint64
	Errors                  map[string]uint64 // by class
	Skipped, Expired        uint64
	LeftOut, MappingFaults  map[string]uint64 // by reason
	Overflowed              bool              // the mapping asked for more Kafka topics than the route may have
	DeadLettered, Detaches  uint64
	Found                   uint64            // records that Kafka had after a crash
	ReadBack                map[string]uint64 // partitions, by result
	RateLimited             time.Duration     // that reading waited for the route's rate, over its partitions
	Gaps                    map[string]uint64 // offsets, by reason
	Lag                     uint64            // durable offsets from the oldest undelivered one to the log end
	LagAge                  time.Duration     // age of the oldest undelivered record
	LiveLagAge              time.Duration     // the same without backlogs
	Backlog                 uint64            // part of Lag
	Backlogs                []BacklogPart
	Splits                  uint64
	InFlight                int // records sent and not acknowledged
	BufferedRecords         int // records in lanes, sent ones included
	BufferedBytes           int64
	Lanes                   int
	DetachedLanes           int
	HeldLanes               int
}

// Stats takes a snapshot of every route, in the order of the configuration.
func (b *Bridge) Stats() []RouteStats {
	out := make([]RouteStats, 0, len(b.routes))
	for _, r := range b.routes {
		s := RouteStats{
			Route: r.cfg.Name, Upstream: r.upstream().Name(), Stream: r.cfg.Stream,
			Sent: r.counts.sent.Load(), SentBytes: r.counts.sentBytes.Load(), Retried: r.counts.retried.Load(),
			Errors: make(map[string]uint64), Skipped: r.counts.skipped.Load(), Expired: r.counts.expired.Load(),
			LeftOut: make(map[string]uint64), MappingFaults: make(map[string]uint64), Overflowed: r.overflowed.Load(),
			Found:        r.counts.found.Load(),
			ReadBack:     map[string]uint64{"done": r.counts.readBack[readDone].Load(), "refused": r.counts.readBack[readRefused].Load()},
			RateLimited:  time.Duration(r.counts.limited.Load()),
			DeadLettered: r.counts.deadLettered.Load(), Detaches: r.counts.detached.Load(), Gaps: r.counts.gapOffsets(),
		}
		for _, class := range kafka.Classes {
			s.Errors[class.String()] = r.counts.errors[class].Load()
		}
		for _, reason := range mapping.LeftOut {
			s.LeftOut[reason.String()] = r.mapper.LeftOut(reason)
		}
		for _, reason := range mapping.Faults {
			s.MappingFaults[reason.String()] = r.mapper.Faults(reason)
		}
		s.Splits = r.counts.splits.Load()
		var oldest time.Time
		st := r.stint.Load()
		for _, f := range st.own {
			f.addStats(&s, &oldest)
		}
		age := func() (d time.Duration) {
			if !oldest.IsZero() {
				d = max(b.now().Sub(oldest), 0)
			}
			return d
		}
		s.LiveLagAge = age()
		for _, run := range st.aside {
			before := s.Lag
			for _, f := range run.feeders {
				f.addStats(&s, &oldest)
			}
			if lag := s.Lag - before; lag > 0 {
				s.Backlog += lag
				s.Backlogs = append(s.Backlogs, BacklogPart{Since: run.bl.since, Lag: lag})
			}
		}
		s.LagAge = age()
		out = append(out, s)
	}
	return out
}

// addStats adds f's part and lowers oldest to the receive time of its oldest undelivered record.
func (f *feeder) addStats(s *RouteStats, oldest *time.Time) {
	end := f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	older := func(t time.Time) {
		if oldest.IsZero() || t.Before(*oldest) {
			*oldest = t
		}
	}
	low := f.pos
	if at := f.graves.at; len(at) > 0 {
		low = min(low, at[0])
	}
	for _, l := range f.lanes {
		low = min(low, l.unacked())
		if t, ok := l.oldest(); ok {
			older(t)
		}
		s.Lanes++
		if l.detached {
			s.DetachedLanes++
		}
		if l.held || l.fault() != nil {
			s.HeldLanes++
		}
		s.BufferedRecords += len(l.pending)
		s.BufferedBytes += int64(l.bytes)
		if l.flight != nil {
			s.InFlight += len(l.flight.Messages)
			s.BufferedRecords += len(l.flight.Messages)
			s.BufferedBytes += int64(l.flying)
		}
	}
	if f.head != 0 {
		older(time.Unix(0, f.head))
	}
	if end > low {
		s.Lag += uint64(end - low)
	}
}

// fault is why the topic that l stands for cannot be used.
func (l *lane) fault() *kafka.Verdict {
	if l.partition >= 0 || !l.detached {
		return nil
	}
	if s := l.out.topic.Status(); s.Fault != nil && s.Fault.Class != kafka.Retry {
		return s.Fault
	}
	return nil
}

// Health tells of every route whether it delivers, in the order of the configuration.
func (b *Bridge) Health() []RouteHealth {
	now := time.Now()
	var out []RouteHealth
	for i, s := range b.Stats() {
		h := RouteHealth{Route: s.Route, Upstream: s.Upstream, State: OK, Lag: s.Lag, LagAge: s.LagAge.Seconds()}
		if s.Lag == 0 {
			h.State = Idle
		}
		r := b.routes[i]
		h.Backlog = r.backlogState(&s)
		if r.overflowed.Load() {
			h.Warning = fmt.Sprintf("the topic's fields made %d Kafka topics, and what needs more goes to the overflow topic: raise max_topics, or let topic have fewer values", r.cfg.MaxTopics)
		}
		if r.unread.Load() {
			h.Warning = "partitions could not be read back after a crash: some records may have come twice; " + readHint
		}
		h.Failover = r.failover.state()
		if since, paused := r.pauses.route(); paused {
			h.State, h.Since, h.Reason, h.Hint = Paused, since, "paused", "forebay route resume "+s.Route
			out = append(out, h)
			continue
		}
		for _, f := range r.stint.Load().feeders {
			f.examine(&h, now)
		}
		if h.State == OK {
			h.unreachable(r.upstream().Status())
		}
		r.standby(&h)
		if lanes, since := r.pauses.names(); len(lanes) > 0 && h.State != Stuck {
			h.State, h.Since, h.Reason = Paused, since, "paused"
			h.Where = "lane " + strings.Join(lanes[:min(len(lanes), 8)], ", ")
			if len(lanes) > 8 {
				h.Where += fmt.Sprintf(" and %d more", len(lanes)-8)
			}
			h.Hint = fmt.Sprintf("forebay route resume %s --lane %s", s.Route, lanes[0])
		}
		out = append(out, h)
	}
	return out
}

// unreachable says that records wait for an upstream that does not answer, before that has lasted long enough to be stuck.
func (h *RouteHealth) unreachable(s kafka.Status) {
	if s.Down.IsZero() {
		return
	}
	h.Since, h.Reason = s.Down, "unreachable"
	if s.ConnError != nil {
		h.Error = s.ConnError.Error()
		_, h.Hint = kafka.ConnectionReason(s.ConnError)
	}
}

// examine makes h what is wrong with f, if that has been wrong for longer than what h says.
func (f *feeder) examine(h *RouteHealth, now time.Time) {
	status := f.up.Status()
	end := f.end()
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.waiting { // for an older backlog
		return
	}
	named := false // what holds f is known
	stuck := func(since time.Time, where string, v kafka.Verdict) {
		named = true
		if h.State == Stuck && !since.Before(h.Since) {
			return
		}
		h.State, h.Since, h.Where, h.Reason, h.Hint, h.Error = Stuck, since, where, v.Reason, v.Hint, ""
		if v.Err != nil {
			h.Error = v.Err.Error()
		}
	}
	here := func(o spool.Offset) string {
		return fmt.Sprintf("stream %s partition %d offset %d", f.r.cfg.Stream, f.partition, o)
	}
	if f.readErr != nil && now.Sub(f.readErrAt) > time.Second {
		stuck(f.readErrAt, here(f.pos), kafka.Verdict{Reason: "spool", Err: f.readErr})
	}
	if g := &f.graves; g.err != nil && len(g.at) > 0 {
		stuck(g.errAt, here(g.at[0]), kafka.Verdict{Reason: "dead_letter", Err: g.err, Hint: graveHint})
	}
	if f.openErr != nil && status.Up && f.committed < end && now.Sub(f.openedAt) > 5*time.Second {
		stuck(f.openedAt, "positions in upstream "+f.up.Name(), kafka.Classify(f.openErr))
	}
	// The upstream, or nothing that is known.
	waiting := kafka.Verdict{Reason: "no_acknowledgement"}
	if !status.Up || now.Sub(status.ConnErrorAt) < stuckAfter {
		waiting.Err = status.ConnError
		if reason, hint := kafka.ConnectionReason(status.ConnError); reason != "" {
			waiting.Reason, waiting.Hint = reason, hint
		}
	}
	if f.committed < end && !status.Up && now.Sub(status.Alive) > stuckAfter && now.Sub(f.progress) > stuckAfter {
		stuck(f.progress, "upstream "+f.up.Name(), waiting)
	}
	if f.committed < end && f.detached == 0 && !named && now.Sub(f.progress) > stuckAfter {
		stuck(f.progress, here(f.committed), waiting)
	}
	for _, l := range f.lanes {
		if l.paused {
			continue
		}
		where := fmt.Sprintf("topic %s partition %d, %s", l.out.topic.Name, l.partition, here(l.unacked()))
		if l.held {
			stuck(l.heldSince, where, l.verdict)
			continue
		}
		if v := l.fault(); v != nil {
			stuck(l.detachAt, fmt.Sprintf("topic %s, %s", l.out.topic.Name, here(l.next)), *v)
			continue
		}
		if l.busy() && now.Sub(l.progress) > stuckAfter {
			v := l.verdict
			if v.Reason == "" {
				v = waiting
				if known, ok := l.out.topic.PartitionFault(l.partition); ok && status.Up {
					v = known
				}
			}
			stuck(l.progress, where, v)
		}
	}
}
