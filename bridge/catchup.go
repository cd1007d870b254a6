package bridge

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// catchUp feeds the detached lanes until ctx ends. It reads the log once for all lanes that can take something, from the
// lowest of their positions, and gives a lane back to the tail when it has seen all that the tail has.
func (f *feeder) catchUp(ctx context.Context) {
	var r Reader
	defer func() {
		if r != nil {
			r.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.catchC:
		}
		for ctx.Err() == nil {
			from, ok := f.prepare()
			if !ok {
				break
			}
			err := f.scan(ctx, &r, from)
			if err == nil {
				continue
			}
			if ctx.Err() == nil {
				f.readFailed(err)
			}
			if r != nil {
				r.Close()
				r = nil
			}
			if !sleep(ctx, readPause) {
				return
			}
		}
		f.bury(ctx)
	}
}

// prepare chooses the lanes that take part in the next scan, and where it starts.
func (f *feeder) prepare() (from spool.Offset, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed {
		f.changed = false
		f.respreadLocked()
	}
	for _, o := range f.outlets {
		f.adoptLocked(o)
		if o.n == 0 && o.whole != nil {
			if n := o.topic.Status().Partitions; n > 0 {
				f.spreadLocked(o, n)
			}
		}
	}
	if f.detached == 0 || f.stopping || !f.r.up.Up() {
		return 0, false
	}
	now := time.Now()
	for _, l := range f.lanes {
		if !l.detached {
			continue
		}
		// Half full is soon enough: each scan reads from the lane's position on.
		l.scan = l.partition >= 0 && !l.poison && !now.Before(l.notBefore) && !l.out.shrinking() && 2*len(l.pending) <= l.window && l.hasRoom()
		if l.scan && l.next >= f.pos {
			l.scan = false
			if l.next == f.pos {
				f.attachLocked(l)
			}
			continue
		}
		if l.scan && (!ok || l.next < from) {
			from, ok = l.next, true
		}
	}
	return from, ok
}

// scan reads on from an offset for as long as a lane of the scan has room.
func (f *feeder) scan(ctx context.Context, r *Reader, from spool.Offset) error {
	if *r == nil {
		nr, err := f.source.NewReader(f.r.cfg.Stream, f.partition, from)
		if err != nil {
			return err
		}
		*r = nr
	} else {
		(*r).Seek(from)
	}
	for n := 0; ctx.Err() == nil; n++ {
		b, ok, err := (*r).TryNext()
		if err != nil {
			return err
		}
		if !ok {
			if n == 0 {
				return errors.New("nothing to read below the durable end")
			}
			return nil
		}
		if !f.offer(b) {
			return nil
		}
	}
	return nil
}

// offer gives the records of a batch to the lanes of the scan. It reports whether one of them wants more.
func (f *feeder) offer(b spool.Batch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopping {
		return false
	}
	if g := b.Gap; g != nil {
		f.r.counts.gap(g.Reason, 0)
		for _, l := range f.lanes {
			if l.scan {
				l.out.lost = g.Reason
			}
		}
		f.log.Error("records are gone; some may be of detached lanes", "from", g.From, "to", g.To, "reason", g.Reason)
	}
	for i := range b.Records {
		rec := &b.Records[i]
		if rec.Offset >= f.pos { // the tail has not come here
			break
		}
		o := f.outletLocked(rec)
		if o == nil || o.n == 0 {
			continue
		}
		l := f.laneOf(o, rec)
		if l == nil || !l.scan || rec.Offset < l.next {
			continue
		}
		if !l.hasRoom() {
			l.scan, l.next, l.nextTime = false, rec.Offset, rec.ReceivedAt
			continue
		}
		l.add(f.r.message(rec))
		o.owed--
		l.next = rec.Offset + 1
	}
	end, more, now := min(b.Next, f.pos), false, time.Now()
	for _, l := range f.lanes {
		if l.scan {
			l.next, l.nextTime = max(l.next, end), 0
			if l.next == f.pos {
				l.scan = false
				f.attachLocked(l)
			}
			more = more || l.scan
		}
		if l.detached || len(l.pending) > 0 {
			l.kick(now)
		}
	}
	f.commitLocked()
	return more && b.Next < f.pos
}

