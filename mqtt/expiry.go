package mqtt

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// timers holds offline sessions by the time at which their session or will is due. A session has one entry at most, and
// none when it is connected or has ended: a fleet that comes and goes must not leave a trail. An entry may be out of date:
// who is due is asked again.
type timers struct {
	mu   sync.Mutex
	heap []timer
	at   map[*session]int // index in heap
}

type timer struct {
	at int64
	s  *session
}

// timerHeap makes timers a heap.
type timerHeap struct{ *timers }

func (h timerHeap) Len() int           { return len(h.heap) }
func (h timerHeap) Less(i, j int) bool { return h.heap[i].at < h.heap[j].at }

func (h timerHeap) Swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.at[h.heap[i].s], h.at[h.heap[j].s] = i, j
}

func (h timerHeap) Push(x any) {
	t := x.(timer)
	h.at[t.s] = len(h.heap)
	h.heap = append(h.heap, t)
}

func (h timerHeap) Pop() any {
	last := len(h.heap) - 1
	t := h.heap[last]
	h.heap[last] = timer{}
	h.heap = h.heap[:last]
	delete(h.at, t.s)
	return t
}

func newTimers() *timers { return &timers{at: make(map[*session]int)} }

// set notes when something is due for an offline session; its lock is held.
func (t *timers) set(s *session) {
	at := s.expiresAt
	if s.will != nil && s.will.due != 0 && (at == 0 || s.will.due < at) {
		at = s.will.due
	}
	if at == 0 {
		t.remove(s)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.at[s]; ok {
		t.heap[i].at = at
		heap.Fix(timerHeap{t}, i)
		return
	}
	heap.Push(timerHeap{t}, timer{at, s})
}

// remove forgets a session that is connected again or has ended.
func (t *timers) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.at[s]; ok {
		heap.Remove(timerHeap{t}, i)
	}
}

func (t *timers) due(now int64) []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*session
	for len(t.heap) > 0 && t.heap[0].at <= now {
		list = append(list, heap.Pop(timerHeap{t}).(timer).s)
	}
	return list
}

const (
	janitorEvery  = time.Second
	retainedEvery = time.Minute // expired retained messages are not delivered anyway
	positionEvery = time.Minute // positions of sessions that get nothing move too, so that retention does not pass them
)

// janitor ends sessions, publishes delayed wills, removes expired retained messages.
func (srv *Server) janitor(ctx context.Context) {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	srv.expire() // wills of sessions that ended with the gateway do not wait
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		srv.expire()
		srv.rescheduleAll()
		srv.limitBehind()
		srv.commitLowWater()
		if n%int(retainedEvery/janitorEvery) == 0 {
			srv.expireRetained()
			srv.batches.clear()
			srv.fights.sweep(srv.now())
		}
		if n%int(positionEvery/janitorEvery) == 0 {
			srv.touchAll()
		}
	}
}

func (srv *Server) expire() {
	now := srv.now().UnixNano()
	for _, s := range srv.timers.due(now) {
		srv.mu.Lock()
		s.mu.Lock()
		switch {
		case s.ended || s.conn != nil:
		case s.expiresAt != 0 && s.expiresAt <= now:
			s.willGoneLocked(true)
			srv.settleLater(s, s.orphansLocked(true))
			s.endLocked()
			if srv.sessions[s.id] == s {
				delete(srv.sessions, s.id)
			}
			srv.metrics.sessions.Dec()
			srv.metrics.expired.Inc()
		default:
			if w := s.will; w != nil && w.due != 0 && w.due <= now {
				s.will = nil
				srv.publishWill(w, s.id)
			}
			srv.timers.set(s)
		}
		s.mu.Unlock()
		srv.unlockAndSettle()
	}
}

func (srv *Server) expireRetained() {
	now := srv.now()
	for _, topic := range srv.retained.expired(now) {
		srv.retained.removeExpired(topic, now)
		srv.keepRetained(topic)
	}
}

// keepRetained writes what the store has for a topic. A message that was accepted before it, and reached the store after
// it was read here, would be overwritten in the durable state: the store is asked again when the change is durable.
func (srv *Server) keepRetained(topic string) {
	rec := srv.retained.get(topic)
	change := spool.Change{Space: spaceRetained, Key: topic}
	if rec != nil {
		change = retainedChange(rec)
	}
	srv.writer.put(stateEntry{changes: []spool.Change{change}, done: func(_ *spool.Record, err error) {
		if err == nil && srv.retained.get(topic) != rec {
			srv.keepRetained(topic)
		}
	}})
}

// rescheduleAll gives another turn to connected sessions that are behind: reading may have failed for them.
func (srv *Server) rescheduleAll() {
	srv.connMu.Lock()
	list := make([]*conn, 0, len(srv.conns))
	for c := range srv.conns {
		list = append(list, c)
	}
	srv.connMu.Unlock()
	for _, c := range list {
		c.hasRoom()
	}
}

// touchAll asks for a checkpoint of each session and group.
func (srv *Server) touchAll() {
	for _, s := range srv.allSessions() {
		s.mu.Lock()
		if s.conn != nil && s.feed != nil {
			s.touchLocked()
		}
		s.mu.Unlock()
	}
	for _, g := range srv.allGroups() {
		g.mu.Lock()
		if g.indexed {
			g.touchLocked()
		}
		g.mu.Unlock()
	}
}

// clock tells the time since its start, as of the last tick: what each packet asks for must cost nothing.
type clock struct{ at atomic.Int64 }

const clockTick = 100 * time.Millisecond

func (c *clock) now() time.Duration { return time.Duration(c.at.Load()) }

func (c *clock) run(ctx context.Context) {
	began := time.Now()
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.at.Store(int64(time.Since(began)))
		}
	}
}

// dirtySet is who waits for a checkpoint.
type dirtySet struct {
	mu   sync.Mutex
	list []checkpointed
	wake chan struct{}
}

type checkpointed interface{ checkpoint() }

func newDirtySet() *dirtySet { return &dirtySet{wake: make(chan struct{}, 1)} }

func (d *dirtySet) add(c checkpointed) {
	d.mu.Lock()
	d.list = append(d.list, c)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *dirtySet) take() []checkpointed {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.list
	d.list = nil
	return list
}

// checkpoint makes the session's position durable, unless it ended or wrote it meanwhile.
func (s *session) checkpoint() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saveLocked()
}

func (s *session) saveLocked() {
	if !s.ended && s.dirty {
		// Queued under the lock: so a change that follows from a later state comes later.
		s.srv.writer.put(stateEntry{changes: s.checkpointLocked()})
	}
}

// checkpointer writes the positions of who got or acknowledged something, every checkpoint_interval, and waits until they
// are durable: a slow disk makes checkpoints rarer, not longer.
func (srv *Server) checkpointer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-srv.dirty.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(srv.cfg.CheckpointInterval.Std()):
		}
		srv.checkpointAll()
		if srv.writer.flush(ctx) != nil {
			return
		}
	}
}

func (srv *Server) checkpointAll() {
	for _, c := range srv.dirty.take() {
		c.checkpoint()
	}
}
