package journal

import (
	"fmt"
	"os"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Frame is one frame as Frames finds it.
type Frame struct {
	LSN     LSN
	File    string // base name
	Offset  int64  // in the file
	Time    int64  // of the write, Unix nanoseconds
	Payload []byte // valid during the call only
	Err     error  // why the payload could not be decrypted; Payload is nil then
}

// Frames is Scan, and calls fn for each frame that Open would replay, in order. Nothing is changed. Of a journal that a
// running process writes it sees what was there at some moment: files may be recycled while they are read, which ends
// it with an error.
//
// sealer may be nil. A key that is missing or wrong ends it with the sealer's error.
func Frames(fsys vfs.FS, dir string, sealer Sealer, fn func(Frame) error) (Report, error) {
	s, err := look(fsys, dir, os.O_RDONLY)
	if err != nil {
		return Report{}, err
	}
	defer s.close()
	r := s.report()
	for i := range s.settled.files {
		sf := &s.settled.files[i]
		f := s.files[sf.index]
		c, err := resume(sealer, f.header)
		if err != nil && len(sf.take) > 0 {
			return r, fmt.Errorf("journal: %s: %w", f.name, err)
		}
		for _, run := range sf.take {
			off := run.off
			err := run.eachFrame(f.f, f.header, run.first, run.last, func(fr frame, raw []byte) error {
				at := off
				off += int64(len(raw))
				if fr.lsn < run.from {
					return nil
				}
				payload, err := unseal(c, fr, raw)
				if err != nil {
					payload = nil
				}
				return fn(Frame{LSN: fr.lsn, File: f.name, Offset: at, Time: fr.time, Payload: payload, Err: err})
			})
			if err != nil {
				return r, fmt.Errorf("journal: read %s: %w", f.name, err)
			}
		}
	}
	return r, nil
}

// Files describes the files by their headers alone: First and Generation, not what they hold.
func Files(fsys vfs.FS, dir string) ([]FileReport, error) {
	s := &survey{}
	defer s.close()
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for _, e := range entries {
		if slot, ok := parseSlot(e.Name()); ok {
			if err := s.add(fsys, dir, e.Name(), slot, os.O_RDONLY); err != nil {
				return nil, fmt.Errorf("journal: %s: %w", e.Name(), err)
			}
		}
	}
	var files []FileReport
	for _, f := range s.files {
		files = append(files, FileReport{
			Name: f.name, State: "in use", Size: f.size, Generation: f.generation, Begun: time.Unix(0, f.time), First: f.first,
			Seal: []byte(f.seal),
		})
	}
	for _, f := range s.free {
		files = append(files, FileReport{Name: f.name, State: "free", Size: f.size, Generation: f.generation})
	}
	for _, f := range s.broken {
		files = append(files, FileReport{Name: f.name, State: "damaged", Size: f.size, Stop: f.err.Error()})
	}
	return files, nil
}
