package bridge

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// ticket is a record that somebody waits for, on one route.
type ticket struct {
	at  spool.Offset
	all bool // and for all before it
	*wanted
}

// watch is what is known of the records of a route and partition that somebody waits for. It is one feeder's, its owner. Those who wait come after their record is durable, so that the
// tail may have placed it before, or has yet to come to it: placed remembers, for the newest records, which lane they went to.
// A feeder of a stream for which nobody waits has none.
type watch struct {
	timeout time.Duration
	owner   atomic.Pointer[feeder]
	earlier spool.Offset  // log end when the bridge was made
	newC    chan struct{} // something is in fresh
	head    atomic.Int64  // feeder.head

	mu    sync.Mutex
	fresh []ticket

	// Guarded by the owner's mu.
	ahead  []ticket // the tail has not come to them; ascending
	slow   []ticket // wait for all before them
	graves []ticket // wait until they are durable as dead letters
	placed [placedRecords]*lane
	first  spool.Offset // placed holds the offsets [first, next)
	next   spool.Offset
}

// placedRecords is how many records the tail may be ahead of those who wait for them: 64 KiB of pointers. Whoever comes later waits
// for the slowest lane.
const placedRecords = 8192

// What stands in placed for records that went to no lane; nil: the route does not take the record.
var (
	passed = new(lane) // gone before the tail came to it
	buried = new(lane) // a dead letter of the mapping
)

// look is how often those who wait are looked at while nothing else happens.
const look = 100 * time.Millisecond

func (w *watch) away() string {
	f := w.owner.Load()
	if f.r.isPaused() {
		return string(Paused)
	}
	if !f.up.Up() {
		if down := f.up.Status().Down; !down.IsZero() && time.Since(down) > w.timeout {
			f.r.failover.missed.Store(true)
			return Unreachable
		}
	}
	if head := w.head.Load(); head != 0 && f.wall().Sub(time.Unix(0, head)) > w.timeout {
		return Behind
	}
	return ""
}

// take makes f the owner. Those who wait for records of another one's lanes wait for f's: it has to deliver them.
func (w *watch) take(f *feeder) {
	old := w.owner.Swap(f)
	f.watch = w
	if old == nil {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	old.watch = nil
	all := slices.Concat(w.ahead, w.slow, w.graves)
	for _, l := range old.lanes {
		all = append(all, l.awaited...)
		l.awaited = nil
	}
	w.ahead, w.slow, w.graves, w.first, w.next = nil, nil, nil, 0, 0
	slices.SortStableFunc(all, func(a, b ticket) int { return cmp.Compare(a.at, b.at) })
	w.mu.Lock()
	w.fresh = append(all, w.fresh...)
	w.mu.Unlock()
	signal(w.newC)
}

func (w *watch) add(t ticket) {
	w.mu.Lock()
	w.fresh = append(w.fresh, t)
	w.mu.Unlock()
	signal(w.newC)
}

// await takes up those who wait, and tells them when there is nothing to wait for, until ctx ends.
func (f *feeder) await(ctx context.Context, w *watch) {
	t, armed := time.NewTimer(look), true
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.newC:
			if !armed {
				armed = true
				t.Reset(look)
			}
			f.mu.Lock()
			if f.watch != nil {
				f.admitAwaitedLocked()
			}
			f.mu.Unlock()
		case <-t.C:
			f.mu.Lock()
			if armed = f.watch != nil && f.examineAwaitedLocked(); armed {
				t.Reset(look)
			}
			f.mu.Unlock()
		}
	}
}

// headLocked notes the receive time of the record in hand, 0 at the tail.
func (f *feeder) headLocked(received int64) {
	f.head = received
	if received != 0 {
		f.lastHead = received
	}
	if f.watch != nil {
		f.watch.head.Store(received)
	}
}

// admitAwaitedLocked takes up who has come since the last time.
func (f *feeder) admitAwaitedLocked() {
	w := f.watch
	w.mu.Lock()
	fresh := w.fresh
	w.fresh = nil
	w.mu.Unlock()
	for _, t := range fresh {
		switch {
		case t.all:
			w.slow = append(w.slow, t)
		case t.at >= f.pos:
			w.ahead = append(w.ahead, t)
		case t.at < w.first || t.at >= w.next:
			w.slow = append(w.slow, t)
		default:
			f.assignLocked(t, w.placed[t.at%placedRecords])
		}
	}
	if len(w.slow) > 0 {
		f.tellSlowLocked()
	}
}

// placedLocked notes that the tail is done with the record at an offset, which went to l.
func (f *feeder) placedLocked(at spool.Offset, l *lane) {
	w := f.watch
	f.passLocked(at)
	w.placed[at%placedRecords] = l
	w.next = at + 1
	w.first = max(w.first, w.next-min(w.next, placedRecords))
	for len(w.ahead) > 0 && w.ahead[0].at == at {
		f.assignLocked(w.ahead[0], l)
		w.ahead = cut(w.ahead, 1)
	}
}

