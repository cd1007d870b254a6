package downlink

import (
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// gap is a change of a topic under a position.
type gap struct {
	reason string
	lost   int64 // offsets that were not read and are gone, as far as that is known
	to     place // where it goes on
	since  time.Time
}

// The reasons of a gap.
const (
	gapRetention = "retention" // records were removed before they were read
	gapTruncated = "truncated" // the log was cut off: what was read is not in Kafka any more
	gapRecreated = "recreated" // the topic was deleted and made again
)

var gapReasons = []string{gapRetention, gapTruncated, gapRecreated}

func (p *partition) heldGap() *gap {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// topicID is the ID of the topic that the partition is read from: at is its durable one.
func (p *partition) topicID(at [16]byte) [16]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved != nil {
		return *p.moved
	}
	return at
}

// met reports a gap, and whether the partition goes on behind it now: by policy, or because somebody has said so.
func (p *partition) met(g gap, release bool) bool {
	d := p.d
	p.mu.Lock()
	known := p.held != nil && p.held.reason == g.reason
	goOn := d.cfg.OnGap == Continue || known && release
	more := g.lost
	if known {
		more = max(g.lost-p.held.lost, 0) // it has grown while it was held
	}
	if !goOn {
		if !known {
			g.since = time.Now()
			p.held = &g
		}
		p.mu.Unlock()
		if !known {
			d.counts.gap(g.reason, g.lost)
			d.log.Error("records are gone before they were read; the partition is held", "partition", p.String(), "reason", g.reason, "position", p.want,
				"goes_on_at", g.to.next, "lost", g.lost, "hint", "forebay downlink resume "+d.cfg.Name)
		}
		return false
	}
	p.held = nil
	p.mu.Unlock()
	if !known {
		d.counts.gap(g.reason, g.lost)
		d.log.Error("records are gone before they were read; the partition goes on behind them", "partition", p.String(), "reason", g.reason,
			"position", p.want, "goes_on_at", g.to.next, "lost", g.lost)
	} else {
		d.counts.lost(g.reason, more)
		d.log.Info("partition goes on behind a gap", "partition", p.String(), "reason", g.reason, "goes_on_at", g.to.next)
	}
	return true
}

// move has the worker take up another position, behind what it has.
func (p *partition) move(to place) {
	p.want, p.epoch = to.next, to.epoch
	p.push(item{move: &to})
}

// mend finds out what became of positions that are not in the log.
func (s *session) mend(release bool) {
	d := s.d
	topics := make(map[string]bool)
	for _, p := range s.parts {
		if p.lost {
			topics[p.Topic] = true
		}
	}
	start := make(map[kafka.Partition]kafka.Position)
	for topic := range topics {
		bounds, err := s.consumer.Bounds(s.ctx, true, topic)
		for _, p := range s.parts {
			if !p.lost || p.Topic != topic {
				continue
			}
			if h := p.heldGap(); h != nil && h.reason == gapTruncated { // where it goes on is known, and may be in the log again
				if p.met(*h, release) {
					p.move(h.to)
					start[p.Partition] = kafka.Position{Offset: p.want, Epoch: -1}
					p.assigned, p.lost = true, false
				}
				continue
			}
			b, ok := bounds[p.Partition]
			if err != nil || !ok || b.Err != nil {
				s.lookWithin(lookAgain)
				continue
			}
			id := p.topicID(d.place(p.Partition).id)
			g := gap{to: place{id: id, epoch: -1}}
			switch {
			case p.want < b.Start:
				g.reason, g.lost, g.to.next = gapRetention, b.Start-p.want, b.Start
			case p.want > b.End && id == [16]byte{}: // most likely: nobody knows without an ID
				g.reason, g.to.next = gapRecreated, b.Start
			case p.want > b.End:
				g.reason, g.to.next = gapTruncated, b.End
			default: // it is in the log again
				start[p.Partition] = kafka.Position{Offset: p.want, Epoch: -1}
				p.assigned, p.lost = true, false
				continue
			}
			if p.met(g, release) {
				p.move(g.to)
				start[p.Partition] = kafka.Position{Offset: p.want, Epoch: -1}
				p.assigned, p.lost = true, false
			}
		}
	}
	if len(start) > 0 {
		s.consumer.Assign(start)
	}
}

// place is the position of a partition that the log has.
func (d *downlink) place(p kafka.Partition) place {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places[p]
}

// cut deals with a log that was cut off below the position. The consumer goes on there by itself.
func (s *session) cut(p *partition, to int64) {
	g := gap{reason: gapTruncated, to: place{id: p.topicID(s.d.place(p.Partition).id), epoch: -1, next: to}}
	if p.met(g, false) {
		p.move(g.to)
		return
	}
	s.consumer.Drop(p.Partition)
	p.assigned, p.lost = false, true
}

// recreated deals with a topic that is another one of the same name. Its partitions begin at their beginning.
func (s *session) recreated(f *kafka.Found, release bool) {
	d := s.d
	bounds, err := s.consumer.Bounds(s.ctx, true, f.Name)
	if err != nil {
		s.lookWithin(lookAgain)
		return
	}
	start := make(map[kafka.Partition]kafka.Position)
	forgotten := false
	for _, p := range s.parts {
		if p.Topic != f.Name {
			continue
		}
		if !forgotten { // else its ID sticks
			s.consumer.Forget(f.Name)
			forgotten = true
		}
		p.assigned, p.lost = false, false
		if p.topicID(s.d.place(p.Partition).id) == f.ID { // it has moved already
			if p.N < f.Partitions {
				start[p.Partition] = kafka.Position{Offset: p.want, Epoch: p.epoch}
				p.assigned = true
			}
			continue
		}
		b, ok := bounds[p.Partition]
		if p.N < f.Partitions && (!ok || b.Err != nil) {
			s.lookWithin(lookAgain)
			continue
		}
		g := gap{reason: gapRecreated, to: place{id: f.ID, epoch: -1, next: b.Start}}
		if !p.met(g, release) {
			continue
		}
		p.mu.Lock()
		p.moved = &f.ID
		p.fault = nil
		p.mu.Unlock()
		p.move(g.to)
		if p.N < f.Partitions {
			start[p.Partition] = kafka.Position{Offset: p.want, Epoch: -1}
			p.assigned = true
		}
	}
	d.clearTopicFault(f.Name)
	if len(start) > 0 {
		s.consumer.Assign(start)
	}
}
