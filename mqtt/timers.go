package mqtt

import (
	"container/heap"
	"sync"
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

func (h timerHeap) Len() int { return len(h.heap) }

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
