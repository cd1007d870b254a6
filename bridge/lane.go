package bridge

import (
	"math/rand/v2"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// lane carries the records of one route and spool partition to one Kafka partition, in order, one flight at a time.
//
// An attached lane is fed by the tail: everything of it below the feeder's position is acknowledged, in the air or pending.
// A detached lane is on its own: the tail passes its records over, and the catch-up feeds it from next. Its position is
// stored on its own, so that the route's cursor goes on without it.
//
// All fields are guarded by feeder.mu.
type lane struct {
	f         *feeder
	out       *outlet
	partition int32 // -1: the outlet's whole

	flight  *kafka.Flight // in the air
	pending []kafka.Message
	block   *kafka.Block // memory of what is added to pending; nil while nothing was
	mixed   bool         // some of pending are not of block
	bytes   int          // of pending, in memory
	flying  int          // the same of flight
	expires int64        // of pending, the soonest; 0 is never
	window  int          // messages of the next flight

	detached  bool
	next      spool.Offset // detached: where the catch-up goes on
	nextTime  int64        // receive time of the oldest record that is not read again yet, 0 when not known
	scan      bool         // takes part in the scan that runs
	detachAt  time.Time
	progress  time.Time // last acknowledgement, or when there began to be something to acknowledge
	failures  int       // in a row, without an acknowledgement between
	verdict   kafka.Verdict
	held      bool // by a fault or by poison: somebody has to act
	heldSince time.Time
	attempts  int  // of the record at next
	paused    bool // by an operator
	poison    bool // the record at next is poison and waits to become a dead letter
	notBefore time.Time
	timer     *time.Timer

	check     check
	looked    bool         // the partition was read back in this run
	delivered spool.Offset // everything of the lane below is delivered, as an earlier run has stored
	sentTo    spool.Offset // behind the last that this run has sent
	there     []uint64     // spool offsets that the partition was found to have, ascending
	readFrom  int64        // where it was read from for that; negative when that was not known
	kafkaNext int64        // behind the last acknowledged message in the partition; negative when it is not known
	savedNext int64        // of it, what the entry says

	awaited []ticket // of those who wait for records of the lane, ascending
	gone    bool     // it was taken away with something left

	entry   bool         // may have an entry in the spool's state, be it on its way
	stored  bool         // has one that speaks for it, and not the cursor
	savedAt spool.Offset // what the entry says
}

// How lanes try again.
const (
	retryBackoff  = 50 * time.Millisecond // then doubling, half of it random
	maxRetry      = 5 * time.Second
	faultBackoff  = 500 * time.Millisecond
	maxFault      = 30 * time.Second
	probeWindow   = 16  // messages of the flight that probes whether a fault is over
	maxDetached   = 256 // lanes of a feeder; more faults than that are the upstream's, and hold the route
	minLaneMemory = 16 << 10
	maxLaneMemory = 5 << 19 // telemetry of 200 bytes takes 2.2 times as much in memory as in a flight
)

// unacked is the lowest offset of the lane that is not acknowledged; the feeder's position when there is none.
func (l *lane) unacked() spool.Offset {
	switch {
	case l.flight != nil:
		return spool.Offset(l.flight.Messages[0].Offset)
	case len(l.pending) > 0:
		return spool.Offset(l.pending[0].Offset)
	case l.detached:
		return l.next
	}
	return l.f.pos
}

// oldest is the receive time of the lane's oldest record that is not acknowledged, as far as it is known.
func (l *lane) oldest() (time.Time, bool) {
	switch {
	case l.flight != nil:
		return l.flight.Messages[0].Received(), true
	case len(l.pending) > 0:
		return l.pending[0].Received(), true
	case l.detached && l.next < l.f.pos && l.nextTime != 0:
		return time.Unix(0, l.nextTime), true
	}
	return time.Time{}, false
}

func (l *lane) busy() bool {
	return l.flight != nil || len(l.pending) > 0 || l.detached && l.next < l.f.pos
}

// hasRoom reports whether a message may be added. An empty lane always has room, whatever the message's size.
func (l *lane) hasRoom() bool {
	if l.partition < 0 {
		return false
	}
	return len(l.pending) == 0 || len(l.pending) < l.window && l.bytes < l.f.laneMemory()
}

// add takes the message of rec, about which s was last asked, unless Kafka has it already.
func (l *lane) add(s *mapping.Scratch, rec *spool.Record, d *mapping.Decision) {
	if l.isThere(rec.Offset) {
		return
	}
	if !l.busy() {
		l.progress = time.Now()
	}
	if l.block == nil {
		l.block, l.mixed = kafka.NewBlock(), len(l.pending) > 0
		if !l.mixed {
			l.pending = l.block.Messages()
		}
	}
	l.pending = append(l.pending, kafka.Message{})
	m := &l.pending[len(l.pending)-1]
	s.Use(&l.block.Arena)
	l.f.r.messageIn(m, s, rec, d)
	s.Use(nil)
	if l.f.backlog != nil {
		m.AddHeader(headerBacklog, isBacklog)
	}
	m.Expires = rec.ExpiresAt
	l.count(m)
}

// count adds a pending message to what is known about all.
func (l *lane) count(m *kafka.Message) {
	l.bytes += m.Size()
	if m.Expires != 0 && (l.expires == 0 || m.Expires < l.expires) {
		l.expires = m.Expires
	}
}

func (l *lane) drop() { l.pending, l.block, l.mixed, l.bytes, l.expires = nil, nil, false, 0, 0 }

// expire leaves out pending messages whose time is over: they were in time when they were read, and the way was closed since.
func (l *lane) expire(now int64) {
	if l.expires == 0 || now < l.expires {
		return
	}
	kept := make([]kafka.Message, 0, len(l.pending))
	for i := range l.pending {
		if m := &l.pending[i]; m.Expires == 0 || m.Expires > now {
			kept = append(kept, *m)
		}
	}
	l.f.r.counts.expired.Add(uint64(len(l.pending) - len(kept)))
	l.pending, l.mixed = kept, true
	l.recount()
}

// kick sends the next flight if it may go.
func (l *lane) kick(now time.Time) {
	if l.flight != nil || len(l.pending) == 0 || l.f.stopping || l.paused || l.f.r.isPaused() || l.out.shrinking() || now.Before(l.notBefore) {
		return
	}
	if !l.knows() {
		return
	}
	l.expire(l.f.wall().UnixNano())
	n := l.cut(now)
	if n == 0 {
		return
	}
	msgs := l.pending[:n:n]
	l.flight = &kafka.Flight{Topic: l.out.topic, Partition: l.partition, Spread: l.out.n, Messages: msgs, Done: l.landed}
	l.flying = l.bytes
	if n == len(l.pending) {
		if !l.mixed {
			l.flight.Block, l.flight.Messages = l.block, l.pending
		}
		l.drop()
	} else {
		l.pending, l.block = l.pending[n:], nil // what is left keeps the memory of both
		l.flying = 0
		for i := range msgs {
			l.flying += msgs[i].Size()
		}
		l.bytes -= l.flying
	}
	l.sentTo = max(l.sentTo, spool.Offset(msgs[n-1].Offset)+1)
	l.f.flying++
	if l.f.exactly != nil {
		l.f.exactly.Ship(l.flight)
		return
	}
	l.f.up.Ship(l.flight)
}

// cut is the number of messages of the next flight. A message that may be too large for the topic flies alone, so that
// nothing else is refused with it. One that the topic will never take does not fly at all.
func (l *lane) cut(now time.Time) int {
	limits := l.out.topic.Limits(l.f.wall())
	n, bytes, large := 0, 0, limits.MaxMessage
	most := min(kafka.MaxFlightBytes, large)
	for n < len(l.pending) && n < l.window {
		if v, refused := limits.Refuses(&l.pending[n]); refused {
			if n == 0 {
				l.refused(v, now)
			}
			break
		}
		size := l.pending[n].WireSize()
		if n > 0 && (size > large || bytes+size > most) {
			break
		}
		n++
		if bytes += size; size > large {
			break
		}
	}
	return n
}

// refused takes the first pending message out, which the topic will not take.
func (l *lane) refused(v kafka.Verdict, now time.Time) {
	first := l.pending[:1:1]
	l.pending, l.mixed = l.pending[1:], true
	l.verdict = v
	l.poisoned(first, v, now)
}

// landed takes the outcome of the lane's flight. It runs on the producer's goroutine.
func (l *lane) landed(fl *kafka.Flight, res kafka.Result) {
	f := l.f
	f.mu.Lock()
	now := time.Now()
	l.flight = nil
	f.flying--
	bytes := 0
	for i := range res.Acked {
		bytes += fl.Messages[i].ValueSize()
	}
	f.r.counts.acked(res.Acked, bytes)
	f.acked += uint64(res.Acked)
	if res.Acked > 0 {
		if res.Next > 0 {
			l.kafkaNext = res.Next
		}
		l.progress, l.failures = now, 0
		if l.held {
			f.log.Info("lane goes on", "topic", l.out.topic.Name, "kafka_partition", l.partition)
		}
		l.held = false
	}
	if res.OK(fl) {
		if fl.Block != nil {
			fl.Block.Release(fl.Messages)
		}
		l.window = min(2*l.window, kafka.MaxFlightRecords)
		l.verdict, l.notBefore = kafka.Verdict{}, time.Time{}
	} else {
		l.failed(fl.Rest(res), res.Verdict, now)
	}
	l.kick(now)
	f.commitLocked()
	signal(f.saveC)
	f.mu.Unlock()
	signal(f.wakeC)
	signal(f.catchC)
}

// failed decides what becomes of the messages that were not acknowledged.
func (l *lane) failed(rest []kafka.Message, v kafka.Verdict, now time.Time) {
	f := l.f
	f.r.counts.failed(v.Class, len(rest))
	l.failures++
	l.verdict = v
	if v.Unknown {
		l.unknown()
	}
	if v.Class == kafka.Retry && v.Tries > 0 && l.failures > v.Tries {
		v.Class = kafka.Poison
	}
	if f.stopping { // what is not sent is still in the spool
		l.again(rest)
		return
	}
	switch v.Class {
	case kafka.Shrink, kafka.Poison:
		if len(rest) > 1 || v.Tries > 0 && l.window > 1 {
			// One of them is bad, or they are too many. Fewer will tell. One alone is what Kafka will not take, unless the answer could
			// be the cluster's fault as well.
			l.window = max(min(l.window, len(rest))/2, 1)
			l.again(rest)
			l.recount()
			return
		}
		l.poisoned(rest, v, now)
	case kafka.Fault:
		l.window = probeWindow
		l.hold(rest, v, now)
		l.retryIn(backoff(faultBackoff, maxFault, l.failures))
	default: // Retry, Dead: the same again
		l.again(rest)
		l.recount()
		l.retryIn(backoff(retryBackoff, maxRetry, l.failures))
	}
}

// again puts messages before those that are pending.
func (l *lane) again(rest []kafka.Message) {
	l.pending, l.mixed = append(rest[:len(rest):len(rest)], l.pending...), true
}

// giveBack leaves messages to the spool: they are read again.
func (l *lane) giveBack(rest []kafka.Message) {
	l.out.owed += len(rest) + len(l.pending)
	l.drop()
	if !l.detached {
		l.f.detachLocked(l, spool.Offset(rest[0].Offset))
		l.f.r.counts.detached.Add(1)
	}
	l.next, l.nextTime = spool.Offset(rest[0].Offset), rest[0].Received().UnixNano()
	l.scan = false
}

// hold detaches the lane, keeps nothing of it in memory, and alarms.
func (l *lane) hold(rest []kafka.Message, v kafka.Verdict, now time.Time) {
	l.giveBack(rest)
	if l.held {
		return
	}
	l.held, l.heldSince = true, now
	l.f.log.Error("lane is held; its records wait in the spool", "topic", l.out.topic.Name, "kafka_partition", l.partition,
		"offset", l.next, "class", v.Class.String(), "reason", v.Reason, "err", v.Err, "hint", v.Hint)
}

// poisoned handles one record that Kafka will not take: it becomes a dead letter, or it holds its lane. What holds is tried
// again now and then: the topic's limits may have been changed.
func (l *lane) poisoned(rest []kafka.Message, v kafka.Verdict, now time.Time) {
	if l.f.deadLetters != "" {
		l.attempts = rest[0].Attempts()
		l.giveBack(rest)
		l.poison = true
		return
	}
	if v.Hint != "" {
		v.Hint += "; or "
	}
	v.Hint += "set bridge.dead_letter_stream, which takes such records"
	l.verdict = v
	l.hold(rest, v, now)
	l.retryIn(maxFault)
}

func (l *lane) recount() {
	l.bytes, l.expires = 0, 0
	for i := range l.pending {
		l.count(&l.pending[i])
	}
}

// retryIn keeps the lane from sending for d.
func (l *lane) retryIn(d time.Duration) {
	l.notBefore = time.Now().Add(d)
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(d, func() {
		l.f.mu.Lock()
		l.kick(time.Now())
		l.f.commitLocked() // all of it may have expired
		l.f.mu.Unlock()
		signal(l.f.wakeC)
		signal(l.f.catchC)
	})
}

// backoff doubles from first with each failure, up to longest, and takes a random half off, so that lanes and gateways do
// not come back together.
func backoff(first, longest time.Duration, failures int) time.Duration {
	d := min(first<<min(failures-1, 20), longest)
	return d/2 + rand.N(d/2+1)
}
