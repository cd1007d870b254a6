package store

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const leftoverAge = time.Hour // a file that is being written is younger

// sweep removes what crashes have left in a directory and in those beside it, into which perhaps nobody will put anything any more, once.
// Those that are empty and nobody has touched for long go. now is by the clock of the file system.
func (d *Dir) sweep(dir string, now time.Time) {
	d.mu.Lock()
	again := d.swept[dir]
	if d.swept == nil {
		d.swept = map[string]bool{}
	}
	d.swept[dir] = true
	d.mu.Unlock()
	if again {
		return
	}
	sweepOne(dir, now)
	if dir == d.root || filepath.Dir(dir) == d.root { // what is beside those may be somebody else's
		return
	}
	beside, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return
	}
	for _, e := range beside {
		other := filepath.Join(filepath.Dir(dir), e.Name())
		if !e.IsDir() || other == dir {
			continue
		}
		fi, err := e.Info()
		if sweepOne(other, now); err == nil && now.Sub(fi.ModTime()) > leftoverAge {
			_ = os.Remove(other) // which does nothing to one that has something in it
		}
	}
}

func sweepOne(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), tempSuffix) {
			continue
		}
		if fi, err := e.Info(); err == nil && now.Sub(fi.ModTime()) > leftoverAge {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
