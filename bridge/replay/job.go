package replay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// job is one replay.
type job struct {
	limiter *limiter // of this run

	mu      sync.Mutex
	def     definition // Request, Ranges, ID and times do not change
	pos     map[int]*position
	gaps    []Gap // by offset of each partition
	problem *Problem
	preview *Preview

	upstream  string    // of this run
	began     time.Time // this run
	movedAt   time.Time // a position of it
	sentFirst uint64    // before it
	ending    State     // what somebody wants it to be; empty: the gateway stops
	soft      context.CancelFunc
	hard      context.CancelFunc
	done      chan struct{} // closed when the run is over; nil when there was none
}

func newJob(d definition) *job {
	j := &job{def: d, pos: make(map[int]*position)}
	for _, r := range d.Ranges {
		j.pos[r.Partition] = &position{next: r.From}
	}
	return j
}

func (j *job) state() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.def.State
}

func (j *job) next(partition int) spool.Offset {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pos[partition].next
}

// wants reports whether a record is selected. The range of offsets has been looked at.
func (j *job) wants(rec *spool.Record) bool {
	d := &j.def
	if !d.Since.IsZero() && rec.ReceivedAt < spool.UnixNano(d.Since) || !d.Until.IsZero() && rec.ReceivedAt >= spool.UnixNano(d.Until) {
		return false
	}
	if d.Request.ClientID != "" && rec.ClientID != d.Request.ClientID {
		return false
	}
	if len(d.Request.Filters) == 0 {
		return true
	}
	return slices.ContainsFunc(d.Request.Filters, func(f string) bool { return spool.MatchFilter(f, rec.Topic) })
}

// page is what a sink gets of w.
func (j *job) page(partition int, w *work) *Page {
	j.mu.Lock()
	w.before = *j.pos[partition]
	j.mu.Unlock()
	behind := func(n int, t Tally) position {
		at := w.before
		at.add(t)
		at.next = w.records[n-1].Offset + 1
		return at
	}
	return &Page{
		Partition: partition, Records: w.records,
		mark: func(n int, t Tally) spool.Change {
			at := behind(n, t)
			return at.change(j.def.ID, partition)
		},
		took: func(n int, t Tally) {
			at := behind(n, t)
			j.mu.Lock()
			defer j.mu.Unlock()
			*j.pos[partition] = at
		},
	}
}

// moved takes up the outcome of a page. The changes say so.
func (j *job) moved(partition int, w *work, t Tally) []spool.Change {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.movedAt = time.Now()
	p := j.pos[partition]
	if len(w.records) > 0 {
		*p = w.before // what the sink took down on the way is part of t
	}
	p.add(t)
	p.next, p.expired = w.next, p.expired+w.expired
	changes := []spool.Change{p.change(j.def.ID, partition)}
	for _, g := range w.gaps {
		j.gaps = append(j.gaps, g)
		changes = append(changes, g.change(j.def.ID))
	}
	for _, r := range t.Refusals {
		if len(j.def.Refusals) < maxRefusals {
			j.def.Refusals = append(j.def.Refusals, r)
		}
	}
	return changes
}

// Status is how a job is.
type Status struct {
	ID      string    `json:"id"`
	State   State     `json:"state"`
	Request Request   `json:"request"`
	Target  string    `json:"target"`
	Created time.Time `json:"created"`
	Ended   time.Time `json:"ended,omitzero"`
	Error   string    `json:"error,omitempty"`

	Upstream string `json:"upstream,omitempty"` // where this run goes, or went

	Since time.Time `json:"since,omitzero"` // the range of times, settled
	Until time.Time `json:"until,omitzero"`

	Tally
	Expired uint64 `json:"expired"` // passed over because their time was over, whatever they were
	Lost    uint64 `json:"lost"`    // offsets in gaps

	Offsets uint64 `json:"offsets"` // of the range
	Passed  uint64 `json:"passed"`  // of them, those behind the job

	RecordsPerSecond float64     `json:"records_per_second"` // of this run
	Partitions       []Partition `json:"partitions"`
	Gaps             []Gap       `json:"gaps"`
	Refusals         []Refusal   `json:"refusals"` // the first
	Problem          *Problem    `json:"problem,omitempty"`
	Preview          *Preview    `json:"preview,omitempty"` // of a dry run that is done
}

// Partition is how far a job is in a partition.
type Partition struct {
	Range
	Position spool.Offset `json:"position"`
}

func (j *job) status(now time.Time) Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	d := &j.def
	s := Status{
		ID: d.ID, State: d.State, Request: d.Request, Target: d.Request.Target(), Created: d.Created, Ended: d.Ended, Error: d.Error,
		Since: d.Since, Until: d.Until, Partitions: []Partition{}, Gaps: append([]Gap{}, j.gaps...), Refusals: append([]Refusal{}, d.Refusals...),
		Problem: j.problem, Preview: j.preview, Upstream: j.upstream,
	}
	for _, r := range d.Ranges {
		p := j.pos[r.Partition]
		s.add(p.Tally)
		s.Expired += p.expired
		s.Offsets += uint64(r.To - r.From)
		s.Passed += uint64(p.next - r.From)
		s.Partitions = append(s.Partitions, Partition{r, p.next})
	}
	for _, g := range s.Gaps {
		s.Lost += uint64(g.To - g.From)
	}
	slices.SortFunc(s.Gaps, func(a, b Gap) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.From, b.From))
	})
	if !j.began.IsZero() {
		until := now
		if !d.Ended.IsZero() {
			until = d.Ended
		}
		if took := until.Sub(j.began).Seconds(); took > 0 && s.Sent >= j.sentFirst {
			s.RecordsPerSecond = float64(s.Sent-j.sentFirst) / took
		}
	}
	return s
}

// forget are the changes that remove what is durable of j.
func (j *job) forget() []spool.Change {
	j.mu.Lock()
	defer j.mu.Unlock()
	gone := func(c spool.Change) spool.Change { c.Value = nil; return c }
	var changes []spool.Change
	for p, pos := range j.pos {
		changes = append(changes, gone(pos.change(j.def.ID, p)))
	}
	for _, g := range j.gaps {
		changes = append(changes, gone(g.change(j.def.ID)))
	}
	return append(changes, gone(j.def.change()))
}
