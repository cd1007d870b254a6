package spool

// group is what becomes durable by one journal frame: all of it or nothing. Producers fill it under Spool.mu; then the
// committer owns it, and gives it back to be filled again.
type group struct {
	sections []*section
	changes  []byte       // as appendChange writes them
	entries  []groupEntry // those that somebody waits for, in the order of acceptance
	size     int          // no less than the frame's payload will have
	cost     int64        // memory that its records and changes hold
	records  int
	lastUse  int // of sections; the rest are spare
}

type groupEntry struct {
	rec  *Record
	done Completion
	sec  *section // nil: no record, or one that drop_new left out
	i    int      // index in the section
}

// section is the part of a group that goes to one partition.
type section struct {
	p         *partition
	body      []byte
	recs      []Record // copies; published to the tail as they are
	room      int      // records that the last group had here, when the tail has kept their memory
	cost      int64
	minExpiry int64
	base      Offset // set by the committer
}

const (
	groupCap       = 4 << 20           // bytes of a group: one more sync costs less than the time to write more
	sectionMaxHead = 5 + 1 + 64 + 3*10 // kind, length, stream name, partition, base, count
	payloadHead    = 1
)

// sectionFor is g's section for p; p.pending says whether there is one, so that finding it costs nothing.
func (g *group) sectionFor(p *partition) *section {
	if p.pending != nil {
		return p.pending
	}
	var s *section
	if g.lastUse < cap(g.sections) {
		g.sections = g.sections[:g.lastUse+1]
		s = g.sections[g.lastUse]
	} else {
		g.sections = append(g.sections, nil)
	}
	if s == nil {
		s = new(section)
		g.sections[g.lastUse] = s
	}
	g.lastUse++
	s.p = p
	p.pending = s
	g.size += sectionMaxHead
	return s
}

func (g *group) add(p *partition, r *Record, w weight, done Completion) {
	s := g.sectionFor(p)
	if s.recs == nil {
		s.recs = make([]Record, 0, s.room)
	}
	s.recs = append(s.recs, *r)
	own := &s.recs[len(s.recs)-1]
	own.ExpiresAt = w.expires
	s.body = appendRecord(s.body, own, 0)
	s.cost += w.cost
	s.minExpiry = minNonZero(s.minExpiry, own.ExpiresAt)
	g.cost += w.cost
	g.size += w.size
	g.records++
	if done != nil {
		g.entries = append(g.entries, groupEntry{rec: r, done: done, sec: s, i: len(s.recs) - 1})
	}
}

func (g *group) addChanges(changes []Change) {
	for i := range changes {
		c := &changes[i]
		g.addChange(c.Space, c.Key, c.Value)
	}
}

func (g *group) addChange(space, key string, value []byte) {
	if len(g.changes) == 0 {
		g.size += sectionHead
	}
	n := len(g.changes)
	g.changes = appendChange(g.changes, space, key, value)
	g.size += len(g.changes) - n
	g.cost += int64(len(g.changes) - n)
}

// empty tells whether there is nothing in g that the journal or anybody needs.
func (g *group) empty() bool { return g.records == 0 && len(g.changes) == 0 && len(g.entries) == 0 }

// appendPayload appends the frame's payload; the sections' bases are set.
func (g *group) appendPayload(b []byte) []byte {
	b = append(b, payloadVersion)
	for _, s := range g.sections[:g.lastUse] {
		b = appendRecordsSection(b, s.p.st.name, s.p.num, s.base, len(s.recs), s.body)
	}
	if len(g.changes) > 0 {
		var at int
		b, at = beginSection(b, sectionState)
		b = append(b, g.changes...)
		endSection(b, at)
	}
	return b
}

const maxSpareRecords = 4096 // what a section makes room for at once

const maxSpareBody = 1 << 20 // a buffer that one huge record grew is not kept for ever

// reset makes g ready to be filled again. Records that the tail keeps are no longer referenced from here.
func (g *group) reset() {
	for _, s := range g.sections[:g.lastUse] {
		clear(s.recs)
		s.recs = s.recs[:0]
		s.body = s.body[:0]
		if cap(s.body) > maxSpareBody {
			s.body = nil
		}
		s.p, s.cost, s.minExpiry = nil, 0, 0
	}
	const maxSpareSections = 64
	if cap(g.sections) > maxSpareSections {
		g.sections = nil
	} else {
		g.sections = g.sections[:0]
	}
	clear(g.entries)
	g.entries = g.entries[:0]
	g.changes = g.changes[:0]
	if cap(g.changes) > maxSpareBody {
		g.changes = nil
	}
	g.size, g.cost, g.records, g.lastUse = payloadHead, 0, 0, 0
}

// countLost counts the records that nobody waits for, such as those of QoS 0: nobody is told that they are not durable, nor sends
// them again.
func (g *group) countLost() {
	for _, s := range g.sections[:g.lastUse] {
		s.p.st.dropped[dropUnwritten].Add(uint64(len(s.recs)))
	}
	for i := range g.entries {
		if s := g.entries[i].sec; s != nil {
			s.p.st.dropped[dropUnwritten].Add(^uint64(0)) // its publisher is told
		}
	}
}
