package mqtt

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forebay-gateway/forebay/spool"
)

// catchUp is the pool that serves who cannot be served from the tail. Each turn is short and who has more to do goes to
// the end of the queue, so that thousands that return at once share the workers fairly.
type catchUp struct {
	mu    sync.Mutex
	queue []server
	wake  chan struct{}
}

// server is a session or a share group.
type server interface {
	// serve works for one turn and returns true when there is more to do now.
	serve(enc *encoder) bool
	workState() *work
}

// work says whether its owner is queued or served: never twice at the same time.
type work struct{ state atomic.Int32 }

const (
	workIdle int32 = iota
	workQueued
	workRunning
	workAgain // running, and scheduled meanwhile
)

func newCatchUp() *catchUp { return &catchUp{wake: make(chan struct{}, 1)} }

// schedule asks for a turn. It never blocks and may be called under any lock of the engine.
func (p *catchUp) schedule(s server) {
	w := s.workState()
	for {
		switch st := w.state.Load(); st {
		case workQueued, workAgain:
			return
		case workIdle:
			if w.state.CompareAndSwap(st, workQueued) {
				p.push(s)
				return
			}
		case workRunning:
			if w.state.CompareAndSwap(st, workAgain) {
				return
			}
		}
	}
}

func (p *catchUp) push(s server) {
	p.mu.Lock()
	p.queue = append(p.queue, s)
	p.mu.Unlock()
	p.signal()
}

func (p *catchUp) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *catchUp) pop() (server, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		return nil, false
	}
	s := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return s, true
}

func (p *catchUp) worker(ctx context.Context) {
	enc := new(encoder)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		for s, ok := p.pop(); ok && ctx.Err() == nil; s, ok = p.pop() {
			p.signal() // there may be work for another worker
			w := s.workState()
			w.state.Store(workRunning)
			more := s.serve(enc)
			if more || !w.state.CompareAndSwap(workRunning, workIdle) {
				w.state.Store(workQueued)
				p.push(s)
			}
		}
	}
}

func (s *session) workState() *work { return &s.work }

// Lock, Unlock, feedLocked, acceptLocked and name make the session a feeder.
func (s *session) Lock() { s.mu.Lock() }

func (s *session) Unlock() { s.mu.Unlock() }

func (s *session) name() string { return s.id }

func (s *session) feedLocked() *feed {
	if s.conn == nil || s.ended || s.flights.resend > 0 || s.waiting.len() > 0 {
		return nil
	}
	return s.feed
}

func (s *session) acceptLocked(lane int, rec *spool.Record, enc *encoder) bool {
	if len(s.again) > 0 {
		if pid, ok := s.again[place{int32(lane), rec.Offset}]; ok {
			return s.sendDeferredLocked(lane, pid, rec, enc)
		}
	}
	h, ok := combine(s, lane, rec, s.matchingLocked(rec.Topic, enc))
	if !ok || h.qos == 0 { // QoS 0 went by live or not at all
		return true
	}
	return s.roomLocked() && s.sendLocked(int32(lane), rec, h, enc)
}

// undefer gives up the order of the log for deferred deliveries when their identifiers are so old that none can be given
// to what comes before them: they are sent at once.
func (s *session) undefer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.again) == 0 || s.flights.take() != 0 {
		return
	}
	s.flights.all(func(fl *flight) {
		if fl.state == flightDeferred {
			s.flights.mark(fl, flightResend)
		}
	})
}

// tooLargeLocked ends a delivery that fitted the client's last connection, or was allowed to it, and not this one.
func (s *session) tooLargeLocked(fl *flight) {
	if fl.qos == 1 {
		s.flights.set(fl, flightDone)
		return
	}
	pid := fl.pid
	s.flights.set(fl, flightReleased)
	s.conn.pubrel(pid, reasonSuccess)
}

// sendDeferredLocked sends a delivery of before the restart again, with the identifier that it had.
func (s *session) sendDeferredLocked(lane int, pid uint16, rec *spool.Record, enc *encoder) bool {
	fl := s.flights.find(pid)
	if fl != nil && fl.state == flightDeferred {
		if s.flights.window >= s.limit {
			return false
		}
		h, _ := combine(s, lane, rec, s.matchingLocked(rec.Topic, enc))
		h.qos = fl.qos
		packet, at := enc.encode(s.conn.peer.Version, h)
		state := flightSent
		switch {
		case s.tooLarge(s.conn, packet), s.denied(s.conn, rec.Topic, h.qos):
			s.tooLargeLocked(fl)
			delete(s.again, place{int32(lane), rec.Offset})
			return true
		case s.held.len() > 0: // it must not overtake what came before it on its lane
			s.held.push(held{rec: *rec, how: h, pid: pid, size: len(packet), ready: true, dup: true})
			s.heldBytes += len(packet)
			state = flightPending
		case !s.conn.out.message(packet, at, pid, true, s.srv.outputLimit):
			return false
		}
		s.flights.set(fl, state)
	}
	delete(s.again, place{int32(lane), rec.Offset})
	return true
}

const manySubscriptions = 8 // above it a session's own map and index are faster than trying its filters

// matchingLocked returns the session's subscriptions that match topic, shared ones excepted: a group has its own feed.
func (s *session) matchingLocked(topic string, enc *encoder) []*subscription {
	if s.subs.len() <= manySubscriptions {
		found := enc.found[:0]
		for sub := range s.subs.all() {
			if sub.group == nil && spool.MatchFilter(sub.topic, topic) {
				found = append(found, sub)
			}
		}
		enc.found = found
		return found
	}
	if s.matcher == nil {
		s.matcher = &index{}
		for sub := range s.subs.all() {
			if sub.group == nil {
				own := *sub // the original's place is in the server's index
				s.matcher.add(&own)
			}
		}
	}
	if m := s.matcher.lookup(topic); len(m.targets) > 0 {
		return m.targets[0].subs
	}
	return nil
}

