package mqtt

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// upstreamAcks are the acknowledgements that wait for the upstream. The log's commit goroutine brings them, the upstream tells of them
// in any order, and one goroutine answers the publishers, or does what the rule says when their time is over. An acknowledgement
// that may leave still waits for those before it on its connection.
type upstreamAcks struct {
	srv     *Server
	up      Upstream
	streams map[string]*ackStream
	list    []*ackStream // the same, in order
	wake    chan struct{}

	mu      sync.Mutex
	waiting int
	settled []*Awaited // told by the upstream, and not answered yet
	swept   time.Time
}

// maxAwaited is how many acknowledgements may wait in all: at 250 bytes each they hold 16 MiB, and 65,536 publishes that wait 100 ms
// each are 650,000 in a second. What is more falls back at once.
const maxAwaited = 1 << 16

// fallingFor is how long after the last fallback a stream counts as falling back, for health and log.
const fallingFor = time.Minute

// ackStream is a stream whose publishers wait. All but name, rule and metrics is guarded by upstreamAcks.mu.
type ackStream struct {
	name    string
	rule    AckRule
	metrics *ackMetrics

	first, last *Awaited // by deadline
	waiting     int

	falling      bool
	told         bool // of falling, by the log
	fallingSince time.Time
	fellAt       time.Time
	why          string // it fell back the last time
}

// Awaited is a publish whose acknowledgement waits.
type Awaited struct {
	u         *upstreamAcks
	s         *ackStream
	in        *inbound
	began     time.Time
	partition int
	at        spool.Offset
	earlier   bool // not one record but all from before the start

	over atomic.Bool // answered, or about to be; written with upstreamAcks.mu held

	// Guarded by upstreamAcks.mu.
	prev, next *Awaited
	reason     string
	doubt      string // why it may be late
}

func newUpstreamAcks(srv *Server, up Upstream, rules map[string]AckRule) *upstreamAcks {
	u := &upstreamAcks{srv: srv, up: up, streams: make(map[string]*ackStream), wake: make(chan struct{}, 1)}
	for name, rule := range rules {
		s := &ackStream{name: name, rule: rule}
		u.streams[name] = s
		u.list = append(u.list, s)
	}
	slices.SortFunc(u.list, func(a, b *ackStream) int { return cmp.Compare(a.name, b.name) })
	return u
}

// Settled is told by the upstream: reason is empty when the record has arrived, "unrouted" when it is not to go anywhere, and otherwise
// why it will never be there.
func (w *Awaited) Settled(reason string) {
	u := w.u
	u.mu.Lock()
	if !w.over.Load() {
		u.settleLocked(w, reason)
	}
	u.mu.Unlock()
	u.tell()
}

// Doubt is told by the upstream: why the record is not to be expected in time. A publisher that can be told is told at once. One whose
// connection would end waits to the end of its time: it would be back at once, and its messages in the spool once more.
func (w *Awaited) Doubt(reason string) {
	u := w.u
	u.mu.Lock()
	settle := !w.over.Load() && !w.ends(w.s.rule.Fallback)
	w.doubt = reason
	if settle {
		u.settleLocked(w, reason)
	}
	u.mu.Unlock()
	if settle {
		u.tell()
	}
}

// ends reports whether a fallback ends the connection.
func (w *Awaited) ends(f AckFallback) bool {
	return f == AckDisconnect || f == AckRefuse && w.in.c.peer.Version != wire.Version5
}

// Over reports that nobody waits any more.
func (w *Awaited) Over() bool { return w.over.Load() }

func (u *upstreamAcks) tell() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *upstreamAcks) settleLocked(w *Awaited, reason string) {
	w.over.Store(true)
	w.reason = reason
	w.s.unlink(w)
	u.waiting--
	u.settled = append(u.settled, w)
}

func (s *ackStream) push(w *Awaited) {
	w.prev = s.last
	if s.last == nil {
		s.first = w
	} else {
		s.last.next = w
	}
	s.last = w
	s.waiting++
}

