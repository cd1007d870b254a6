package bridge

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// route is a route's configuration, ready to be applied to records.
type route struct {
	cfg       RouteConfig
	mapper    *mapping.Mapper
	gatewayID string
	who       mapping.Identity
	dead      bool // it reads the dead-letter stream
	counts    counts
	pauses    pauses
	rate      *rate        // nil is no limit
	limitedAt atomic.Int64 // when the route's own records last waited for it, Unix time in nanoseconds

	backlogRate *rate // of backlogs beside that; nil is no limit
	splitting   splitting

	unread  atomic.Bool // a partition could not be read back
	watches []*watch    // by partition; nil when nobody waits for the route's records

	refusals   refusals
	overflowed atomic.Bool // the template asked for more topics than the route may have

	partitions   int    // of its stream
	cursor, keep Cursor // of its tail; of what retention has to leave
	stint        atomic.Pointer[stint]
	failover     failover

	departedMu sync.Mutex
	departed   []*feeder // of earlier stints, with something in the air

	mu      sync.Mutex
	names   map[string]bool // Kafka topics that templates have made in this process
	unclean map[string]bool // upstreams that may have records of a run or a stint that had no end
	exactly map[string]*kafka.Exactly

	backlogs []*backlog // the oldest first
}

// admit returns the Kafka topic to use for one that the template made: itself, or the overflow topic when the route has all
// that it may have. first is true when this is the first one over.
func (r *route) admit(name, overflow string) (admitted string, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names[name] || len(r.names) < r.cfg.MaxTopics {
		r.names[name] = true
		return name, false
	}
	first = !r.overflowed.Swap(true)
	return overflow, first
}

// upstream is a client and what its lanes share.
type upstream struct {
	*kafka.Client
	lanes atomic.Int64
}

func newRoute(cfg RouteConfig, gatewayID string, forks []spool.Fork) (*route, error) {
	who := mapping.Identity{Gateway: gatewayID, Stream: cfg.Stream, Forks: forks}
	m, err := mapping.New(cfg.mapping(), who)
	if err != nil {
		return nil, fmt.Errorf("route %s: %w", cfg.Name, err)
	}
	return &route{cfg: cfg, mapper: m, gatewayID: gatewayID, who: who, rate: newRate(cfg.Rate, cfg.RecordsPerSecond), backlogRate: newRate(cfg.BacklogRate, 0), names: make(map[string]bool), unclean: make(map[string]bool), exactly: make(map[string]*kafka.Exactly)}, nil
}

// id is the record's identity, the same whenever it is sent again.
func (r *route) id(rec *spool.Record) string {
	return r.mapper.ID(rec)
}

// limit pays for a record, or says how long it has to wait for the route's rate. A backlog takes what the route's own records leave of
// it, and keeps to a rate of its own.
func (f *feeder) limit(rec *spool.Record) time.Duration {
	r := f.r
	if r.rate == nil && (f.backlog == nil || r.backlogRate == nil) {
		return 0
	}
	now, size := time.Now(), wireSize(rec)
	if f.backlog == nil {
		wait := r.rate.take(now, size)
		if wait > 0 {
			r.limitedAt.Store(now.UnixNano())
		}
		return wait
	}
	if ahead := r.backlogRate.ahead(now); ahead > 0 {
		return ahead + rateRest
	}
	if r.rate != nil && now.UnixNano()-r.limitedAt.Load() < int64(2*rateBurst) {
		return 2 * rateBurst
	}
	if wait := r.rate.take(now, size); wait > 0 {
		return wait
	}
	r.backlogRate.take(now, size)
	return 0
}

// record is rec as the route looks at it: a dead letter as the record that it was, at its place among the dead letters, with
// what is known about it as its last user property.
func (r *route) record(rec *spool.Record) *spool.Record {
	if !r.dead {
		return rec
	}
	was, _, err := splitDead(rec)
	if err != nil {
		return rec
	}
	was.Partition, was.Offset, was.ExpiresAt = rec.Partition, rec.Offset, 0
	props := *was.Properties
	props.User = append(props.User, rec.Properties.User[len(rec.Properties.User)-1])
	was.Properties = &props
	return was
}

// matches reports whether the route takes records of an MQTT topic.
func (r *route) matches(topic string) bool {
	for _, f := range r.cfg.Filters {
		if spool.MatchFilter(f, topic) {
			return true
		}
	}
	return false
}

// headerID is the record's identity: gateway/stream/partition/offset.
const headerID = mapping.HeaderID

// message makes the Kafka record of what s was last asked about.
func (r *route) message(s *mapping.Scratch, rec *spool.Record, d *mapping.Decision) (m kafka.Message) {
	r.messageIn(&m, s, rec, d)
	return m
}

// messageIn is message that makes it where it is to stay.
func (r *route) messageIn(to *kafka.Message, s *mapping.Scratch, rec *spool.Record, d *mapping.Decision) {
	if !r.dead || rec.Properties == nil || len(rec.Properties.User) == 0 {
		r.mapper.MessageIn(to, s, rec, d, nil)
		return
	}
	var meta deadMeta
	last := &rec.Properties.User[len(rec.Properties.User)-1]
	if last.Name != deadMetaProperty || json.Unmarshal([]byte(last.Value), &meta) != nil {
		r.mapper.MessageIn(to, s, rec, d, nil)
		return
	}
	r.mapper.MessageIn(to, s, rec, d, last)
	addDeadHeaders(to, &meta)
}
