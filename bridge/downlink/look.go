package downlink

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// look compares the topics of the cluster with the partitions that are read: it begins what is new, and deals with what is not what it was.
func (s *session) look() {
	d := s.d
	s.nextLook = time.Now().Add(lookEvery)
	found, err := s.consumer.Look(s.ctx, d.cfg.Topics, d.pattern)
	if s.ctx.Err() != nil {
		return
	}
	d.setLookError(err)
	if err != nil {
		s.lookWithin(lookAgain)
		return
	}
	d.mu.Lock()
	release := d.release
	d.release = false
	d.mu.Unlock()
	if err := s.begin(found); err != nil && s.ctx.Err() == nil {
		d.setLookError(err)
		s.lookWithin(lookAgain)
	}
	for i := range found {
		s.compare(&found[i], release)
	}
	s.mend(release)
	s.noteMissing(found)
}

func (d *downlink) setLookError(err error) {
	d.mu.Lock()
	first := err != nil && d.lookErr.Err == nil
	switch {
	case err == nil:
		d.lookErr = fault{}
	case first:
		d.lookErr = fault{kafka.Classify(err), time.Now()}
	default:
		d.lookErr.Verdict = kafka.Classify(err)
	}
	d.mu.Unlock()
	if first && d.up.Up() {
		d.log.Warn("topics cannot be looked at; tried again", "err", err)
	}
}

// begin gives partitions that have no position one, makes that durable, and has them read. What cannot be looked at holds nothing else.
func (s *session) begin(found []kafka.Found) error {
	d := s.d
	next := d.known
	next.Pending = slices.Clone(d.known.Pending)
	fresh := d.known.Topics != d.cfg.looksFor()
	if fresh {
		next = known{Version: 1, Topics: d.cfg.looksFor(), At: d.e.o.Now().UTC()}
	}
	had := make(map[string]bool) // topics that the downlink has read before
	d.mu.Lock()
	for p := range d.places { // which workers change
		had[p.Topic] = true
	}
	d.mu.Unlock()
	byFrom := func(topic, what string) bool {
		return !had[topic] && (fresh || slices.Contains(d.known.Pending, topic)) || slices.Contains(d.known.Pending, what)
	}
	later := func(what string) {
		if !slices.Contains(next.Pending, what) {
			next.Pending = append(next.Pending, what)
		}
		s.lookWithin(lookAgain)
	}
	var changes []spool.Change
	at := make(map[kafka.Partition]place)
	for i := range found {
		f := &found[i]
		if f.Err != nil {
			if byFrom(f.Name, f.Name) {
				later(f.Name)
			}
			continue
		}
		began, err := s.beginTopic(f, fresh, byFrom)
		if err != nil {
			d.setTopicFault(f.Name, kafka.Classify(err))
		}
		for p, o := range began {
			what := p.String()
			if o < 0 { // not known now
				if byFrom(f.Name, what) {
					later(what)
				}
				s.lookWithin(lookAgain)
				continue
			}
			next.Pending = slices.DeleteFunc(next.Pending, func(t string) bool { return t == what })
			at[p] = place{id: f.ID, epoch: -1, next: o}
			changes = append(changes, spool.Change{Space: positionSpace, Key: positionKey(d.cfg.Name, p), Value: at[p].value()})
		}
		next.Pending = slices.DeleteFunc(next.Pending, func(t string) bool { return t == f.Name })
		if len(began) > 0 {
			d.log.Info("topic has partitions that are new to the downlink", "topic", f.Name, "partitions", len(began), "of", f.Partitions)
		}
	}
	if fresh || len(changes) > 0 || !slices.Equal(next.Pending, d.known.Pending) {
		value, err := json.Marshal(next)
		if err != nil {
			return err
		}
		changes = append(changes, spool.Change{Space: positionSpace, Key: d.cfg.Name, Value: value})
		if err := d.e.commit(s.ctx, changes...); err != nil {
			return err
		}
		d.known = next
	}
	d.mu.Lock()
	for p, o := range at {
		d.places[p] = o
	}
	d.mu.Unlock()
	return nil
}

