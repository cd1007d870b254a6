package downlink

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// State is how a downlink is.
type State string

// The states.
const (
	OK     State = "ok"     // something comes
	Idle   State = "idle"   // there is nothing to bring
	Paused State = "paused" // by an operator
	Stuck  State = "stuck"  // there is something to bring, or it cannot be known, and that lasts
)

// Info is how a downlink is, and what it has brought.
type Info struct {
	Downlink string    `json:"downlink"`
	Upstream string    `json:"upstream"`
	Topics   string    `json:"topics"` // names, or the pattern
	Topic    string    `json:"topic"`  // MQTT
	State    State     `json:"state"`
	Since    time.Time `json:"since,omitzero"`
	Where    string    `json:"where,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`

	Partitions     int               `json:"partitions"`
	Lag            *int64            `json:"lag"` // nil when it is not known: nothing is read, or Kafka does not answer
	MaxLag         *int64            `json:"max_partition_lag"`
	Records        uint64            `json:"records"`
	Bytes          uint64            `json:"bytes"`
	HeadersLeftOut uint64            `json:"headers_left_out"`
	LeftOut        map[string]uint64 `json:"left_out"`
	Poison         map[string]uint64 `json:"poison"`
	Gaps           map[string]uint64 `json:"gaps"`
	GapOffsets     map[string]uint64 `json:"gap_offsets"`
	Stopped        int               `json:"paused_partitions"` // for want of room in the spool
	Held           int               `json:"held_partitions"`   // behind a gap
	Buffered       int64             `json:"buffered_bytes"`

	PartitionList []PartitionInfo `json:"partition_list,omitempty"` // only when one downlink is shown
}

// PartitionInfo is how a partition is.
type PartitionInfo struct {
	Partition string    `json:"partition"` // topic/number
	State     string    `json:"state"`     // reading, paused, held, waiting
	Since     time.Time `json:"since,omitzero"`
	Position  int64     `json:"position"` // durable: of the next record
	End       int64     `json:"end"`      // of the partition in Kafka, -1 when it is not known
	Lag       *int64    `json:"lag"`      // nil when it is not known
	Queued    int       `json:"queued"`
	Reason    string    `json:"reason,omitempty"`
	Error     string    `json:"error,omitempty"`
	Hint      string    `json:"hint,omitempty"`
}

// stuckAfter is how long something may go wrong before a downlink is stuck: brokers restart, leaders move.
const stuckAfter = 10 * time.Second

// List tells of every downlink, in the order of the configuration.
func (e *Engine) List() []Info {
	out := []Info{}
	for _, d := range e.all() {
		i := d.info(time.Now())
		i.PartitionList = nil
		out = append(out, i)
	}
	return out
}

// Show tells of one downlink and its partitions.
func (e *Engine) Show(name string) (Info, error) {
	d, err := e.link(name)
	if err != nil {
		return Info{}, err
	}
	return d.info(time.Now()), nil
}

