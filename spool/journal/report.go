package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Report is what a scan of the directory found.
type Report struct {
	Files  []FileReport // in the order in which they are read; free and unreadable ones last
	Lost   []Range      // were durable once and are not there; see LossError
	Last   LSN          // of the last frame that counts, 0 when there is none
	Proven LSN          // highest LSN that is known to have been durable
	Torn   string       // why the tail ended, when frames of a group that was never proven were cut off

	Rewritten   int      // frames that Open has written again because nothing proved them
	Unproven    bool     // Open found no room to do so and has synced them where they are
	Quarantined []string // files whose header could not be read, set aside by Open
}

// FileReport describes one file.
type FileReport struct {
	Name       string
	State      string // "free", "in use", "void" (begun, no frame), "damaged"
	Size       int64
	Generation uint64
	Begun      time.Time
	First      LSN   // of the frames that count
	Last       LSN   // First-1 when there is none
	End        int64 // offset behind the last good frame
	Stop       string
	Seal       []byte // parameters of the Sealer, empty when it is not encrypted
}

// survey is a read-only look at the directory.
type survey struct {
	files   []surveyed // in use, with their frames
	free    []surveyed
	broken  []surveyed // the header cannot be read
	tmps    []string
	maxSlot uint64
	settled settled
	floor   LSN // LSNs below it were released
}

type surveyed struct {
	name string
	slot uint64
	size int64 // on the disk
	header
	f   vfs.File
	err error
}

// Scan reads a journal directory without changing anything and tells what Open would find. The journal may be in use by
// a running process; the report is then a look at a moving thing.
func Scan(fsys vfs.FS, dir string) (Report, error) {
	s, err := look(fsys, dir, os.O_RDONLY)
	if err != nil {
		return Report{}, err
	}
	defer s.close()
	return s.report(), nil
}

// look opens and reads all files.
func look(fsys vfs.FS, dir string, flag int) (_ *survey, err error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	s := &survey{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, e := range entries {
		if filepath.Ext(e.Name()) == tmpSuffix {
			s.tmps = append(s.tmps, e.Name())
			continue
		}
		slot, ok := parseSlot(e.Name())
		if !ok {
			continue
		}
		s.maxSlot = max(s.maxSlot, slot)
		if err := s.add(fsys, dir, e.Name(), slot, flag); err != nil {
			return nil, fmt.Errorf("journal: %s: %w", e.Name(), err)
		}
	}
	scans := make([]scanned, len(s.files))
	for i, f := range s.files {
		scans[i] = scanFrames(f.f, f.header)
	}
	s.settled = settle(scans)
	for _, f := range s.free {
		s.floor = max(s.floor, f.first)
	}
	s.settled.next = max(s.settled.next, s.floor)
	s.missing()
	return s, nil
}

func (s *survey) add(fsys vfs.FS, dir, name string, slot uint64, flag int) error {
	f, err := fsys.OpenFile(filepath.Join(dir, name), flag, 0)
	if err != nil {
		return err
	}
	sf := surveyed{name: name, slot: slot, f: f}
	b := make([]byte, headerUsed)
	n, rerr := readHeader(f, b)
	sf.size, err = f.Size()
	if err == nil {
		sf.header, err = parseHeader(b[:n])
	}
	switch {
	case errors.Is(err, ErrUnsupported):
		f.Close()
		return err
	case err != nil:
		if n < headerUsed && rerr != nil {
			err = rerr
		}
		sf.err = err
		s.broken = append(s.broken, sf)
	case sf.state == stateFree:
		s.free = append(s.free, sf)
	default:
		s.files = append(s.files, sf)
	}
	return nil
}

// readHeader tries more than once: what a whole file holds hangs on this one sector.
func readHeader(f vfs.File, b []byte) (n int, err error) {
	for range 3 {
		if n, err = f.ReadAt(b, 0); err == nil || errors.Is(err, io.EOF) {
			break
		}
	}
	return n, err
}

// missing accounts for files whose header cannot be read. If a hole between the others does not explain such a file, it
// may have been the last one, full of acknowledged frames: their LSNs are lost and not used again.
func (s *survey) missing() {
	st := &s.settled
	for range len(s.broken) - len(st.lost) {
		to := st.next
		for _, f := range s.broken {
			to = max(to, st.next+LSN(f.size/blockSize))
		}
		if to > st.next {
			st.lost = append(st.lost, Range{st.next, to - 1})
			st.next = to
		}
	}
}

func (s *survey) close() {
	for _, f := range slices.Concat(s.files, s.free, s.broken) {
		if f.f != nil {
			f.f.Close()
		}
	}
}

func (s *survey) report() Report {
	st := s.settled
	r := Report{Lost: st.lost, Proven: st.proven}
	if st.torn != nil {
		r.Torn = st.torn.Error()
	}
	for _, f := range st.files {
		on := s.files[f.index]
		fr := FileReport{
			Name: on.name, State: "in use", Size: on.size, Generation: f.generation, Begun: time.Unix(0, f.time),
			First: f.first, Last: f.lastTaken(), End: f.stopOff, Stop: f.why(), Seal: []byte(on.seal),
		}
		if len(f.take) > 0 {
			r.Last = fr.Last
			fr.First, fr.End = f.take[0].from, f.take[len(f.take)-1].end
		} else {
			fr.State = "void"
		}
		if f.hurt {
			fr.State = "damaged"
		}
		r.Files = append(r.Files, fr)
	}
	for _, f := range s.free {
		r.Files = append(r.Files, FileReport{Name: f.name, State: "free", Size: f.size, Generation: f.generation})
	}
	for _, f := range s.broken {
		r.Files = append(r.Files, FileReport{Name: f.name, State: "damaged", Size: f.size, Stop: f.err.Error()})
	}
	return r
}

// lastTaken is the last LSN of the file that counts, first-1 when there is none.
func (f *settledFile) lastTaken() LSN {
	if len(f.take) == 0 {
		return f.first - 1
	}
	return f.take[len(f.take)-1].last
}
