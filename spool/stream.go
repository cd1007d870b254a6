package spool

import (
	"sync"
	"sync/atomic"
	"time"
)

// stream is a named log: its partitions, its segments and its rules.
type stream struct {
	name       string
	cfg        StreamConfig
	configured bool         // false: found on disk, no longer in the configuration; it gets nothing new
	parts      []*partition // as many as the configuration says, or as there ever were
	writable   int          // how many of parts new records go to

	segMu   sync.RWMutex
	segs    []*segmentFile // ascending; the last one may be active. Replaced, not changed, when one is removed
	lastSeq uint64         // no sequence number at or below is given out again

	hotShare atomic.Uint64 // bits of a float64: share of the hottest partition in the bytes of the last minute
	hottest  atomic.Int64  // which one that is

	full  atomic.Bool  // over its own max_size and nothing may be removed
	bytes atomic.Int64 // on disk, including what waits for its removal

	appended atomic.Uint64
	expired  atomic.Uint64 // left the disk, their time being over
	skipped  atomic.Uint64 // left out for a reader, their time being over; counted for each reader
	dropped  [len(dropReasons)]atomic.Uint64
}

// The reasons for which a record is lost; the names are label values.
type dropReason int

const (
	dropOldest dropReason = iota
	dropNew
	dropDamaged
	dropRejected
	dropNotStored
	dropUnwritten
)

var dropReasons = [...]string{
	dropOldest: "drop_oldest", dropNew: "drop_new", dropDamaged: "damaged", dropRejected: "rejected", dropNotStored: GapNotStored, dropUnwritten: "journal_failed",
}

func newStream(cfg StreamConfig, partitions int) *stream {
	st := &stream{name: cfg.Name, cfg: cfg, configured: true, writable: cfg.Partitions}
	st.grow(max(partitions, cfg.Partitions))
	return st
}

// grow makes sure that there are n partitions. Only before the spool is shared.
func (st *stream) grow(n int) {
	for len(st.parts) < n {
		st.parts = append(st.parts, &partition{st: st, num: len(st.parts)})
	}
}

// takes tells whether one of the stream's filters matches topic.
func (st *stream) takes(topic string) bool {
	for _, f := range st.cfg.Filters {
		if MatchFilter(f, topic) {
			return true
		}
	}
	return false
}

// partitionFor is where a record goes: the same publisher (or topic) always to the same partition, over restarts too.
func (st *stream) partitionFor(r *Record) *partition {
	if st.writable == 1 {
		return st.parts[0]
	}
	key := r.ClientID
	if st.cfg.PartitionBy == PartitionByTopic {
		key = r.Topic
	}
	// FNV-1a, then folded: stable for ever, since it decides where a publisher's order is kept.
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return st.parts[(h^h>>32)%uint64(st.writable)]
}

// applyTTL sets the expiry that the stream wants.
func (st *stream) applyTTL(r *Record) {
	r.StreamTTL = r.ExpiresAt == 0 && (st.cfg.TTL > 0 || st.cfg.MaxTTL > 0)
	if st.cfg.TTL > 0 && r.ExpiresAt == 0 {
		r.ExpiresAt = addTime(r.ReceivedAt, st.cfg.TTL.Std())
	}
	if st.cfg.MaxTTL > 0 {
		if limit := addTime(r.ReceivedAt, st.cfg.MaxTTL.Std()); r.ExpiresAt == 0 || r.ExpiresAt > limit {
			r.ExpiresAt = limit
		}
	}
}

// addTime stops at the end of time instead of wrapping to its beginning.
func addTime(t int64, d time.Duration) int64 {
	if sum := t + int64(d); sum >= t {
		return sum
	}
	return 1<<63 - 1
}

// partition is one ordered log.
type partition struct {
	st  *stream
	num int

	mu      sync.RWMutex
	chunks  []*chunk // the tail, ascending and without holes
	start   Offset   // log start: nothing below it can be read
	end     Offset   // durable log end; == the Next of the last chunk when there is one
	applied Offset   // everything below is in a segment, or gone. chunks hold everything from here on
	lost    []lostRange
	wake    chan struct{} // closed at the next publish; nil when nobody waits
	load    load          // appended by this process

	byteRate, recordRate float64 // a second, over the last minute

	saved []byte // its record in meta.db; guarded by meta.mu

	pending *section // guarded by Spool.mu: the section of the group that is being filled, nil when it has none
}

// lostRange are offsets that are gone for a reason worth telling.
type lostRange struct {
	From, To Offset
	Reason   string
}

const gapExpired = "expired" // a lostRange that is no loss: readers count its records as expired

// wakeLocked tells everybody who waits for the partition. p.mu is held for writing.
func (p *partition) wakeLocked() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// lostAtLocked is the lost range that holds o.
func (p *partition) lostAtLocked(o Offset) (lostRange, bool) {
	for i := len(p.lost) - 1; i >= 0; i-- {
		if l := p.lost[i]; l.From <= o && o < l.To {
			return l, true
		}
	}
	return lostRange{}, false
}

// notLostLocked are the parts of [from, to) that are in no lost range yet, as damaged ones.
func (p *partition) notLostLocked(from, to Offset) (parts []lostRange) {
	for from < to {
		if l, ok := p.lostAtLocked(from); ok {
			from = l.To
			continue
		}
		next := to
		for _, l := range p.lost {
			if l.From > from {
				next = min(next, l.From)
			}
		}
		parts = append(parts, lostRange{From: from, To: next, Reason: GapDamaged})
		from = next
	}
	return parts
}

const maxLost = 128 // ranges that are remembered by reason; an older one is told as retention

func (p *partition) addLostLocked(l lostRange) {
	if n := len(p.lost); n > 0 && p.lost[n-1].To == l.From && p.lost[n-1].Reason == l.Reason {
		p.lost[n-1].To = l.To
		return
	}
	p.lost = append(p.lost, l)
	if len(p.lost) > maxLost {
		p.lost = append(p.lost[:0], p.lost[len(p.lost)-maxLost:]...)
	}
}
