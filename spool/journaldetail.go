package spool

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// JournalQuery asks for frames of the journal.
type JournalQuery struct {
	After uint64 // LSN
	Limit int
}

// JournalDetail is the journal.
type JournalDetail struct {
	Files   []JournalFile  `json:"files"`
	Frames  []FrameListing `json:"frames"`
	More    bool           `json:"more"`
	Last    uint64         `json:"last_lsn"`
	Proven  uint64         `json:"proven_lsn"`
	Applied uint64         `json:"applied_lsn"`
	Lost    []string       `json:"lost"` // frames that were durable and are not there
	Torn    string         `json:"torn,omitempty"`
}

// JournalFile is one of its files.
type JournalFile struct {
	FileListing
	Generation uint64 `json:"generation"`
	End        int64  `json:"end"` // behind the last good frame
	Stop       string `json:"stop,omitempty"`
}

// FrameListing is one frame: what became durable in one piece.
type FrameListing struct {
	LSN     uint64           `json:"lsn"`
	File    string           `json:"file"`
	Offset  int64            `json:"offset"`
	Bytes   int              `json:"bytes"`
	Time    time.Time        `json:"time"`
	Records []SectionListing `json:"records"`
	Changes []ChangeListing  `json:"changes"`
	Problem string           `json:"problem,omitempty"`
}

// SectionListing are records of one partition in a frame.
type SectionListing struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	First     Offset `json:"first"`
	Records   int    `json:"records"`
	Bytes     int    `json:"bytes"`
}

// ChangeListing is a change of state.
type ChangeListing struct {
	Space  string `json:"space"`
	Key    string `json:"key"`
	Delete bool   `json:"delete,omitempty"`
	Bytes  int    `json:"bytes"`
}

// InspectJournal looks at the files of the running spool's journal. Nothing waits for that; frames of the last moment may
// be missing.
func (s *Spool) InspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error) {
	d, err := s.inspectJournal(ctx, q)
	for try := 0; try < 3 && err != nil && ctx.Err() == nil; try++ { // a file was begun anew while it was read
		d, err = s.inspectJournal(ctx, q)
	}
	d.Applied = uint64(s.journal.Stats().Released)
	return d, err
}

// InspectJournal looks at the journal.
func (v *View) InspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error) {
	d, err := v.s.inspectJournal(ctx, q)
	d.Applied = v.s.metaApplied
	return d, err
}

func (s *Spool) inspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error) {
	d := JournalDetail{Files: []JournalFile{}, Frames: []FrameListing{}, Lost: []string{}}
	limit := limitOf(q.Limit)
	r, err := journal.Frames(vfs.OS, s.path("journal"), journalSealer{s.keys}, func(fr journal.Frame) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if uint64(fr.LSN) <= q.After {
			return nil
		}
		if len(d.Frames) == limit {
			d.More = true
			return errEnough
		}
		d.Frames = append(d.Frames, listFrame(fr))
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	d.Last, d.Proven, d.Torn = uint64(r.Last), uint64(r.Proven), r.Torn
	for _, l := range r.Lost {
		d.Lost = append(d.Lost, l.String())
	}
	for i, f := range journalFiles(r.Files) {
		d.Files = append(d.Files, JournalFile{FileListing: f, Generation: r.Files[i].Generation, End: r.Files[i].End, Stop: r.Files[i].Stop})
	}
	return d, err
}

const frameChanges = 100 // of a frame that are listed

func listFrame(fr journal.Frame) FrameListing {
	l := FrameListing{
		LSN: uint64(fr.LSN), File: fr.File, Offset: fr.Offset, Bytes: len(fr.Payload), Time: timeOf(fr.Time),
		Records: []SectionListing{}, Changes: []ChangeListing{},
	}
	if fr.Err != nil {
		l.Problem = fr.Err.Error()
		return l
	}
	err := decodePayload(fr.Payload, payloadVisitor{
		records: func(stream string, partition int, base Offset, count int, body []byte) error {
			l.Records = append(l.Records, SectionListing{strings.Clone(stream), partition, base, count, len(body)})
			return nil
		},
		changes: func(b []byte) error {
			return decodeChanges(b, func(space, key string, value []byte) error {
				if len(l.Changes) < frameChanges {
					l.Changes = append(l.Changes, ChangeListing{strings.Clone(space), strings.Clone(key), value == nil, len(value)})
				}
				return nil
			})
		},
	})
	if err != nil {
		l.Problem = err.Error()
	}
	return l
}
