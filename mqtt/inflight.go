package mqtt

import (
	"slices"

	"github.com/forebay-gateway/forebay/spool"
)

// flight is one QoS 1 or 2 delivery that has a packet identifier.
type flight struct {
	off spool.Offset // of the record on its lane

	rec *spool.Record // only for a retained message sent for a SUBSCRIBE, which has no lane

	group *group // set when the delivery belongs to a shared subscription
	saves uint32 // how often the group had been saved when it handed the delivery out
	lane  int32  // noLane for a retained message
	pid   uint16
	qos   byte
	state flightState
	fresh bool // was never written to a connection: sending it is no repetition
}

const noLane = -1

// flightState is where a delivery stands. Those from flightPending to flightReleased hold a place in the window.
//
//	QoS 1:                   sent ──PUBACK──▶ done
//	QoS 2: pending ─durable▶ sent ──PUBREC──▶ received ─durable▶ released ──PUBCOMP──▶ completed ─checkpoint▶ done
//	resumed session:         sent ▶ resend ▶ sent,  released ▶ resendRelease ▶ released
//	restarted gateway:       sent, above the position ▶ deferred ▶ sent
type flightState byte

const (
	flightPending       flightState = iota // its identifier, or that of one before it, is not durable yet
	flightSent                             // PUBLISH is sent
	flightReceived                         // PUBREC came, and is not durable yet
	flightReleased                         // PUBREL is sent
	flightResend                           // PUBLISH has to be sent again on this connection
	flightResendRelease                    // PUBREL has to be sent again on this connection
	flightDeferred                         // after a restart: sent again when the feed reads its record once more
	flightCompleted                        // PUBCOMP came; the identifier is used again once its durable deletion is queued
	flightDone
)

// inWindow reports whether the delivery counts against the client's Receive Maximum on this connection.
func (s flightState) inWindow() bool { return s <= flightReleased }

// flights are the deliveries of a session in the order in which they were first sent. Packet identifiers rise by one, so
// that the order of the list is that of the identifiers counted from the first, as long as the list spans less than half
// of them: take refuses a new one beyond it, which only a client meets that leaves one delivery unanswered for 32,767
// others.
type flights struct {
	list []flight // list[head:] is in use
	head int
	last uint16 // identifier that was given last

	window int // deliveries that hold a place in the window
	resend int // deliveries in flightResend and flightResendRelease
}

// take gives the next identifier, 0 when none may be given now.
func (f *flights) take() uint16 {
	next := f.last + 1
	if next == 0 {
		next = 1
	}
	if f.head < len(f.list) && next-f.list[f.head].pid >= 1<<15 {
		return 0
	}
	return next
}

// add appends fl, whose identifier take gave.
func (f *flights) add(fl flight) {
	f.last = fl.pid
	if f.head > 32 && f.head > len(f.list)/2 {
		n := copy(f.list, f.list[f.head:])
		clear(f.list[n:])
		f.list, f.head = f.list[:n], 0
	}
	f.list = append(f.list, fl)
	if fl.state.inWindow() {
		f.window++
	}
}

// find returns the delivery with that identifier, nil when there is none or it is over.
func (f *flights) find(pid uint16) *flight {
	live := f.list[f.head:]
	if len(live) == 0 {
		return nil
	}
	base := live[0].pid
	low, high := 0, len(live)
	for low < high {
		mid := int(uint(low+high) / 2)
		if live[mid].pid-base < pid-base {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == len(live) || live[low].pid != pid || live[low].state >= flightCompleted {
		return nil
	}
	return &live[low]
}

// set moves fl to another state.
func (f *flights) set(fl *flight, state flightState) {
	f.mark(fl, state)
	f.pop()
}

// pop forgets what is done at the head, and gives the memory back when nothing is left.
func (f *flights) pop() {
	for f.head < len(f.list) && f.list[f.head].state == flightDone {
		f.list[f.head] = flight{}
		f.head++
	}
	if f.head == len(f.list) {
		f.list, f.head = f.list[:0], 0
		if cap(f.list) > 64 {
			f.list = nil
		}
	}
}

// all calls fn for each delivery that is not done, in order. fn may mark it, not set it.
func (f *flights) all(fn func(*flight)) {
	for i := f.head; i < len(f.list); i++ {
		if f.list[i].state != flightDone {
			fn(&f.list[i])
		}
	}
}

// mark is set without the trimming, for use inside all.
func (f *flights) mark(fl *flight, state flightState) {
	f.count(fl.state, -1)
	fl.state = state
	f.count(state, 1)
	if state >= flightCompleted {
		fl.rec = nil
	}
}

func (f *flights) count(s flightState, by int) {
	switch {
	case s.inWindow():
		f.window += by
	case s == flightResend || s == flightResendRelease:
		f.resend += by
	}
}

// sort puts restored deliveries in the order in which they were sent: the oldest is the first identifier after last.
func (f *flights) sort() {
	// The identifier that was given last may be newer than the one that the checkpoint knew.
	for i := range f.list {
		if d := f.list[i].pid - f.last; d != 0 && d < 1<<14 {
			f.last = f.list[i].pid
		}
	}
	slices.SortFunc(f.list, func(a, b flight) int { return int(a.pid-f.last-1) - int(b.pid-f.last-1) })
}
