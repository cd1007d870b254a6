package spool

import (
	"fmt"
	"strings"
)

// Severity says what a Finding means.
type Severity string

// The severities.
const (
	SeverityDamage Severity = "damage" // bytes are not what was written, or a file is missing
	SeverityNote   Severity = "note"   // worth knowing, nothing is lost
)

// Finding is one thing that a look at the files of a spool has found.
type Finding struct {
	Severity  Severity `json:"severity"`
	Path      string   `json:"path"`
	Stream    string   `json:"stream,omitempty"`
	Partition *int     `json:"partition,omitempty"`
	From      Offset   `json:"from,omitempty"` // offsets [From, To) of the partition; To is 0 when there are none to name
	To        Offset   `json:"to,omitempty"`
	What      string   `json:"what"`
	NextStart string   `json:"next_start,omitempty"` // what the next start of the gateway does about it

	repair repairStep // what Repair does beyond that
	seq    uint64     // of the segment
}

// repairStep is what Repair does about a finding beside opening the spool.
type repairStep uint8

const (
	repairNone    repairStep = iota
	repairSalvage            // set the segment aside, keep what can be read in its place
	repairIndex              // write the segment again with its index
)

// String is the finding in one line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", f.Severity, f.Path, f.What)
	if f.Partition != nil {
		fmt.Fprintf(&b, " (%s/%d", f.Stream, *f.Partition)
		if f.To > f.From {
			fmt.Fprintf(&b, " offsets %d..%d", f.From, f.To-1)
		}
		b.WriteString(")")
	}
	if f.NextStart != "" {
		b.WriteString("; at the next start: " + f.NextStart)
	}
	return b.String()
}

func (f Finding) in(stream string, partition int, from, to Offset) Finding {
	f.Stream, f.Partition, f.From, f.To = stream, &partition, from, to
	return f
}
