package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Gone says which file of the journal is not the one of its name any more: somebody has removed or replaced it, and what
// is written to it would be found by nobody. It is nil when all are there, and for a file system that is not the operating
// system's.
func (j *Journal) Gone() error {
	for _, f := range j.held() {
		if err := j.goneFile(f); err != nil {
			return err
		}
	}
	return nil
}

// held are the files that the keeper does not have in its hands.
func (j *Journal) held() []*file {
	j.mu.Lock()
	defer j.mu.Unlock()
	files := slices.Concat(j.ready, j.retired)
	if j.active != nil {
		files = append(files, j.active)
	}
	return files
}

func (j *Journal) goneFile(f *file) error {
	open, ok := f.File.(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return nil
	}
	mine, err := open.Stat()
	if err != nil {
		return nil // closed meanwhile
	}
	path := filepath.Join(j.cfg.Dir, f.name)
	now, err := os.Stat(path)
	what := "removed"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
	case err == nil && !os.SameFile(mine, now):
		what = "replaced"
	default:
		return nil
	}
	if !slices.Contains(j.held(), f) {
		return nil // the keeper has removed it, or is about to
	}
	return fmt.Errorf("%s was %s", path, what)
}

// Abandon ends the journal: nothing is written any more.
func (j *Journal) Abandon(cause error) { _ = j.fail(cause) }