func (s *ackStream) unlink(w *Awaited) {
	if w.prev == nil {
		s.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		s.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	s.waiting--
}

// stored has a publish wait whose record is durable. A copy of in waits: what newInbound makes holds the message with it.
func (u *upstreamAcks) stored(s *ackStream, in *inbound, rec *spool.Record) {
	waits := *in
	u.await(&Awaited{u: u, s: s, in: &waits, began: time.Now(), partition: int(rec.Partition), at: rec.Offset})
}

// begin has a repetition wait.
func (w *Awaited) begin() {
	w.began = time.Now()
	w.u.await(w)
}

func (u *upstreamAcks) await(w *Awaited) {
	u.mu.Lock()
	first := w.s.first == nil
	w.s.push(w)
	u.waiting++
	full := u.waiting > maxAwaited
	if full && w.began.Sub(u.swept) > time.Second {
		u.sweepLocked(w.began)
		full = u.waiting > maxAwaited
	}
	if full {
		u.settleLocked(w, lateTooMany)
	}
	u.mu.Unlock()
	switch {
	case full:
		u.tell()
		return
	case first:
		u.tell() // for the deadline
	}
	if w.earlier {
		u.up.AwaitEarlier(w.s.name, w)
		return
	}
	u.up.Await(w.s.name, w.partition, w.at, w)
}

// sweepLocked ends the waiting for clients that are gone.
func (u *upstreamAcks) sweepLocked(now time.Time) {
	u.swept = now
	for _, s := range u.list {
		for w := s.first; w != nil; {
			next := w.next
			if w.in.qos == 1 && w.in.c.acks.isEnded() {
				u.settleLocked(w, lateTimeout)
			}
			w = next
		}
	}
}

// run answers until ctx ends.
func (u *upstreamAcks) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var conns []*conn
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-timer.C:
		}
		now := time.Now()
		list, next := u.take(now)
		for _, w := range list {
			if c := u.answer(w, now); c != nil && !c.answered {
				c.answered = true
				conns = append(conns, c)
			}
		}
		for _, c := range conns {
			c.answered = false
		}
		flushAll(conns)
		clear(conns)
		conns = conns[:0]
		u.report(now)
		timer.Reset(next)
	}
}

// take returns what is to be answered, and how long until the next deadline.
func (u *upstreamAcks) take(now time.Time) (list []*Awaited, next time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next = time.Hour
	for _, s := range u.list {
		for w := s.first; w != nil; w = s.first {
			if left := w.began.Add(s.rule.Timeout).Sub(now); left > 0 {
				next = min(next, left)
				break
			}
			u.settleLocked(w, cmp.Or(w.doubt, lateTimeout))
		}
		if s.falling { // to say when it is over
			next = min(next, max(s.fellAt.Add(fallingFor).Sub(now), time.Millisecond))
		}
	}
	list, u.settled = u.settled, nil
	return list, next
}

// answer tells the publisher of w, and returns the connection to flush, if there is one.
func (u *upstreamAcks) answer(w *Awaited, now time.Time) *conn {
	in, m := w.in, w.s.metrics
	switch w.reason {
	case "", unrouted:
		m.waited.Observe(now.Sub(w.began).Seconds())
		if w.reason == unrouted {
			m.unrouted.Inc()
		} else {
			m.arrived.Inc()
		}
		return in.succeed()
	}
	if in.abandoned() {
		m.abandoned.Inc()
		in.unsure(w, nil)
		return nil
	}
	u.mu.Lock()
	w.s.fellLocked(w.reason, now)
	u.mu.Unlock()
	fallback := w.s.rule.Fallback
	if fallback == AckAccept && w.reason == lateLost {
		fallback = AckRefuse // it is not even here
	}
	switch {
	case w.ends(fallback):
		in.unsure(w, errLate)
		return nil
	case fallback == AckRefuse:
		return in.refuse()
	}
	return in.succeed()
}

// fellLocked counts a fallback.
func (s *ackStream) fellLocked(reason string, now time.Time) {
	if !slices.Contains(lateReasons, reason) {
		reason = lateOther
	}
	s.metrics.fallbacks[reason].Inc()
	s.fellAt, s.why = now, reason
	if !s.falling {
		s.falling, s.fallingSince = true, now
	}
}

// report logs when a stream begins to fall back, and when it has stopped.
func (u *upstreamAcks) report(now time.Time) {
	for _, s := range u.list {
		u.mu.Lock()
		begins, ends := s.falling && !s.told, s.falling && now.Sub(s.fellAt) >= fallingFor
		why, since := s.why, s.fallingSince
		switch {
		case begins:
			s.told = true
		case ends:
			s.falling, s.told = false, false
		}
		u.mu.Unlock()
		switch { // without the lock: the upstream must not wait for the log
		case begins:
			u.srv.log.Warn("acknowledgements do not wait for the upstream", "stream", s.name, "reason", why,
				"fallback", string(s.rule.Fallback), "hint", ackHint(why))
		case ends:
			u.srv.log.Info("acknowledgements wait for the upstream again", "stream", s.name, "after", now.Sub(since).Round(time.Second))
		}
	}
}
