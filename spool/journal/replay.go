package journal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// replayRun is frames that were there at Open.
type replayRun struct {
	run
	file *file
}

// Replay calls fn with the payloads of all frames whose LSN is above after, in order; after is the LSN up to which all is
// applied elsewhere. Each payload is valid during the call only. It is called before the first Append, and should be even
// if there is nothing to replay: new payloads get LSNs above after, so that an applied position that is ahead of a lost
// journal can never hide them.
//
// It stops at an error of fn and returns it. When frames are missing that were durable once, it replays what there is
// and then returns a *LossError.
func (j *Journal) Replay(after LSN, fn func(lsn LSN, payload []byte) error) error {
	j.wmu.Lock()
	defer j.wmu.Unlock()
	switch {
	case j.isClosed():
		return ErrClosed
	case j.began:
		return errors.New("journal: replay after append")
	}
	j.startAbove(after)
	var broken []Range // frames whose checksum is right and whose encryption is not: somebody has changed them
	for _, r := range j.replay {
		if r.last <= after {
			continue
		}
		c, err := j.cipherOf(r.file)
		if err != nil {
			return fmt.Errorf("journal: replay %s: %w", r.file.name, err)
		}
		err = r.eachFrame(r.file, r.file.header, max(r.from, after+1), r.last, func(fr frame, raw []byte) error {
			payload, err := unseal(c, fr, raw)
			if err != nil {
				j.log.Error("journal frame cannot be decrypted", "file", r.file.name, "lsn", uint64(fr.lsn), "err", err)
				broken = append(broken, Range{fr.lsn, fr.lsn})
				return nil
			}
			return fn(fr.lsn, payload)
		})
		if err != nil {
			return fmt.Errorf("journal: replay %s: %w", r.file.name, err)
		}
	}
	lost := append(j.lostAbove(after), broken...)
	slices.SortFunc(lost, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	if len(lost) > 0 {
		return &LossError{Lost: lost}
	}
	return nil
}

// startAbove makes the next LSN greater than after. A file has no hole, so the active one ends here.
func (j *Journal) startAbove(after LSN) {
	if after < j.next {
		return
	}
	j.log.Warn("journal ends before the applied position", "last_lsn", uint64(j.next-1), "applied", uint64(after))
	j.retire()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next, j.synced = after+1, after
}

// lostAbove is what is missing between after and the end, the frames before the oldest file included.
func (j *Journal) lostAbove(after LSN) []Range {
	var lost []Range
	begin := j.next
	if len(j.replay) > 0 {
		begin = j.replay[0].from
	}
	if len(j.lost) > 0 {
		begin = min(begin, j.lost[0].From)
	}
	if begin > after+1 {
		lost = append(lost, Range{after + 1, begin - 1})
	}
	for _, r := range slices.Clone(j.lost) {
		r.From = max(r.From, after+1)
		if r.From <= r.To {
			lost = append(lost, r)
		}
	}
	return lost
}