// laneOf is the lane of a record of o if there is one.
func (f *feeder) laneOf(o *outlet, rec *spool.Record) *lane {
	return o.lanes[partitionOf(f.r, rec, o.n)]
}

// bury makes dead letters of the records that hold their lanes.
func (f *feeder) bury(ctx context.Context) {
	f.mu.Lock()
	var lanes []*lane
	for _, l := range f.lanes {
		if l.poison && !time.Now().Before(l.notBefore) {
			lanes = append(lanes, l)
		}
	}
	f.mu.Unlock()
	for _, l := range lanes {
		f.mu.Lock()
		at, v := l.next, l.verdict
		f.mu.Unlock()
		err := f.buryOne(ctx, l, at)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		if err != nil {
			// A dead letter that cannot be kept must not be lost: the lane waits for room.
			l.verdict.Err, l.verdict.Hint = err, "make room in the spool for the dead-letter stream"
			l.failures++
			if !l.held {
				l.held, l.heldSince = true, time.Now()
				f.log.Error("dead letter cannot be stored; its lane is held", "topic", l.out.topic.Name, "kafka_partition", l.partition,
					"offset", at, "err", err)
			}
			l.retryIn(backoff(faultBackoff, maxFault, l.failures))
		} else {
			l.poison, l.held, l.failures = false, false, 0
			l.next = at + 1
			l.progress = time.Now()
			f.r.counts.deadLettered.Add(1)
			f.log.Warn("record is a dead letter: kafka will not take it", "topic", l.out.topic.Name, "kafka_partition", l.partition,
				"offset", at, "reason", v.Reason, "err", v.Err, "hint", v.Hint)
			signal(f.saveC)
			signal(f.catchC)
		}
		f.mu.Unlock()
	}
}

// buryOne reads the record at an offset again and returns when it is durable in the dead-letter stream.
func (f *feeder) buryOne(ctx context.Context, l *lane, at spool.Offset) error {
	r, err := f.source.NewReader(f.r.cfg.Stream, f.partition, at)
	if err != nil {
		return err
	}
	defer r.Close()
	b, ok, err := r.TryNext()
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("the record is not in the spool any more")
	}
	for i := range b.Records {
		if b.Records[i].Offset == at {
			return f.appendDead(ctx, l, &b.Records[i])
		}
	}
	return nil // its time is over, or retention has taken it: the spool counts that
}

func (f *feeder) appendDead(ctx context.Context, l *lane, rec *spool.Record) error {
	dead := *rec
	dead.ExpiresAt = 0
	props := spool.Properties{}
	if rec.Properties != nil {
		props = *rec.Properties
	}
	f.mu.Lock()
	v := l.verdict
	f.mu.Unlock()
	text := ""
	if v.Err != nil {
		text = v.Err.Error()
	}
	props.User = append(props.User[:len(props.User):len(props.User)],
		spool.UserProperty{Name: "forebay.route", Value: f.r.cfg.Name},
		spool.UserProperty{Name: "forebay.upstream", Value: f.r.up.Name()},
		spool.UserProperty{Name: "forebay.kafka_topic", Value: l.out.topic.Name},
		spool.UserProperty{Name: "forebay.kafka_partition", Value: strconv.Itoa(int(l.partition))},
		spool.UserProperty{Name: "forebay.reason", Value: v.Reason},
		spool.UserProperty{Name: "forebay.error", Value: text},
		spool.UserProperty{Name: headerID, Value: f.r.id(rec)},
	)
	dead.Properties = &props
	done := make(durable, 1)
	if err := f.source.Append(ctx, spool.Entry{Record: &dead, Stream: f.deadLetters, Done: done}); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// durable receives what became of an entry. It has room for it.
type durable chan error

// Durable implements spool.Completion.
func (d durable) Durable(rec *spool.Record, err error) {
	if err == nil && rec != nil && rec.Offset == spool.NoOffset {
		err = errors.New("the dead-letter stream dropped the record: its when_full must not be drop_new")
	}
	d <- err
}
