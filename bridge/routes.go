package bridge

import (
	"fmt"
	"time"
)

// RouteInfo is a route as an operator looks at it.
type RouteInfo struct {
	RouteHealth
	Stream       string            `json:"stream"`
	Filters      []string          `json:"filters"`
	Topic        string            `json:"topic"`
	PausedLanes  []string          `json:"paused_lanes"`
	Sent         uint64            `json:"sent_records"` // since the start, as all counts
	SentBytes    uint64            `json:"sent_bytes"`
	Retried      uint64            `json:"retried_records"`
	Skipped      uint64            `json:"skipped_records"`
	Expired      uint64            `json:"expired_records"`
	LeftOut      map[string]uint64 `json:"filtered_records"` // by reason
	Faults       map[string]uint64 `json:"mapping_faults"`   // by reason
	DeadLettered uint64            `json:"dead_letters"`
	InFlight     int               `json:"in_flight_records"`
	Buffered     int64             `json:"buffered_bytes"`
	Lanes        int               `json:"lanes"`
	Detached     int               `json:"detached_lanes"`
	Held         int               `json:"held_lanes"`
	LaneList     []LaneInfo        `json:"lane_list,omitempty"` // only when one route is shown
}

// LaneInfo is one lane: the way of the records of one spool partition to one Kafka partition.
type LaneInfo struct {
	Lane      string    `json:"lane"` // Kafka topic and partition; without one while the topic's partitions are not known
	Partition int       `json:"partition"`
	Backlog   bool      `json:"backlog,omitempty"` // it carries what the route has put aside
	State     LaneState `json:"state"`
	Since     time.Time `json:"since,omitzero"`
	Offset    uint64    `json:"offset"` // the oldest that is not acknowledged
	InFlight  int       `json:"in_flight_records"`
	Pending   int       `json:"pending_records"`
	Reason    string    `json:"reason,omitempty"`
	Error     string    `json:"error,omitempty"`
	Hint      string    `json:"hint,omitempty"`
}

// LaneState says how a lane is.
type LaneState string

// The states of a lane: fed by the tail; catching up on its own; held until somebody acts; paused by an operator.
const (
	LaneAttached   LaneState = "attached"
	LaneCatchingUp LaneState = "catching_up"
	LaneHeld       LaneState = "held"
	LanePaused     LaneState = "paused"
)

// Routes describes every route, in the order of the configuration.
func (b *Bridge) Routes() []RouteInfo {
	health, stats := b.Health(), b.Stats()
	out := make([]RouteInfo, 0, len(b.routes))
	for i, r := range b.routes {
		s := stats[i]
		paused, _ := r.pauses.names()
		if paused == nil {
			paused = []string{}
		}
		out = append(out, RouteInfo{
			RouteHealth: health[i], Stream: s.Stream, Filters: r.cfg.Filters, Topic: r.cfg.Topic, PausedLanes: paused,
			Sent: s.Sent, SentBytes: s.SentBytes, Retried: s.Retried, Skipped: s.Skipped, Expired: s.Expired, LeftOut: s.LeftOut, Faults: s.MappingFaults, DeadLettered: s.DeadLettered,
			InFlight: s.InFlight, Buffered: s.BufferedBytes, Lanes: s.Lanes, Detached: s.DetachedLanes, Held: s.HeldLanes,
		})
	}
	return out
}

// Route describes one route with its lanes.
func (b *Bridge) Route(name string) (RouteInfo, error) {
	for i, info := range b.Routes() {
		if info.Route != name {
			continue
		}
		info.LaneList = []LaneInfo{}
		for _, f := range b.routes[i].stint.Load().feeders {
			info.LaneList = append(info.LaneList, f.laneInfos()...)
		}
		return info, nil
	}
	return RouteInfo{}, fmt.Errorf("%q: %w", name, ErrUnknownRoute)
}

func (f *feeder) laneInfos() (out []LaneInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lanes {
		i := LaneInfo{
			Lane: laneName(l.out.topic.Name, l.partition), Partition: f.partition, Backlog: f.backlog != nil, State: LaneAttached, Offset: uint64(l.unacked()), Pending: len(l.pending),
		}
		if l.partition < 0 {
			i.Lane = l.out.topic.Name
		}
		if l.flight != nil {
			i.InFlight = len(l.flight.Messages)
		}
		v := l.verdict
		if v.Reason == "" && l.busy() && time.Since(l.progress) > askAfter {
			v, _ = l.out.topic.PartitionFault(l.partition)
		}
		switch fault := l.fault(); {
		case l.paused:
			i.State, i.Since = LanePaused, l.f.r.pauses.get(i.Lane)
		case l.held:
			i.State, i.Since = LaneHeld, l.heldSince
		case fault != nil:
			i.State, i.Since, v = LaneHeld, l.detachAt, *fault
		case l.detached:
			i.State, i.Since = LaneCatchingUp, l.detachAt
		}
		i.Reason, i.Hint = v.Reason, v.Hint
		if v.Err != nil {
			i.Error = v.Err.Error()
		}
		out = append(out, i)
	}
	return out
}
