package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// pin is a file that is kept open, as it was when it was opened. Somebody may remove or replace it: writing goes on without an
// error, to a file that no start will ever find.
type pin struct {
	path string
	info os.FileInfo
}

// pinFiles remembers the files that a start needs. A file that is not on the operating system's file system is left out.
func (s *Spool) pinFiles() {
	for _, name := range []string{"LOCK", "meta.db"} {
		if info, err := os.Stat(s.path(name)); err == nil {
			s.pins = append(s.pins, pin{s.path(name), info})
		}
	}
}

func (p pin) gone() error {
	now, err := os.Stat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s was removed", p.path)
	case err == nil && !os.SameFile(p.info, now):
		return fmt.Errorf("%s was replaced", p.path)
	}
	return nil // another error says nothing about the file
}

// noticeGone ends the spool when its files are not those in the directory any more: what is acknowledged from here on would
// be gone with the process. Nothing is written by name after that either: the directory may belong to another gateway.
func (s *Spool) noticeGone() bool {
	if s.gone.Load() {
		return true
	}
	err := s.journal.Gone()
	for _, p := range s.pins {
		if err == nil {
			err = p.gone()
		}
	}
	if err == nil {
		return false
	}
	s.gone.Store(true)
	s.journal.Abandon(err)
	s.fail(fmt.Errorf("spool: %w: %w", ErrFailed, err))
	return true
}

var errGone = errors.New("the files in the directory are not those of this spool any more")
