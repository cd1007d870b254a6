package crashtest

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// ledger is what must be there: all that was ever acknowledged, or found by a child.
type ledger struct {
	logs   map[string]map[spool.Offset]id // by stream/partition
	cursor map[string]spool.Offset        // likewise
	trim   bool                           // delivered records may be removed
	acks   int

	// With a window, acknowledgements may be lost that came less than that before the power was cut.
	window time.Duration
	came   map[string]map[spool.Offset]time.Time
	cut    time.Time
	lost   int

	faults []string

	// What the child that runs now has found.
	found       map[string][]id // from foundStart on
	foundStart  map[string]spool.Offset
	foundState  map[string]string
	foundCursor map[string]spool.Offset
	opened      bool
	complete    bool
}

func newLedger() *ledger {
	return &ledger{
		logs: make(map[string]map[spool.Offset]id), cursor: make(map[string]spool.Offset),
		came: make(map[string]map[spool.Offset]time.Time),
	}
}

func (l *ledger) fault(format string, args ...any) {
	if len(l.faults) < 20 {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// begin forgets what the last child has found.
func (l *ledger) begin() {
	l.found = make(map[string][]id)
	l.foundState = make(map[string]string)
	l.foundCursor = make(map[string]spool.Offset)
	l.foundStart = make(map[string]spool.Offset)
	l.opened, l.complete = false, false
}

// line takes what a child tells.
func (l *ledger) line(line string) {
	var log string
	var partition int
	var o spool.Offset
	var k id
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "R", "A":
		if _, err := fmt.Sscanf(rest, "%s %d %d %d %d", &log, &partition, &o, &k.producer, &k.n); err != nil {
			l.fault("%q: %v", line, err)
			return
		}
		log = fmt.Sprintf("%s/%d", log, partition)
		if kind == "R" {
			l.found[log] = append(l.found[log], k)
		} else {
			l.acks++
			l.note(log, o)
		}
		l.must(log, o, k)
	case "S":
		key, value, _ := strings.Cut(rest, " ")
		l.foundState[key] = value
	case "F", "P", "C":
		if _, err := fmt.Sscanf(rest, "%s %d %d", &log, &partition, &o); err != nil {
			l.fault("%q: %v", line, err)
			return
		}
		log = fmt.Sprintf("%s/%d", log, partition)
		switch kind {
		case "F":
			l.foundStart[log] = o
		case "P":
			l.foundCursor[log] = o
		case "C":
			l.cursor[log] = max(l.cursor[log], o)
		}
	case "D":
		l.complete = true
		l.check()
	case "O":
		l.opened = true
	case "X":
		l.fault("child: %s", rest)
	case "H":
	default:
		l.fault("child says %q", line)
	}
}

func (l *ledger) note(log string, o spool.Offset) {
	if l.window == 0 {
		return
	}
	if l.came[log] == nil {
		l.came[log] = make(map[spool.Offset]time.Time)
	}
	l.came[log][o] = time.Now()
}

// must notes that k is at o of a log. An offset that was acknowledged or shown is never given to another record.
func (l *ledger) must(log string, o spool.Offset, k id) {
	if l.logs[log] == nil {
		l.logs[log] = make(map[spool.Offset]id)
	}
	if have, ok := l.logs[log][o]; ok && have != k {
		l.fault("%s: offset %d was %v and is now %v", log, o, have, k)
	}
	l.logs[log][o] = k
}

// check compares what a child has found with what must be there. That offsets are dense has the child seen.
func (l *ledger) check() {
	last := make(map[string]id) // by state key
	for log, ids := range l.found {
		seen := make(map[id]bool)
		newest := make(map[int]int)
		for i, k := range ids {
			if seen[k] {
				l.fault("%s: %v is there twice", log, k)
			}
			seen[k] = true
			if n, ok := newest[k.producer]; ok && k.n <= n {
				l.fault("%s: %v at %d comes after %d of the same producer", log, k, i, n)
			}
			newest[k.producer] = k.n
			if c := change(k); c != nil && k.n >= last[c[0].Key].n {
				last[c[0].Key] = k
			}
		}
	}
	for log, want := range l.logs {
		l.checkLog(log, want)
	}
	if !l.trim {
		l.checkState(last)
	}
	for log, o := range l.cursor {
		if l.foundCursor[log] < o && l.window == 0 {
			l.fault("cursor of %s is at %d, %d was acknowledged", log, l.foundCursor[log], o)
		}
	}
	for log, o := range l.foundCursor {
		if end := l.foundStart[log] + spool.Offset(len(l.found[log])); o > end {
			l.fault("cursor of %s is at %d, the log ends at %d", log, o, end)
		}
		l.cursor[log] = max(l.cursor[log], o)
		if l.window > 0 {
			l.cursor[log] = o
		}
	}
}

func (l *ledger) checkLog(log string, want map[spool.Offset]id) {
	start, found := l.foundStart[log], l.found[log]
	if start > 0 && (!l.trim || start > l.foundCursor[log]) {
		l.fault("%s: begins at %d, its cursor is at %d", log, start, l.foundCursor[log])
	}
	lost := 0
	for o, k := range want {
		if o >= start && (o-start >= spool.Offset(len(found)) || found[o-start] != k) {
			if at, ok := l.came[log][o]; ok && l.cut.Sub(at) < l.window {
				l.lost++
				delete(want, o) // others may get this offset
				continue
			}
			lost++
		}
	}
	clear(l.came[log])
	if lost > 0 {
		l.fault("%s: %d of %d records that were acknowledged are lost; the log ends at %d", log, lost, len(want), start+spool.Offset(len(found)))
	}
}

// checkState derives the state from the records that are there: a change and its record are one.
func (l *ledger) checkState(last map[string]id) {
	want := make(map[string]string)
	for _, k := range last {
		if c := change(k)[0]; c.Value != nil {
			want[c.Key] = string(c.Value)
		}
	}
	if !maps.Equal(want, l.foundState) {
		l.fault("state is %v, the records say %v", l.foundState, want)
	}
}
