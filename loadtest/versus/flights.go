package main

import (
	"fmt"
	"time"
)

// flights are the messages of one publisher that are not complete, by packet identifier, 1 to the window.
type flights struct {
	qos    byte
	state  []flightState
	sentAt []time.Time
	free   []uint16
}

type flightState byte

const (
	flightFree     flightState = iota
	flightSent                 // PUBACK or PUBREC is due
	flightReleased             // PUBCOMP is due
)

func newFlights(qos byte, window int) *flights {
	f := &flights{qos: qos, state: make([]flightState, window+1), sentAt: make([]time.Time, window+1)}
	for i := range window {
		f.free = append(f.free, uint16(window-i))
	}
	return f
}

func (f *flights) empty() bool { return len(f.free) == len(f.state)-1 }

// take begins a flight; there must be a free identifier.
func (f *flights) take(now time.Time) uint16 {
	pid := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	f.state[pid], f.sentAt[pid] = flightSent, now
	return pid
}

// answered checks that an acknowledgement is the one that is due, and moves its flight on. complete says that it was the last.
func (f *flights) answered(kind byte, pid uint16) (complete bool, err error) {
	is := flightFree
	if int(pid) < len(f.state) {
		is = f.state[pid]
	}
	switch {
	case kind == puback && f.qos == 1 && is == flightSent, kind == pubcomp && f.qos == 2 && is == flightReleased:
		f.state[pid] = flightFree
		f.free = append(f.free, pid)
		return true, nil
	case kind == pubrec && f.qos == 2 && is == flightSent:
		f.state[pid] = flightReleased
		return false, nil
	}
	return false, fmt.Errorf("packet type %d for identifier %d, whose flight of QoS %d is in state %d", kind, pid, f.qos, is)
}
