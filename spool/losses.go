package spool

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// losses are what one event has cost, for one line of the log instead of one for each range.
type losses struct {
	records uint64
	ranges  []string
	more    int
}

const maxLossRanges = 16 // in a log line

func (l *losses) add(stream string, partition int, from, to Offset) {
	l.records += uint64(to - from)
	if len(l.ranges) >= maxLossRanges {
		l.more++
		return
	}
	l.ranges = append(l.ranges, fmt.Sprintf("%s/%d %d..%d", stream, partition, from, to-1))
}

// args describe the losses for slog.
func (l *losses) args() []any {
	if l.records == 0 {
		return []any{"lost_records", 0}
	}
	where := strings.Join(l.ranges, ", ")
	if l.more > 0 {
		where += fmt.Sprintf(" and %d more", l.more)
	}
	return []any{"lost_records", l.records, "lost", where}
}

// aside are the files of quarantine/ that have come since the start.
type aside struct {
	before map[string]bool
	names  []string
}

// rememberAside notes what lies in quarantine/ before anything else is done.
func (s *Spool) rememberAside() {
	before := make(map[string]bool)
	for _, name := range s.inQuarantine() {
		before[name] = true
	}
	s.healthMu.Lock()
	defer s.healthMu.Unlock()
	s.aside.before = before
}

// lookAside notes what has come since, whoever set it aside, and is still there.
func (s *Spool) lookAside() []string {
	s.healthMu.Lock()
	before := s.aside.before
	s.healthMu.Unlock()
	var names []string
	for _, name := range s.inQuarantine() {
		if !before[name] {
			names = append(names, name)
		}
	}
	s.healthMu.Lock()
	defer s.healthMu.Unlock()
	s.aside.names = names
	return names
}

func (s *Spool) inQuarantine() (names []string) {
	entries, _ := os.ReadDir(s.path("quarantine")) // sorted; one that cannot be read says nothing
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Worry is nil, or what an operator has to look at although everything is acknowledged and goes on: files that were set aside
// since the start, until somebody has moved them away, and streams that the configuration does not have any more.
func (s *Spool) Worry() error { return errors.Join(s.asideWorry(), s.unconfiguredWorry()) }

func (s *Spool) asideWorry() error {
	s.healthMu.Lock()
	names := s.aside.names
	s.healthMu.Unlock()
	if len(names) == 0 {
		return nil
	}
	var lost uint64
	for _, st := range s.streams {
		lost += st.dropped[dropDamaged].Load()
	}
	shown := names[:min(len(names), 8)]
	what := strings.Join(shown, ", ")
	if len(shown) < len(names) {
		what += fmt.Sprintf(" and %d more", len(names)-len(shown))
	}
	return fmt.Errorf("damaged files were set aside since the start: %s; %d records are lost; look at the disk, then move the files out of %s",
		what, lost, s.path("quarantine"))
}
