package mqtt

import (
	"sync"

	"github.com/mochi-mqtt/server/v2/packets"
)

// ackWindow holds the acknowledgements that a connection owes for QoS 1 and 2 publishes, in the order of the packets.
// An answer that is known at once (a refusal, a repeated QoS 2 publish) still waits for those before it.
type ackWindow struct {
	mu    sync.Mutex
	cond  *sync.Cond // made by the reader when it waits
	slots []ackSlot
	base  uint64 // number of slots[0]
	open  int    // publishes of this connection without a final answer: Receive Maximum bounds it (MQTT 5, 4.9)
	ended bool

	finishing int // PUBRELs, SUBSCRIBEs and UNSUBSCRIBEs whose answer waits for the log
}

type ackSlot struct {
	pid    uint16
	kind   byte // packets.Puback or packets.Pubrec
	reason byte
	done   bool
	late   bool // it waited for the upstream in vain
}

// add reserves the next answer and returns its number. counted is false for a repeated QoS 2 publish of this connection,
// which already counts against Receive Maximum.
func (w *ackWindow) add(kind byte, pid uint16, counted bool) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots = append(w.slots, ackSlot{pid: pid, kind: kind})
	if counted {
		w.open++
	}
	return w.base + uint64(len(w.slots)) - 1
}

// resolve sets the answer with that number and passes all answers that may leave now to emit, in order. emit is called
// under the window's lock, so that answers of two goroutines cannot change places. It must not keep what it gets.
func (w *ackWindow) resolve(n uint64, reason byte, emit func([]ackSlot)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < w.base {
		return
	}
	s := &w.slots[n-w.base]
	s.done, s.reason = true, reason
	w.emitLocked(emit)
}

// succeed is resolve for publishes that are all stored: the window is taken, and what is left of it moved, once for all.
func (w *ackWindow) succeed(list []storedAck, emit func([]ackSlot)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range list {
		if n := list[i].number; n >= w.base {
			s := &w.slots[n-w.base]
			s.done, s.reason = true, reasonSuccess
		}
	}
	w.emitLocked(emit)
}

// resolveLate is resolve for a publish that waited for the upstream in vain.
func (w *ackWindow) resolveLate(n uint64, emit func([]ackSlot)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < w.base {
		return
	}
	s := &w.slots[n-w.base]
	s.done, s.late, s.reason = true, true, reasonQuotaExceeded
	w.emitLocked(emit)
}

// resolvePID sets all open PUBRECs for an identifier: a publish and its repetitions have one outcome.
func (w *ackWindow) resolvePID(pid uint16, reason byte, emit func([]ackSlot)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.slots {
		if s := &w.slots[i]; s.kind == packets.Pubrec && s.pid == pid && !s.done {
			s.done, s.late, s.reason = true, reason >= 0x80, reason
		}
	}
	w.emitLocked(emit)
}

func (w *ackWindow) emitLocked(emit func([]ackSlot)) {
	n := 0
	for n < len(w.slots) && w.slots[n].done {
		s := w.slots[n]
		// A PUBACK is the end of a QoS 1 publish, an error in a PUBREC that of a QoS 2 one; else PUBCOMP is.
		if s.kind == packets.Puback || s.reason >= 0x80 {
			w.open--
		}
		n++
	}
	if n == 0 {
		return
	}
	if !w.ended {
		emit(w.slots[:n])
	}
	w.base += uint64(n)
	if n == len(w.slots) {
		w.slots = w.slots[:0]
		if cap(w.slots) > 16 {
			w.slots = nil
		}
	} else {
		w.slots = w.slots[:copy(w.slots, w.slots[n:])]
	}
	if w.cond != nil {
		w.cond.Broadcast()
	}
}

// completed counts a PUBCOMP for a publish of this connection.
func (w *ackWindow) completed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open--
}

// outstanding is how many publishes have no final answer.
func (w *ackWindow) outstanding() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open
}

// wait blocks the reader while limit answers are owed. PUBRELs are read after it, so that a publish that waits only for
// its PUBREL must not count here.
func (w *ackWindow) wait(limit int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.slots) >= limit && !w.ended {
		if w.cond == nil {
			w.cond = sync.NewCond(&w.mu)
		}
		w.cond.Wait()
	}
}

// finish counts packets that are on the way to the log, or back, and are not in slots.
func (w *ackWindow) finish(by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finishing += by
	if w.cond != nil {
		w.cond.Broadcast()
	}
}

// waitFinished blocks the reader until nothing is counted by finish.
func (w *ackWindow) waitFinished() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.finishing > 0 && !w.ended {
		if w.cond == nil {
			w.cond = sync.NewCond(&w.mu)
		}
		w.cond.Wait()
	}
}

// settle blocks the reader until nothing is owed that the log has to answer.
func (w *ackWindow) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for (len(w.slots) > 0 || w.finishing > 0) && !w.ended {
		if w.cond == nil {
			w.cond = sync.NewCond(&w.mu)
		}
		w.cond.Wait()
	}
}

// isEnded reports whether nothing leaves any more.
func (w *ackWindow) isEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// end lets nothing leave any more and frees the reader.
func (w *ackWindow) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.cond != nil {
		w.cond.Broadcast()
	}
}