// serve does what the session is behind with, in the order that MQTT asks for: repetitions, what waits, the rest.
func (s *session) serve(enc *encoder) bool {
	s.mu.Lock()
	c, f := s.conn, s.feed
	s.mu.Unlock()
	if c == nil {
		if f != nil {
			f.close()
		}
		return false
	}
	defer c.out.wake()
	s.undefer()
	if !s.resend(c, enc) {
		return false
	}
	s.mu.Lock()
	s.drainLocked()
	waits := s.waiting.len() > 0
	s.mu.Unlock()
	if waits {
		return false
	}
	more, parked := s.serveRetained(enc)
	if f == nil || parked {
		return more
	}
	return f.serve(s.srv, s, enc) || more
}

// resend sends again what the client had not acknowledged when its connection ended (MQTT 5, 4.4). It returns false when
// there is no room for all of it now.
func (s *session) resend(c *conn, enc *encoder) bool {
	s.mu.Lock()
	same := s.conn == c
	if !same || s.flights.resend == 0 {
		s.mu.Unlock()
		return same
	}
	var list []flight
	s.flights.all(func(fl *flight) {
		if fl.state == flightResend || fl.state == flightResendRelease {
			list = append(list, *fl)
		}
	})
	s.mu.Unlock()

	inLogOrder(list)
	var f fetcher
	defer f.close()
	for _, fl := range list {
		rec := fl.rec
		if fl.state == flightResend && rec == nil {
			var err error
			if rec, err = f.fetch(s.srv, fl.lane, fl.off); err != nil {
				s.srv.log.Warn("reading the spool for a repeated delivery, again soon", "err", err)
				return false
			}
		}
		if !s.resendOne(c, fl, rec, enc) {
			return false
		}
	}
	return true
}

// inLogOrder puts deliveries that come in the order of their identifiers into the order of their records, where the two
// differ: after a restart, records whose identifiers were lost have newer identifiers than some that follow them.
func inLogOrder(list []flight) {
	last := make(map[int32]spool.Offset)
	for i := range list {
		fl := &list[i]
		if fl.lane != noLane && fl.off < last[fl.lane] {
			slices.SortStableFunc(list, func(a, b flight) int {
				return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.off, b.off))
			})
			return
		}
		last[fl.lane] = fl.off
	}
}

func (s *session) resendOne(c *conn, was flight, rec *spool.Record, enc *encoder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		// Taken over since the list was made: all of it has to be sent on the new connection, from the first on. Going on
		// here would send the later ones before it.
		return false
	}
	fl := s.flights.find(was.pid)
	if fl == nil || fl.state != was.state || fl.off != was.off {
		return true // acknowledged meanwhile
	}
	if s.flights.window >= s.limit {
		return false
	}
	alive := false
	if rec != nil && rec.ReceivedAt != 0 {
		enc.reset(rec, s.srv.now())
		alive = enc.alive
	}
	switch {
	case fl.state == flightResendRelease, !alive && fl.qos == 2:
		// A QoS 2 message whose time is over, or that retention has removed: the client may hold it and its identifier.
		// PUBREL ends the delivery in either case, and the identifier may be used again.
		s.flights.set(fl, flightReleased)
		c.pubrel(was.pid, reasonSuccess)
		return true
	case !alive:
		s.flights.set(fl, flightDone)
		s.srv.metrics.drop(dropExpired)
		return true
	}
	h, _ := combine(s, max(int(fl.lane), 0), rec, s.matchingLocked(rec.Topic, enc))
	h.qos = fl.qos
	h.retain = h.retain || fl.lane == noLane
	packet, at := enc.encode(c.peer.Version, h)
	switch {
	case s.tooLarge(c, packet), s.denied(c, rec.Topic, h.qos):
		s.tooLargeLocked(fl)
		return true
	case !c.out.message(packet, at, was.pid, !fl.fresh, s.srv.outputLimit):
		return false
	}
	if fl.fresh {
		fl.fresh = false
		s.srv.metrics.publishSent(fl.qos, rec)
	}
	s.flights.set(fl, flightSent)
	return true
}

// fetcher reads single records; those of one batch cost one read.
type fetcher struct {
	lane  int32
	r     LogReader
	batch spool.Batch
}

// fetch returns the record at that place, nil when it has expired or is gone.
func (f *fetcher) fetch(srv *Server, lane int32, off spool.Offset) (*spool.Record, error) {
	if f.r != nil && f.lane != lane {
		f.close()
	}
	if f.r == nil {
		l := srv.lanes.list[lane]
		r, err := srv.spool.NewReader(l.stream, l.partition, off)
		if err != nil {
			return nil, err
		}
		f.r, f.lane, f.batch = r, lane, spool.Batch{}
	}
	if off < f.batch.First || off >= f.batch.Next {
		if f.r.Offset() != off {
			f.r.Seek(off)
		}
		b, ok, err := f.r.TryNext()
		if err != nil || !ok {
			return nil, err
		}
		f.batch = b
	}
	for i := range f.batch.Records {
		if f.batch.Records[i].Offset == off {
			return &f.batch.Records[i], nil
		}
	}
	return nil, nil
}

func (f *fetcher) close() {
	if f.r != nil {
		f.r.Close()
		f.r = nil
	}
}
