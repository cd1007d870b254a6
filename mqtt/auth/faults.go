package auth

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// faults are the files whose present content is not in use. They stay known until the file has been mended: a line in the log is
// gone by then, and rules that somebody believes in force are not.
type faults struct {
	mu   sync.Mutex
	list []fileFault
}

type fileFault struct {
	what, name string
	err        error
	since      time.Time
}

// note remembers what became of reading a file; the first of several faults in a row says since when.
func (f *faults) note(what, name string, err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.list {
		if old := &f.list[i]; old.what == what && old.name == name {
			if err != nil {
				old.err = err
				return
			}
			f.list = append(f.list[:i], f.list[i+1:]...)
			return
		}
	}
	if err != nil {
		f.list = append(f.list, fileFault{what, name, err, now})
	}
}

func (f *faults) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.list)
}

// Health is nil, or names the files that are not in use, with since when and what is wrong with them.
func (a *Auth) Health() error {
	a.faults.mu.Lock()
	defer a.faults.mu.Unlock()
	var errs []error
	for _, f := range a.faults.list {
		errs = append(errs, fmt.Errorf("%s file %s not in use since %s, the old content stays in force: %w",
			f.what, f.name, f.since.UTC().Format(time.RFC3339), f.err))
	}
	return errors.Join(errs...)
}
