package spool

import (
	"context"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// keptFile is a file in quarantine/.
type keptFile struct {
	name  string
	bytes int64
	since time.Time // when it came there, by the wall clock: the rename has set its change time
}

// keptSince is when the files of quarantine/ came, in own time: a wall clock that is set must not remove the last trace of lost records.
// What is older than the process has the age that the wall clock gave it when it was first seen.
type keptSince map[string]int64

// age of k. Names are not used again while their file is there.
func (s keptSince) age(k keptFile, own int64, wall time.Time) time.Duration {
	at, known := s[k.name]
	if !known {
		at = own - int64(max(wall.Sub(k.since), 0))
		s[k.name] = at
	}
	return time.Duration(own - at)
}

// only forgets files that are not there any more.
func (s keptSince) only(files []keptFile) {
	maps.DeleteFunc(s, func(name string, _ int64) bool {
		return !slices.ContainsFunc(files, func(k keptFile) bool { return k.name == name })
	})
}

// quarantineFiles lists quarantine/, the oldest first.
func (s *Spool) quarantineFiles() (files []keptFile) {
	entries, _ := os.ReadDir(s.path("quarantine"))
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		k := keptFile{name: e.Name(), bytes: fi.Size(), since: fi.ModTime()}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			k.since = time.Unix(st.Ctim.Unix())
		}
		files = append(files, k)
	}
	slices.SortStableFunc(files, func(a, b keptFile) int { return a.since.Compare(b.since) })
	return files
}

// trimQuarantine keeps quarantine/ within its limits. Each file that goes is told: it may be the last trace of lost records.
func (s *Spool) trimQuarantine(ctx context.Context) {
	files := s.quarantineFiles()
	var sum int64
	for _, k := range files {
		sum += k.bytes
	}
	limit := min(int64(s.cfg.Quarantine.MaxSize), int64(s.cfg.MaxSize)/4)
	maxAge := s.cfg.Quarantine.MaxAge.Std()
	own, wall := s.clock.now(), s.Now()
	s.keptSince.only(files)
	for _, k := range files {
		age := s.keptSince.age(k, own, wall)
		why := ""
		switch {
		case sum > limit:
			why = "max_size"
		case maxAge > 0 && age > maxAge:
			why = "max_age"
		default:
			continue
		}
		path := s.path("quarantine", k.name)
		if err := segment.Remove(ctx, path); err != nil {
			if s.throttle.allow(s.clock.now()) {
				s.log.Warn("damaged file cannot be removed from quarantine", "path", path, "err", err)
			}
			continue
		}
		sum -= k.bytes
		s.metrics.unkept.Inc()
		s.log.Warn("damaged file was removed from quarantine", "path", path, "bytes", approx(k.bytes), "since", k.since.UTC(), "limit", why)
	}
	s.quarantineBytes.Store(sum) // also when somebody has moved files away
}