// passLocked notes that the tail has come to an offset, and has seen no records since the last one.
func (f *feeder) passLocked(to spool.Offset) {
	w := f.watch
	if w.next == 0 || w.next > to || to-w.next > placedRecords { // it begins, it went back, or far on
		w.first, w.next = to, to
	}
	for ; w.next < to; w.next++ {
		w.placed[w.next%placedRecords] = passed
	}
	w.first = max(w.first, to-min(to, placedRecords))
	for len(w.ahead) > 0 && w.ahead[0].at < to {
		w.ahead[0].done(true)
		w.ahead = cut(w.ahead, 1)
	}
}

// lostLocked tells those who wait for what a gap took. What the stream's own policy has dropped is dealt with.
func (f *feeder) lostLocked(g *spool.Gap) {
	w := f.watch
	for len(w.ahead) > 0 && w.ahead[0].at < g.To {
		if g.Reason == spool.GapDropped {
			w.ahead[0].done(true)
		} else {
			w.ahead[0].settle(Lost)
		}
		w.ahead = cut(w.ahead, 1)
	}
}

// assignLocked has t wait for the lane that its record went to.
func (f *feeder) assignLocked(t ticket, l *lane) {
	switch {
	case l == nil:
		t.done(false)
	case l == passed:
		t.done(true)
	case l == buried:
		f.watch.graves = append(f.watch.graves, t)
		f.tellGravesLocked()
	case l.gone:
		f.watch.slow = append(f.watch.slow, t)
	case l.unacked() > t.at:
		t.done(true)
	default:
		if reason := l.closed(); reason != "" {
			t.to.Doubt(reason)
		}
		if !t.idle() {
			l.awaited = append(l.awaited, t)
		}
	}
}

// closed says why nobody should wait for the lane, empty when there is no reason.
func (l *lane) closed() string {
	f := l.f
	if reason := f.watch.away(); reason != "" {
		return reason
	}
	switch {
	case l.paused:
		return string(Paused)
	case l.held || l.fault() != nil:
		return Held
	}
	if t, ok := l.oldest(); ok && f.wall().Sub(t) > f.watch.timeout {
		return Behind
	}
	return ""
}

// tell tells those who wait for what the lane has dealt with.
func (l *lane) tell() {
	n, low := 0, l.unacked()
	for n < len(l.awaited) && (l.awaited[n].at < low || l.awaited[n].idle()) {
		if l.awaited[n].at < low {
			l.awaited[n].done(true)
		}
		n++
	}
	l.awaited = cut(l.awaited, n)
}

// cut takes the first n away, and gives the memory back when nothing is left.
func cut(list []ticket, n int) []ticket {
	if n == len(list) {
		return nil
	}
	clear(list[:n])
	return list[n:]
}

// tellSlowLocked tells those who wait for everything before them.
func (f *feeder) tellSlowLocked() {
	low := f.pos
	if at := f.graves.at; len(at) > 0 {
		low = min(low, at[0])
	}
	for _, l := range f.lanes {
		low = min(low, l.unacked())
	}
	for _, aside := range f.asides {
		low = min(low, aside.lowest())
	}
	f.watch.slow = slices.DeleteFunc(f.watch.slow, func(t ticket) bool {
		if t.at < low {
			t.done(true)
		}
		return t.at < low || t.idle()
	})
}

func (f *feeder) tellGravesLocked() {
	f.watch.graves = slices.DeleteFunc(f.watch.graves, func(t ticket) bool {
		_, waits := slices.BinarySearch(f.graves.at, t.at)
		if !waits {
			t.done(true)
		}
		return !waits || t.idle()
	})
}

// tellAwaitedLocked is called whenever something of f may have been dealt with.
func (f *feeder) tellAwaitedLocked() {
	for _, l := range f.lanes {
		if len(l.awaited) > 0 {
			l.tell()
		}
	}
	if len(f.watch.graves) > 0 {
		f.tellGravesLocked()
	}
	if len(f.watch.slow) > 0 {
		f.tellSlowLocked()
	}
}

// examineAwaitedLocked tells those who need not wait any longer. It reports whether somebody still waits.
func (f *feeder) examineAwaitedLocked() (more bool) {
	f.tellAwaitedLocked()
	w := f.watch
	examine := func(list []ticket, reason string) []ticket {
		return slices.DeleteFunc(list, func(t ticket) bool {
			if reason != "" && !t.idle() {
				t.to.Doubt(reason)
			}
			return t.idle()
		})
	}
	if len(w.ahead) > 0 {
		w.ahead = examine(w.ahead, f.watch.away())
	}
	for _, l := range f.lanes {
		if len(l.awaited) > 0 {
			l.awaited = examine(l.awaited, l.closed())
			more = more || len(l.awaited) > 0
		}
	}
	return more || len(w.ahead)+len(w.slow)+len(w.graves) > 0
}

// forgetLocked has those who wait for a lane that goes away wait for everything before them, if it has something left.
func (l *lane) forgetLocked() {
	if l.f.watch == nil {
		return
	}
	l.tell()
	if l.gone = l.busy(); l.gone {
		l.f.watch.slow = append(l.f.watch.slow, l.awaited...)
		l.awaited = nil
	}
}
