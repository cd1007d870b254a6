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
//  2. As 1, and the power fails while B is written. B may have its header, which names the last LSN of its first write,
//     but not all frames of that write. Nothing was acknowledged by way of B. This matters most when B was begun by
//     recovery, which writes again what is not proven: then 120 and 121 in A may have been acknowledged by the run
//     before, and A must not be cut while B has only one of them. So whichever reaches further counts, as a whole; a
//     mixture could join frames of two groups (see 3). If that is A, B is void.
//  3. As 1, but there was no free file for B, or B failed as well for lack of space: Append returned an error, and a later
//     Append gave LSN 120 to another group, in file C with "first 120". C counts, A and B are cut before 120, so
//     the refused group cannot come back, and neither can its second frame 121 behind a shorter group in C.
//
// So: a file is cut before the first LSN of the files that follow it, except for void ones at the end of the order. A header's first LSN does prove, void or not, that all LSNs below it
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

	cuts, used := s.cuts()
	want := s.files[0].first
	for i := range s.files {
		f := &s.files[i]
		if s.torn != nil {
			break
		}
		s.skipTo(f.first, &want, i-1) // for void files as well: first-1 is proven
		if i >= used {
			continue
		}
		for _, r := range f.runs {
			r.last = min(r.last, cuts[i]-1)
			if r.last < max(r.first, want) {
				continue
			}
			if r.first > want && want > s.proven && r.unread == nil {
				s.torn = f.stop
				break
			}
			s.skipTo(r.first, &want, i)
			r.from = max(r.first, want)
			f.take = append(f.take, r)
			want = r.last + 1
		}
		if i == used-1 && f.unreadable != nil && s.torn == nil && f.reach >= want {
			// What cannot be read may have been acknowledged, and may be readable next time: its LSNs are never used again.
			f.hurt = true
			s.lost = append(s.lost, Range{want, f.reach})
			want = f.reach + 1
		}
	}
	s.skipTo(s.proven+1, &want, used-1)
	s.next = want
	return s
}

// cuts returns for each file the LSN before which it is cut by later files, and the number of files before the void ones
// at the end.
func (s *settled) cuts() (cuts []LSN, used int) {
	cuts = make([]LSN, len(s.files))
	used = len(s.files)
	for used > 0 && s.void(used-1) {
		used--
	}
	cut := ^LSN(0)
	for i := len(s.files) - 1; i >= 0; i-- {
		cuts[i] = cut
		if i < used {
			cut = min(cut, s.files[i].first)
		}
	}
	return cuts, used
}

// void tells whether file i, the last one, does not count: its first write is not all there, nothing says that it ever
// was, and what older files have of the same LSNs reaches as far.
func (s *settled) void(i int) bool {
	f := s.files[i]
	if f.first <= s.proven || f.unreadable != nil || len(f.runs) > 0 && f.runs[0].unread != nil {
		return false
	}
	last := f.first - 1
	if len(f.runs) > 0 && f.runs[0].first == f.first {
		last = f.runs[0].last
	}
	if last >= f.begun {
		return false
	}
	older := f.first - 1
	for _, o := range s.files[:i] {
		for _, r := range o.runs {
			if r.first <= f.first {
				older = max(older, r.last)
			}
		}
	}
	return older >= last
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
