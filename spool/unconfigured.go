package spool

import (
	"fmt"
	"strings"
)

// Streams that are on the disk and not in the configuration were taken out of it, or renamed, perhaps by a slip. What their retention
// and policy were is not known any more, so nothing of them is removed but records whose time is over: they stay readable, the log and
// the health name them, and an operator says what is to become of them by listing them again.

// unconfigured are those streams that still have records.
func (s *Spool) unconfigured() (left []*stream) {
	for _, st := range s.streams {
		if !st.configured && st.kept() > 0 {
			left = append(left, st)
		}
	}
	return left
}

// kept is how many offsets a stream keeps.
func (st *stream) kept() (n uint64) {
	for _, p := range st.parts {
		start, end := p.bounds()
		n += uint64(end - start)
	}
	return n
}

func (s *Spool) tellUnconfigured() {
	for _, st := range s.unconfigured() {
		s.log.Warn("stream is on the disk and not in the configuration: its records can be read and stay, it gets nothing new", "stream", st.name,
			"records", st.kept(), "bytes", approx(st.bytes.Load()), "hint", unconfiguredHint)
	}
}

const unconfiguredHint = "list it below spool.streams again, with a short retention to have it removed"

// unconfiguredWorry is what an operator has to decide about, nil when there is nothing.
func (s *Spool) unconfiguredWorry() error {
	var names []string
	for _, st := range s.unconfigured() {
		names = append(names, fmt.Sprintf("%s (%d records, %s)", st.name, st.kept(), approx(st.bytes.Load())))
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("streams on the disk that the configuration does not have: %s; their records stay: %s", strings.Join(names, ", "), unconfiguredHint)
}
