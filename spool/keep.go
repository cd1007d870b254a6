package spool

// Keep says what retention may do with a sealed segment that everybody has had.
type Keep int

// The answers to Options.Keep.
const (
	// KeepNot leaves the segment to the usual rules: it is stored elsewhere, or does not have to be.
	KeepNot Keep = iota

	// KeepForNow is a segment that is not stored elsewhere yet, and that its age alone does not remove. A size limit does, as a loss
	// that is counted (GapNotStored).
	KeepForNow

	// KeepAlways is one that a size limit does not remove either: the stream is full instead, and its when_full decides.
	KeepAlways
)

// SegmentID is one segment. A number alone is not enough: a log that was begun anew gives numbers out again.
type SegmentID struct {
	Stream   string
	Sequence uint64
	Created  int64 // Unix nanoseconds; a rewrite keeps it
}

// ID names the segment.
func (s *Sealed) ID() SegmentID { return SegmentID{s.Stream, s.Sequence, s.Created.UnixNano()} }

// kept is what has to be kept of f. It is asked for sealed segments only.
func (s *Spool) kept(f *segmentFile) Keep {
	if s.keep == nil {
		return KeepNot
	}
	return s.keep(SegmentID{f.st.name, f.seq, f.created})
}

// mayAge tells whether retention by age may remove f, mayShrink whether a size limit may.
func (s *Spool) mayAge(f *segmentFile) bool    { return s.delivered(f) && s.kept(f) == KeepNot }
func (s *Spool) mayShrink(f *segmentFile) bool { return s.delivered(f) && s.kept(f) != KeepAlways }

// shrinkReason is the reason of a gap that a size limit makes.
func (s *Spool) shrinkReason(f *segmentFile) string {
	if s.kept(f) == KeepNot {
		return GapRetention
	}
	return GapNotStored
}
