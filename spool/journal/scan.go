package journal

import (
	"errors"
	"fmt"
	"io"
)

// run is a stretch of frames of one file that follow each other without a hole.
type run struct {
	off, end    int64 // in the file
	first, last LSN
	synced      LSN   // highest that its frames name
	from        LSN   // set by settle: frames below it were taken from another file
	unread      error // why the hole before it, if any, may hold frames all the same
}

// scanned is what the frames of a file in use look like, taken by itself.
type scanned struct {
	header
	runs []run

	// stop is why the first run ends, or why there is none; stopOff is where.
	stop    error
	stopOff int64

	// unreadable is set when the frame at the end of the last run may exist but could not be read. reach is then the
	// highest LSN that the unread part can hold.
	unreadable error
	reach      LSN
}

// scanFrames finds the frames of a file. After a bad one it looks on, block by block, for a later frame that carries the
// checksum of this epoch and an LSN that can stand there: whether such a frame counts is for settle to say.
func scanFrames(r io.ReaderAt, h header) scanned {
	s := scanned{header: h}
	w := newWindow(r, h.size)
	seed := seedOf(h.epoch)
	want, end := h.first, int64(headerSize) // the LSN and the offset that follow the last good frame
	for off := end; off+blockSize <= h.size; {
		fr, err := scanFrame(w, off, seed, want, end)
		size := span(len(fr.payload))
		if err != nil {
			if s.stop == nil {
				s.stop, s.stopOff = err, off
			}
			off += blockSize
			continue
		}
		if fr.lsn != want || len(s.runs) == 0 {
			r := run{off: off, first: fr.lsn}
			if off > end {
				r.unread = tailUnreadable(w, end, want)
			}
			s.runs = append(s.runs, r)
		}
		n := &s.runs[len(s.runs)-1]
		off += size
		end, want = off, fr.lsn+1
		n.end, n.last, n.synced = off, fr.lsn, max(n.synced, fr.synced)
	}
	if s.stop == nil {
		s.stop, s.stopOff = io.EOF, end
	}
	if s.unreadable = tailUnreadable(w, end, want); s.unreadable != nil {
		s.reach = want + LSN((h.size-end)/blockSize) - 1
	}
	return s
}

// scanFrame checks the frame at off. Bytes that cannot be the frame of an LSN that is possible here are refused before
// their checksum is computed: the rest of a recycled file is full of old frames.
func scanFrame(w *window, off int64, seed uint32, want LSN, end int64) (frame, error) {
	b := w.at(off, blockSize)
	if err := w.unreadableIn(off, off+1); err != nil {
		return frame{}, err
	}
	n, lsn, err := peekFrame(b, w.size-off)
	switch {
	case err != nil:
		return frame{}, err
	case off == end && lsn != want,
		// Each lost frame took at least one block, and at least one is lost.
		off != end && (lsn <= want || lsn-want > LSN((off-end)/blockSize)):
		return frame{}, fmt.Errorf("%w: lsn %d, want %d", errStale, lsn, want)
	}
	b = w.at(off, int(span(n)))
	if err := w.unreadableIn(off, off+span(n)); err != nil {
		return frame{}, err
	}
	return parseFrame(b, seed)
}

// tailUnreadable tells whether the frame that should stand at off is not bad but out of reach, and why.
func tailUnreadable(w *window, off int64, want LSN) error {
	if off+blockSize > w.size {
		return nil
	}
	b := w.at(off, blockSize)
	if err := w.unreadableIn(off, off+1); err != nil {
		return err
	}
	n, lsn, err := peekFrame(b, w.size-off)
	if err != nil || lsn != want {
		return nil
	}
	w.at(off, int(span(n)))
	return w.unreadableIn(off, off+span(n))
}

// why is the reason of a stop in words for the report.
func (s *scanned) why() string {
	switch {
	case s.stop == nil || errors.Is(s.stop, io.EOF) && s.unreadable == nil:
		return "full"
	case errors.Is(s.stop, errNoFrame):
		return "end of frames"
	case errors.Is(s.stop, errStale), errors.Is(s.stop, errTorn):
		// Files are used again and not cleared. What never became durable looks the same; what did, and is not there, is in Lost.
		return "end of frames; behind it bytes of an earlier use of the file"
	}
	return s.stop.Error()
}

// eachFrame calls fn for the frames from..to of a run, verified. The payload is valid during the call.
func (n run) eachFrame(r io.ReaderAt, h header, from, to LSN, fn func(fr frame, raw []byte) error) error {
	w := newWindow(r, h.size)
	seed := seedOf(h.epoch)
	to = min(to, n.last) // settle may have cut the run; its bytes go on to end
	lsn := n.first
	for off := n.off; off < n.end && lsn <= to; lsn++ {
		length, got, err := peekFrame(w.at(off, blockSize), h.size-off)
		if err != nil {
			return err
		}
		raw := w.at(off, int(span(length)))
		fr, err := parseFrame(raw, seed)
		if err != nil {
			return err
		}
		if got != lsn {
			return fmt.Errorf("%w: lsn %d, want %d", errStale, got, lsn)
		}
		if lsn >= from {
			if err := fn(fr, raw); err != nil {
				return err
			}
		}
		off += span(length)
	}
	return nil
}