func (d *downlink) info(now time.Time) Info {
	i := Info{
		Downlink: d.cfg.Name, Upstream: d.cfg.Upstream, Topics: d.cfg.looksFor(), Topic: d.cfg.Topic, State: Idle,
		Records: d.counts.records.Load(), Bytes: d.counts.bytes.Load(), HeadersLeftOut: d.counts.headers.Load(), Buffered: d.buffered.Load(),
		LeftOut: make(map[string]uint64),
	}
	for r, name := range leftReasons {
		i.LeftOut[name] = d.counts.leftOut[r].Load()
	}
	i.Poison, i.Gaps, i.GapOffsets = d.counts.byReason()
	up := d.up.Status()
	d.mu.Lock()
	defer d.mu.Unlock()
	stuck := func(since time.Time, where string, v kafka.Verdict) {
		if i.State == Stuck && !since.Before(i.Since) {
			return
		}
		i.State, i.Since, i.Where, i.Reason, i.Hint, i.Error = Stuck, since, where, v.Reason, v.Hint, ""
		if v.Err != nil {
			i.Error = v.Err.Error()
		}
	}
	reads := d.looked && d.pausedSince.IsZero() && d.lookErr.Err == nil && up.Down.IsZero()
	known := reads // of all partitions
	var lag, maxLag int64
	for _, p := range d.parts {
		pi := p.info()
		i.Partitions++
		if !reads { // what was the end is not any more
			pi.End, pi.Lag = -1, nil
		}
		if pi.Lag == nil {
			known = false
		} else {
			lag += *pi.Lag
			maxLag = max(maxLag, *pi.Lag)
		}
		v := kafka.Verdict{Reason: pi.Reason, Hint: pi.Hint}
		if pi.Error != "" {
			v.Err = fmt.Errorf("%s", pi.Error)
		}
		switch pi.State {
		case "held":
			i.Held++
			stuck(pi.Since, pi.Partition, v)
		case "paused":
			i.Stopped++
			fallthrough
		case "waiting":
			if now.Sub(pi.Since) > stuckAfter {
				stuck(pi.Since, pi.Partition, v)
			}
		}
		i.PartitionList = append(i.PartitionList, pi)
	}
	slices.SortFunc(i.PartitionList, func(a, b PartitionInfo) int { return cmp.Compare(a.Partition, b.Partition) })
	if known {
		i.Lag, i.MaxLag = &lag, &maxLag
	}
	if i.State == Idle && lag > 0 {
		i.State = OK
	}
	for topic, f := range d.faults {
		if now.Sub(f.since) > stuckAfter {
			stuck(f.since, "topic "+topic, f.Verdict)
		}
	}
	if f := &d.lookErr; f.Err != nil && now.Sub(f.since) > stuckAfter {
		stuck(f.since, "upstream "+d.cfg.Upstream, f.Verdict)
	}
	if !up.Down.IsZero() {
		d.unreachable(&i, up, stuck, now)
	}
	for _, m := range d.missing {
		stuck(m.since, "topic "+m.topic, kafka.Verdict{Reason: "topic_missing", Hint: "make the topic, allow this client to see it (ACL DESCRIBE), or correct topics"})
	}
	if d.failed != nil {
		i.State, i.Reason, i.Error, i.Hint = Stuck, "spool", d.failed.Error(), "see the spool's health"
	}
	if !d.pausedSince.IsZero() {
		i.State, i.Since, i.Where, i.Reason, i.Error, i.Hint = Paused, d.pausedSince, "", "paused", "", "forebay downlink resume "+d.cfg.Name
	}
	return i
}

// unreachable says that the upstream does not answer: at once, and when that has lasted, that the downlink is stuck. What reads may need
// half a minute to find out.
func (d *downlink) unreachable(i *Info, up kafka.Status, stuck func(time.Time, string, kafka.Verdict), now time.Time) {
	v := kafka.Verdict{Reason: "unreachable", Err: up.ConnError}
	if up.ConnError != nil {
		if reason, hint := kafka.ConnectionReason(up.ConnError); reason != "" {
			v.Reason, v.Hint = reason, hint
		}
	}
	lasts := now.Sub(up.Down) > stuckAfter
	if i.State == Stuck && !lasts {
		return
	}
	stuck(up.Down, "upstream "+d.cfg.Upstream, v)
	if !lasts { // something may wait; it is not known
		i.State = OK
	}
}

func (p *partition) info() PartitionInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := PartitionInfo{Partition: p.String(), State: "reading", Position: p.durable, End: p.high, Queued: len(p.queue)}
	if p.high >= 0 {
		lag := max(p.high-p.durable, 0)
		i.Lag = &lag
	}
	switch {
	case p.held != nil:
		i.State, i.Since, i.Reason, i.Hint = "held", p.held.since, "gap_"+p.held.reason, "forebay downlink resume "+p.d.cfg.Name+" goes on behind it"
	case p.stopped:
		i.State, i.Since, i.Reason, i.Hint = "paused", p.since, "spool_full", "records wait for room in the spool"
		if p.why != nil {
			i.Error = p.why.Error()
		}
		if i.Since.IsZero() {
			i.Since = time.Now()
		}
	case p.fault != nil:
		i.State, i.Since, i.Reason, i.Hint = "waiting", p.fault.since, p.fault.Reason, p.fault.Hint
		if p.fault.Err != nil {
			i.Error = p.fault.Err.Error()
		}
	}
	return i
}
