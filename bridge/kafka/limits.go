package kafka

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// limits are what a topic's configuration allows.
type limits struct {
	maxBytes      int32         // max.message.bytes
	compacted     bool          // each record needs a key
	before, after time.Duration // how far a record's time may be from the broker's; 0 is no limit
	minInSync     int           // replicas; 0 while it is not known
}

// replicas is how a partition stood when the topic was last looked up.
type replicas struct {
	leader bool
	inSync int
}

func limitsOf(configs []kadm.Config) limits {
	l := limits{maxBytes: defaultMaxMessage}
	span := func(value string) time.Duration {
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms >= 0 && ms < math.MaxInt64/int64(time.Millisecond) {
			return time.Duration(ms) * time.Millisecond
		}
		return 0
	}
	appendTime := false
	for _, c := range configs {
		if c.Value == nil {
			continue
		}
		switch v := *c.Value; c.Key {
		case "max.message.bytes":
			if n, err := strconv.ParseInt(v, 10, 32); err == nil {
				l.maxBytes = int32(n)
			}
		case "cleanup.policy":
			l.compacted = strings.Contains(v, "compact")
		case "message.timestamp.type":
			appendTime = v == "LogAppendTime" // the broker's own time: ours is not looked at
		case "message.timestamp.before.max.ms":
			l.before = span(v)
		case "message.timestamp.after.max.ms":
			l.after = span(v)
		case "message.timestamp.difference.max.ms": // before Kafka 3.6
			l.before, l.after = span(v), span(v)
		case "min.insync.replicas":
			l.minInSync, _ = strconv.Atoi(v)
		}
	}
	if appendTime {
		l.before, l.after = 0, 0
	}
	return l
}

// batchReserve is left for what surrounds the records of a batch.
const batchReserve = 1 << 10

// clockSlack is how far the broker's clock may be from ours: what is refused by less than that, the broker decides.
const clockSlack = time.Minute

// Limits are what a topic takes, for one flight.
type Limits struct {
	// MaxMessage is the size up to which a message may share a flight: a larger one goes alone, so that only itself is refused. It
	// may be taken: the broker's limit is on what is left of it when it is compressed.
	MaxMessage int

	l   limits
	now time.Time
}

// Limits takes a snapshot.
func (t *Topic) Limits(now time.Time) Limits {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return Limits{MaxMessage: int(t.limits.maxBytes) - 2*batchReserve, l: t.limits, now: now}
}

// Refuses says why the topic will never take m, as far as that is known without asking: a refusal costs every lane of the upstream a
// new epoch of the producer, and the flight that it was in.
func (l *Limits) Refuses(m *Message) (Verdict, bool) {
	if l.l.compacted && m.rec.Key == nil {
		return Verdict{
			Class: Poison, Reason: "null_key", Err: fmt.Errorf("a record without a key for a compacted topic: %w", kerr.InvalidRecord),
			Hint: "give records a key, or take compact out of the topic's cleanup.policy",
		}, true
	}
	age := l.now.Sub(m.rec.Timestamp)
	if before := l.l.before; before > 0 && age > before+clockSlack {
		return timeRefused("before", age, before), true
	}
	if after := l.l.after; after > 0 && -age > after+clockSlack {
		return timeRefused("after", -age, after), true
	}
	return Verdict{}, false
}

func timeRefused(side string, by, most time.Duration) Verdict {
	v := verdicts[kerr.InvalidTimestamp.Code]
	v.Err = fmt.Errorf("time is %v %s now, the topic's message.timestamp.%s.max.ms is %v: %w", by.Round(time.Second), side, side, most, kerr.InvalidTimestamp)
	return v
}

// PartitionFault says why a partition does not acknowledge, as far as the cluster's metadata tell: the producer retries such errors
// by itself for ever, and says nothing.
func (t *Topic) PartitionFault(partition int32) (Verdict, bool) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if partition < 0 || int(partition) >= len(t.replicas) {
		return Verdict{}, false
	}
	switch r := t.replicas[partition]; {
	case !r.leader:
		v := verdicts[kerr.LeaderNotAvailable.Code]
		v.Hint, v.Err = "the partition has no leader: bring the brokers back that have it", kerr.LeaderNotAvailable
		return v, true
	case r.inSync < t.limits.minInSync:
		v := verdicts[kerr.NotEnoughReplicas.Code]
		v.Err = fmt.Errorf("%d replicas are in sync, min.insync.replicas is %d: %w", r.inSync, t.limits.minInSync, kerr.NotEnoughReplicas)
		return v, true
	}
	return Verdict{}, false
}

// askAgain is how long what is known about a topic is good enough for a lane that waits.
const askAgain = 5 * time.Second

// Ask has the topic looked up, unless that was done just now: one of its lanes waits.
func (t *Topic) Ask() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if !t.stale && time.Since(t.lookedAt) > askAgain {
		t.stale = true
		signal(t.c.topicC)
	}
}
