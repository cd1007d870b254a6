package spool

import (
	"slices"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// Match selects records. The zero Match selects all.
type Match struct {
	Filters  []string // topic filters, any of them; none is all
	ClientID string   // "" is all
}

func (m *Match) record(r *Record) bool {
	return (m.ClientID == "" || r.ClientID == m.ClientID) && m.topic(r.Topic)
}

func (m *Match) topic(topic string) bool {
	if len(m.Filters) == 0 {
		return true
	}
	for _, f := range m.Filters {
		if MatchFilter(f, topic) {
			return true
		}
	}
	return false
}

// Match makes the reader leave out what m does not select; its batches go on speaking for all offsets. Sealed segments are
// read by their index: only the batches that have a record of the topic or client are.
func (r *Reader) Match(m Match) {
	r.match = nil
	r.refsOf = nil
	if len(m.Filters) > 0 || m.ClientID != "" {
		r.match = &m
	}
}

// selected leaves out of b what is not wanted. The records are shared: they are copied when something is left out.
func (r *Reader) selected(b Batch) Batch {
	if r.match == nil {
		return b
	}
	var kept []Record
	for i := range b.Records {
		if r.match.record(&b.Records[i]) {
			kept = append(kept, b.Records[i])
		}
	}
	b.Records = kept
	return b
}

// skipTo is the first offset from o on that may be in a batch with something that is wanted, at most the segment's end. o
// must be where a batch begins; only then the index, which names batches by their first offset, can be asked.
func (r *Reader) skipTo(f *segmentFile, o, end Offset) Offset {
	if r.match == nil || !f.sealed.Load() || o != r.aligned {
		return o
	}
	if r.refsOf != f {
		refs, ok := r.lookup(f)
		if !ok {
			return o
		}
		r.refsOf, r.refs = f, refs
	}
	i, _ := slices.BinarySearch(r.refs, o)
	to := end
	if i < len(r.refs) {
		to = min(to, r.refs[i])
	}
	r.p.mu.RLock()
	defer r.p.mu.RUnlock()
	for _, l := range r.p.lost { // a loss in between is told to everybody
		if l.To > o && l.From < to && l.Reason != gapExpired {
			to = max(o, l.From)
		}
	}
	return to
}

// lookup are the first offsets of the partition's batches that the index names, ascending.
func (r *Reader) lookup(f *segmentFile) (bases []Offset, ok bool) {
	ok, err := f.with(func(seg *segment.Segment) error {
		var refs []segment.Ref
		var err error
		if r.match.ClientID != "" {
			refs, err = seg.Lookup(segment.KindClient, func(key string) bool { return key == r.match.ClientID })
		} else {
			refs, err = seg.Lookup(segment.KindTopic, r.match.topic)
		}
		for _, ref := range refs {
			if int(ref.Partition) == r.p.num {
				bases = append(bases, Offset(ref.Base))
			}
		}
		return err
	})
	if err != nil { // no index: all of it is read
		return nil, false
	}
	slices.Sort(bases)
	return bases, ok
}
