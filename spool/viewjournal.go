package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// readJournal gives the tail what no segment has.
func (v *View) readJournal(r *recovery) error {
	s := v.s
	dir := s.path("journal")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if !v.rebuilt {
			v.found(Finding{Severity: SeverityDamage, Path: dir, What: "is missing", NextStart: "made anew; what only the journal had is lost"})
		}
		return nil
	}
	var err error
	v.report, err = journal.Frames(vfs.OS, dir, journalSealer{s.keys}, func(fr journal.Frame) error {
		if fr.Err != nil {
			v.found(Finding{
				Severity: SeverityDamage, Path: filepath.Join(dir, fr.File), What: fmt.Sprintf("frame %d at byte %d: %v", fr.LSN, fr.Offset, fr.Err),
				NextStart: "what the frame held is lost",
			})
			return nil
		}
		err := decodePayload(fr.Payload, payloadVisitor{
			records: r.replayRecords,
			changes: func(b []byte) error {
				if uint64(fr.LSN) > s.metaApplied {
					return v.overlay(b)
				}
				return nil
			},
		})
		if damaged(err) {
			v.found(Finding{
				Severity: SeverityDamage, Path: filepath.Join(dir, fr.File),
				What:      fmt.Sprintf("frame %d at byte %d: %s", fr.LSN, fr.Offset, detailOf(err)),
				NextStart: "what the frame held is lost",
			})
			return nil
		}
		return err
	})
	if errors.Is(err, journal.ErrUnsupported) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	v.noteJournal(dir)
	return nil
}

func (v *View) noteJournal(dir string) {
	applied := journal.LSN(v.s.metaApplied)
	for _, f := range v.report.Files {
		switch {
		case f.State == "damaged" && f.Last > 0 && f.Last <= applied:
			v.found(Finding{Severity: SeverityNote, Path: filepath.Join(dir, f.Name), What: f.Stop + "; nothing of it is needed any more", NextStart: "set aside in quarantine/"})
		case f.State == "damaged":
			v.found(Finding{Severity: SeverityDamage, Path: filepath.Join(dir, f.Name), What: f.Stop, NextStart: "set aside in quarantine/ once nothing of it is needed"})
		}
	}
	for _, l := range v.report.Lost {
		if l.To > applied {
			v.found(Finding{
				Severity: SeverityDamage, Path: dir, What: fmt.Sprintf("frames %d..%d were durable and are not there", max(l.From, applied+1), l.To),
				NextStart: "what they held is lost; the partitions that miss records show it as gaps",
			})
		}
	}
	if v.report.Torn != "" {
		v.found(Finding{Severity: SeverityNote, Path: dir, What: "ends with a group that was never acknowledged: " + v.report.Torn, NextStart: "cut off"})
	}
	if v.report.Last < applied {
		v.found(Finding{
			Severity: SeverityDamage, Path: dir, What: fmt.Sprintf("ends at frame %d, meta.db has applied up to %d: journal files were removed or lost", v.report.Last, applied),
			NextStart: "goes on from there",
		})
	}
}

// overlay keeps changes that meta.db does not have.
func (v *View) overlay(b []byte) error {
	return decodeChanges(b, func(space, key string, value []byte) error {
		space = strings.Clone(space) // the frame's memory is used again
		if v.pending[space] == nil {
			v.pending[space] = make(map[string][]byte)
		}
		if value != nil {
			value = append([]byte{}, value...)
		}
		v.pending[space][strings.Clone(key)] = value
		v.changes++
		return nil
	})
}

// space calls fn for the keys of a space in order, with what only the journal has.
func (v *View) space(ctx context.Context, name string, fn func(key string, value []byte) error) error {
	extra := v.pending[name]
	keys := sortedKeys(extra)
	give := func(until string, all bool) error {
		for len(keys) > 0 && (all || keys[0] < until) {
			k := keys[0]
			keys = keys[1:]
			if value := extra[k]; value != nil {
				if err := fn(k, value); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if v.s.meta != nil {
		if err := v.s.meta.load(name, func(key string, value []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := give(key, false); err != nil {
				return err
			}
			if _, newer := extra[key]; newer {
				return give(key+"\x00", false)
			}
			return fn(key, value)
		}); err != nil {
			return err
		}
	}
	return give("", true)
}
