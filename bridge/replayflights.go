package bridge

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/spool"
)

// replayFlights carry a page of a replay: for each Kafka partition one flight after the other, in the order of the records.
type replayFlights struct {
	s     *replaySink
	page  *replay.Page
	t     replay.Tally
	lanes map[replayPlace]*replayLane
}

type replayPlace struct {
	topic     string
	partition int32
}

// replayLane is what of a page goes to one Kafka partition.
type replayLane struct {
	topic    *kafka.Topic
	place    replayPlace
	pending  []kafka.Message
	window   int // messages of the next flight
	failures int // in a row
}

// add decides about a record, and keeps what is to be sent.
func (f *replayFlights) add(ctx context.Context, scratch *mapping.Scratch, rec *spool.Record) error {
	s, r := f.s, f.s.r
	rec = r.record(rec)
	if r.wasDown(rec) || !r.matches(rec.Topic) {
		f.t.LeftOut++
		return nil
	}
	d := r.mapper.Place(scratch, rec)
	switch d.Action {
	case mapping.Leave:
		f.t.LeftOut++
		return nil
	case mapping.Refuse:
		f.t.Refuse(rec, d.Reason.String(), d.Err)
		return nil
	}
	name := d.Topic
	if !d.Constant {
		name, _ = r.admit(name, d.Overflow)
	}
	m := r.message(scratch, rec, &d)
	m.AddHeader(replay.Header, s.job)
	if s.dry {
		f.t.Sent, f.t.Bytes = f.t.Sent+1, f.t.Bytes+uint64(len(rec.Payload))
		s.show(rec, name, &m)
		return nil
	}
	topic, partitions, err := s.topic(ctx, name)
	if err != nil {
		return err
	}
	limits := topic.Limits(time.Now())
	if v, refused := limits.Refuses(&m); refused {
		f.t.Refuse(rec, v.Reason, v.Err)
		return nil
	}
	at := replayPlace{name, d.PartitionOf(partitions)}
	l := f.lanes[at]
	if l == nil {
		l = &replayLane{topic: topic, place: at, window: kafka.MaxFlightRecords}
		f.lanes[at] = l
	}
	l.pending = append(l.pending, m)
	return nil
}

// show adds a record to the preview.
func (s *replaySink) show(rec *spool.Record, topic string, m *kafka.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.previews.Add(topic, len(rec.Payload), func() replay.Sample {
		sample := replay.SampleOf(rec, topic)
		sample.Key, sample.Bytes = trialText(m.Key()).Text, len(m.Value())
		m.Headers(func(key string, value []byte) { sample.Headers = append(sample.Headers, key+"="+trialText(value).Text) })
		return sample
	})
}

// landing is a flight that has come back, or a lane that may try again.
type landing struct {
	l   *replayLane
	f   *kafka.Flight // nil: the lane's time to wait is over
	res kafka.Result
}

// fly sends what was kept, and returns when all of it has an outcome.
func (f *replayFlights) fly(ctx context.Context) error {
	landings := make(chan landing, len(f.lanes)) // one flight or one timer of each: nobody waits who sends
	open := 0
	for _, l := range f.lanes {
		f.ship(l, landings)
		open++
	}
	var timers []*time.Timer
	defer func() {
		for _, t := range timers {
			t.Stop()
		}
	}()
	for open > 0 {
		var at landing
		select {
		case at = <-landings:
		case <-ctx.Done():
			return ctx.Err()
		}
		wait := time.Duration(0)
		if at.f != nil {
			wait = f.landed(at.l, at.f, at.res)
		}
		switch {
		case len(at.l.pending) == 0:
			open--
		case wait > 0:
			timers = append(timers, time.AfterFunc(wait, func() { landings <- landing{l: at.l} }))
		default:
			f.ship(at.l, landings)
		}
	}
	return nil
}

// ship sends the next flight of a lane.
func (f *replayFlights) ship(l *replayLane, landings chan<- landing) {
	limits := l.topic.Limits(time.Now())
	n, bytes := 0, 0
	for n < len(l.pending) && n < l.window {
		size := l.pending[n].Size()
		if n > 0 && (bytes+size > kafka.MaxFlightBytes || bytes+size > limits.MaxMessage) {
			break
		}
		bytes += size
		n++
	}
	flight := l.pending[:n:n]
	l.pending = l.pending[n:]
	f.s.client.Ship(&kafka.Flight{
		Topic: l.topic, Partition: l.place.partition, Messages: flight,
		Done: func(fl *kafka.Flight, res kafka.Result) { landings <- landing{l, fl, res} },
	})
}

// landed takes up the outcome of a flight, and says how long its lane has to wait.
func (f *replayFlights) landed(l *replayLane, fl *kafka.Flight, res kafka.Result) time.Duration {
	rest := fl.Rest(res)
	if res.OK(fl) {
		rest = nil
	}
	done := len(fl.Messages) - len(rest)
	for i := range fl.Messages[:res.Acked] {
		f.t.Sent++
		f.t.Bytes += uint64(fl.Messages[i].ValueSize())
	}
	for i := res.Acked; i < done; i++ { // acknowledged before an earlier one
		f.t.Sent++
	}
	if len(rest) == 0 {
		l.failures = 0
		l.window = min(2*l.window, kafka.MaxFlightRecords)
		f.s.waits(nil, l.place.topic)
		return 0
	}
	if done > 0 {
		l.failures = 0
	}
	l.failures++
	v := res.Verdict
	alone := len(fl.Messages) == 1
	tired := v.Class == kafka.Retry && v.Tries > 0 && rest[0].Attempts() >= v.Tries
	switch {
	case (v.Class == kafka.Poison || v.Class == kafka.Shrink || tired) && alone:
		if rec := f.recordAt(rest[0].Offset); rec != nil {
			f.t.Refuse(rec, v.Reason, v.Err)
		}
		l.window = 1 // what is beside it may be the same
		return 0
	case v.Class == kafka.Poison || v.Class == kafka.Shrink || tired:
		l.window = max(len(fl.Messages)/2, 1)
		l.pending = append(rest[:len(rest):len(rest)], l.pending...)
		return 0
	}
	l.pending = append(rest[:len(rest):len(rest)], l.pending...)
	first, longest := retryBackoff, maxRetry
	if v.Class == kafka.Fault {
		first, longest, l.window = faultBackoff, maxFault, probeWindow
	}
	if v.Class == kafka.Fault || l.failures > 3 {
		f.s.waits(&v, l.place.topic)
	}
	wait := min(first<<min(l.failures-1, 10), longest)
	return wait/2 + time.Duration(rand.Int64N(int64(wait/2)+1))
}

func (f *replayFlights) recordAt(o uint64) *spool.Record {
	for i := range f.page.Records {
		if uint64(f.page.Records[i].Offset) == o {
			return &f.page.Records[i]
		}
	}
	return nil
}