// beginTopic is where the partitions of a topic that have no position begin; negative when that cannot be known now.
func (s *session) beginTopic(f *kafka.Found, fresh bool, byFrom func(topic, what string) bool) (map[kafka.Partition]int64, error) {
	d := s.d
	out := make(map[kafka.Partition]int64)
	froms := 0
	for n := range f.Partitions {
		if p := (kafka.Partition{Topic: f.Name, N: n}); !d.has(p) {
			out[p] = -1
			if byFrom(f.Name, p.String()) {
				froms++
			}
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	bounds, err := s.consumer.Bounds(s.ctx, d.cfg.Isolation == ReadUncommitted, f.Name)
	if err != nil {
		return out, err
	}
	since := d.from.at
	if d.from.end && !fresh { // it was to begin at the end of then
		since = d.known.At
	}
	var after map[int32]int64
	if froms > 0 && !since.IsZero() {
		if after, err = s.consumer.After(s.ctx, since, f.Name); err != nil {
			return out, err
		}
	}
	for p := range out {
		b, ok := bounds[p]
		switch {
		case !ok:
		case b.Err != nil:
			err = b.Err
		case !byFrom(f.Name, p.String()):
			out[p] = b.Start
		case after != nil:
			if o, ok := after[p.N]; ok {
				out[p] = o
			}
		case d.from.end:
			out[p] = b.End
		default:
			out[p] = b.Start
		}
	}
	return out, err
}

func (d *downlink) has(p kafka.Partition) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.places[p]
	return ok
}

// compare reads what has a position and is not read, and finds out whether a topic is another one than it was.
func (s *session) compare(f *kafka.Found, release bool) {
	d := s.d
	if f.Err != nil {
		d.setTopicFault(f.Name, *f.Err)
		return
	}
	d.clearTopicFault(f.Name)
	another := false
	start := make(map[kafka.Partition]kafka.Position)
	d.mu.Lock()
	places := make(map[kafka.Partition]place)
	for p, at := range d.places {
		if p.Topic == f.Name {
			places[p] = at
		}
	}
	d.mu.Unlock()
	for p, at := range places {
		w := s.parts[p]
		if w == nil {
			w = s.start(p, at)
		}
		var zero [16]byte
		if now := w.topicID(at.id); now != f.ID && now != zero && f.ID != zero {
			another = true
			continue
		}
		if p.N < f.Partitions && !w.assigned && !w.lost && w.heldGap() == nil {
			start[p] = kafka.Position{Offset: w.want, Epoch: w.epoch}
			w.assigned = true
			w.setFault(nil)
		}
	}
	if another {
		s.recreated(f, release)
		return
	}
	if len(start) > 0 {
		s.consumer.Assign(start)
	}
}

// start has a worker for a partition.
func (s *session) start(p kafka.Partition, at place) *partition {
	w := newPartition(s.d, p, at)
	s.parts[p] = w
	s.d.mu.Lock()
	s.d.parts[p] = w
	s.d.mu.Unlock()
	s.workers.Go(func() { w.work(s.ctx, s.consumer.Resume) })
	return w
}

func (d *downlink) setTopicFault(topic string, v kafka.Verdict) {
	d.mu.Lock()
	f := d.faults[topic]
	first := f == nil
	if first {
		f = &fault{since: time.Now()}
		d.faults[topic] = f
	}
	f.Verdict = v
	d.mu.Unlock()
	if first {
		d.log.Warn("topic cannot be read; tried again", "topic", topic, "reason", v.Reason, "err", v.Err, "hint", v.Hint)
	}
}

func (d *downlink) clearTopicFault(topic string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.faults, topic)
}

// noteMissing deals with topics that are not there: they come back as they were, or as others.
func (s *session) noteMissing(found []kafka.Found) {
	d := s.d
	there := make(map[string]bool)
	for i := range found {
		there[found[i].Name] = true
	}
	for p, w := range s.parts {
		if !there[p.Topic] && w.assigned {
			s.forget(p.Topic)
			d.log.Warn("topic does not exist any more", "topic", p.Topic)
		}
	}
	d.mu.Lock()
	before := d.missing
	var now []missing
	for _, t := range d.cfg.Topics { // a pattern misses none
		if there[t] {
			continue
		}
		if i := slices.IndexFunc(before, func(m missing) bool { return m.topic == t }); i >= 0 {
			now = append(now, before[i])
			continue
		}
		now = append(now, missing{t, time.Now()})
		d.log.Warn("topic does not exist; it is read as soon as it does", "topic", t)
	}
	d.missing, d.looked = now, true
	d.mu.Unlock()
	if len(now) > 0 {
		s.lookWithin(lookAgain)
	}
}
