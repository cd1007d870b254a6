package journal

import (
	"cmp"
	"slices"
)

// settled is what all files together prove.
type settled struct {
	files  []settledFile // in the order of generations
	lost   []Range       // were durable once, are not there now
	proven LSN           // highest LSN that is known to have been durable
	next   LSN           // for the next new payload
	torn   error         // why the tail ended, when a hole above the proven LSN ended it
}

// settledFile is one file and the part of it that counts.
type settledFile struct {
	scanned
	index int   // in the slice that was given to settle
	take  []run // clipped; empty when the file holds nothing that counts
	hurt  bool  // lost something that was durable
}

// settle decides which frames count when files are read in the order of their generations.
//
// Several files may hold the same LSN. It comes about like this; A is the older file, B the newer one:
//
//  1. Append writes LSN 120 to A. The sync of A fails. Append writes 120 to B, whose header says "first 120", and the
//     sync of B succeeds: 120 is acknowledged. On the disk A may hold a good frame 120, a torn one or none. B counts, A is
//     cut before 120. The frame in A is equal, or it is a leftover of case 3.
//  2. As 1, and the power fails while B is written. B may have its header but no good frame 120. Nothing of 120 was
//     acknowledged by way of B, so B is void and does not cut A. If A has a good frame 120 it is replayed. This
//     matters most when B was begun by recovery, which writes again what is not proven: then 120 in A may have been
//     acknowledged by the run before, and A must not be cut before B really has it.
//  3. As 1, but there was no free file for B, or B failed as well for lack of space: Append returned an error, and a later
//     Append gave LSN 120 to another group, in file C with "first 120". C counts, A and B are cut before 120, so
//     the refused group cannot come back, and neither can its second frame 121 behind a shorter group in C.
//
// So: a file is cut before the first LSN of the files that follow it, except that files at the end of the order that
// have no good frame at their beginning are void. A header's first LSN does prove, void or not, that all LSNs below it
// were durable before that header was written.
//
// A hole at or below the proven LSN is damage: it is reported and what follows it counts. The first hole above it ends
// the journal: frames behind it belong to groups that were never acknowledged.
func settle(in []scanned) settled {
	var s settled
	for i, f := range in {
		s.files = append(s.files, settledFile{scanned: f, index: i})
		s.proven = max(s.proven, f.first-1)
		for _, r := range f.runs {
			s.proven = max(s.proven, r.synced)
		}
	}
	slices.SortStableFunc(s.files, func(a, b settledFile) int { return cmp.Compare(a.generation, b.generation) })
	s.next = 1
	if len(s.files) == 0 {
		return s
	}

	cuts := s.cuts()
	want := s.files[0].first
	for i := range s.files {
		f := &s.files[i]
		if s.torn != nil {
			break
		}
		// void files at the end have first-1 <= proven as well, so that a hole before them is seen here
		s.skipTo(f.first, &want, i-1)
		for _, r := range f.runs {
			r.last = min(r.last, cuts[i]-1)
			if r.last < max(r.first, want) {
				continue
			}
			if r.first > want && want > s.proven {
				s.torn = f.stop
				break
			}
			s.skipTo(r.first, &want, i)
			r.from = max(r.first, want)
			f.take = append(f.take, r)
			want = r.last + 1
		}
		if f.unreadable != nil && s.torn == nil && f.reach >= want && f.reach < cuts[i] && i == s.lastUsed(cuts) {
			// What cannot be read may have been acknowledged, and may be readable next time: its LSNs are never used again.
			f.hurt = true
			s.lost = append(s.lost, Range{want, f.reach})
			want = f.reach + 1
		}
	}
	s.skipTo(s.proven+1, &want, len(s.files)-1)
	s.next = want
	return s
}

// cuts returns for each file the LSN before which it is cut by later files.
func (s *settled) cuts() []LSN {
	cuts := make([]LSN, len(s.files))
	cut, trailing := ^LSN(0), true
	for i := len(s.files) - 1; i >= 0; i-- {
		cuts[i] = cut
		f := s.files[i]
		trailing = trailing && f.void(s.proven)
		if !trailing {
			cut = min(cut, f.first)
		}
	}
	return cuts
}

// void tells whether nothing at the beginning of the file is good and nothing says that there ever was.
func (f *scanned) void(proven LSN) bool {
	return f.first > proven && f.unreadable == nil && (len(f.runs) == 0 || f.runs[0].first > f.first)
}

// lastUsed is the index of the last file that is not void.
func (s *settled) lastUsed(cuts []LSN) int {
	for i := range cuts {
		if cuts[i] == ^LSN(0) {
			return i
		}
	}
	return len(cuts) - 1
}

// skipTo notes the hole want..to-1, which file i should have held.
func (s *settled) skipTo(to LSN, want *LSN, i int) {
	if to <= *want {
		return
	}
	s.lost = append(s.lost, Range{*want, to - 1})
	if i >= 0 {
		s.files[i].hurt = true
	}
	*want = to
}
