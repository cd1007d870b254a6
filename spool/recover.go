package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// recover opens everything there is, in this order: the lock, meta.db, the segments (what the catalog misses is lost), the
// journal, whose frames give what the segments and meta.db do not have yet. Records are matched by their offsets, so that
// a replay may begin anywhere before the first missing one; changes by the journal position in meta.db.
func (s *Spool) recover(opts Options) error {
	began := time.Now()
	var err error
	if s.keys, err = loadKeys(s.cfg.Encryption); err != nil {
		return err
	}
	if err := s.takeDirectory(); err != nil {
		return err
	}
	rebuilt, err := s.openMeta()
	if err != nil {
		return err
	}
	s.makeStreams()
	r := newRecovery(s, rebuilt)
	if err := r.readMeta(); damaged(err) { // pages are sound, a value is not
		s.streams, s.metaApplied = nil, 0
		clear(s.byName)
		if err = errors.Join(s.meta.close(), s.beginMeta(err)); err != nil {
			return err
		}
		s.makeStreams()
		r = newRecovery(s, true)
	} else if err != nil {
		return err
	}
	s.clock = newClock(opts, r.seen)
	if err := r.openSegments(); err != nil {
		return err
	}
	r.settleClock()
	s.tellClock()
	r.settlePartitions()
	r.noteHoles()
	if err := s.openJournal(opts); err != nil {
		return err
	}
	s.metrics = newMetrics(opts.Registerer, s)
	if err := r.replay(); err != nil {
		return err
	}
	if err := r.finish(); err != nil {
		return err
	}
	if r.restored {
		if err := s.beginFork(); err != nil {
			return err
		}
	}
	r.tell()
	s.log.Info("spool open", "dir", s.cfg.Dir, "streams", len(s.streams), "segments", r.segments, "replayed_frames", r.frames,
		"replayed_records", r.records, "duration", time.Since(began).Round(time.Millisecond))
	return nil
}

func (s *Spool) takeDirectory() error {
	if err := s.fs.MkdirAll(s.cfg.Dir, 0o750); err != nil {
		return err
	}
	lock, err := s.fs.Lock(s.path("LOCK"))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%w: %w: wait for it or stop it, or set another spool.dir", ErrInUse, err)
	}
	if err != nil {
		return err
	}
	s.lock = lock
	for _, dir := range []string{"seg", "quarantine", "journal"} {
		if err := cmp.Or(s.fs.MkdirAll(s.path(dir), 0o750), vfs.OS.MkdirAll(s.path(dir), 0o750)); err != nil {
			return err
		}
	}
	s.quarantineBytes.Store(dirBytes(s.path("quarantine")))
	s.rememberAside()
	return nil
}

func dirBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			n += fi.Size()
		}
		return nil
	})
	return n
}

// makeStreams makes the streams of the configuration; default is always there.
func (s *Spool) makeStreams() {
	for _, cfg := range s.cfg.Streams {
		s.addStream(newStream(cfg.WithDefaults(), 0))
	}
	if s.byName[DefaultStream] == nil {
		s.addStream(newStream(DefaultStreamConfig(DefaultStream), 0))
	}
}

func (s *Spool) addStream(st *stream) *stream {
	s.streams = append(s.streams, st)
	s.byName[st.name] = st
	return st
}

// streamOnDisk is the stream of that name; one that the configuration does not know is kept, readable, without filters.
func (s *Spool) streamOnDisk(name string, partition int) *stream {
	st := s.byName[name]
	if st == nil {
		cfg := DefaultStreamConfig(name)
		cfg.Partitions, cfg.Retention = 1, 0 // what its rules were is not known: nothing of it goes
		st = s.addStream(newStream(cfg, 0))
		st.configured = false
	}
	st.grow(partition + 1)
	return st
}

// recovery is what Open knows before everything is open.
type recovery struct {
	s            *Spool
	rebuilt      bool // meta.db was begun anew
	restored     bool // the directory is of a backup
	seen         clockState
	catalog      map[string]map[uint64]segmentRecord
	floor        map[*partition]Offset // the next offset that meta.db knows
	gone         map[*partition][]lostRange
	missing      bool // a partition ends before its floor: the journal may still have the rest
	changed      bool // what is lost is not in meta.db yet
	lost         losses
	lostFrames   []string // of the journal
	missingFiles int
	segments     int
	frames       int
	records      int
}

func newRecovery(s *Spool, rebuilt bool) *recovery {
	return &recovery{
		s: s, rebuilt: rebuilt, catalog: make(map[string]map[uint64]segmentRecord), floor: make(map[*partition]Offset),
		gone: make(map[*partition][]lostRange),
	}
}

func (s *Spool) openJournal(opts Options) error {
	cfg := journal.Config{
		Dir: s.path("journal"), FileSize: int64(s.cfg.Journal.FileSize), Files: s.cfg.Journal.Files,
		SyncInterval: s.cfg.SyncInterval.Std(),
	}
	if s.cfg.Sync == SyncInterval {
		cfg.Sync = journal.ModeInterval
	}
	j, err := journal.Open(cfg, journal.Options{
		Logger: s.log, FS: s.fs, Now: s.Now, Quarantine: s.path("quarantine"), Sealer: journalSealer{s.keys},
		OnSync: func(d time.Duration) { s.metrics.synced(d) },
	})
	if errors.Is(err, journal.ErrUnsupported) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	s.journal = j
	// A quarter of a file: a group that does not fit into the rest of one leaves that rest empty.
	s.groupCap = min(groupCap, j.MaxPayload()/4)
	s.maxEntry = min(j.MaxPayload(), segment.MaxBody-batchBytes) - payloadHead - sectionMaxHead - sectionHead
	if last := uint64(j.LastLSN()); last < s.metaApplied {
		s.log.Error("journal ends before what meta.db has: its files were removed or lost", "journal", last, "meta", s.metaApplied)
		return s.setApplied(last)
	}
	return nil
}

func (s *Spool) setApplied(lsn uint64) error {
	s.metaApplied = lsn
	return s.meta.update(func(tx *bolt.Tx) error { return s.meta.putNumber(tx, keyApplied, lsn) })
}

// remember writes what is lost to meta.db, so that the next start does not count it again.
func (r *recovery) remember() {
	r.s.materialiseMu.Lock()
	defer r.s.materialiseMu.Unlock()
	if err := r.s.writeMeta(r.s.metaApplied); err != nil {
		r.s.log.Warn("what is lost cannot be written down, the next start finds it again", "err", err)
	}
}

// tell says in one line what damage has cost, once everything that could come back has. Nothing is said when there was none.
func (r *recovery) tell() {
	aside := r.s.lookAside()
	if len(aside) == 0 && r.missingFiles == 0 && len(r.lostFrames) == 0 && r.lost.records == 0 {
		return
	}
	args := append(r.lost.args(), "set_aside", aside, "missing_segments", r.missingFiles)
	if len(r.lostFrames) > 0 { // state of sessions and cursors may have been in them; records that were are counted
		args = append(args, "lost_journal_frames", strings.Join(r.lostFrames, ", "))
	}
	args = append(args, "hint", "look at the disk; what was set aside is in "+r.s.path("quarantine"))
	if r.lost.records == 0 && len(r.lostFrames) == 0 {
		r.s.log.Warn("the spool was damaged; no record is lost", args...)
		return
	}
	r.s.log.Error("the spool was damaged, and something of it is lost", args...)
}

// finish makes what was recovered the new state on the disk.
func (r *recovery) finish() error {
	s := r.s
	for _, st := range s.streams {
		if err := vfs.OS.MkdirAll(s.segmentDir(st.name), 0o750); err != nil {
			return err
		}
		for _, p := range st.parts {
			if floor := r.floor[p]; p.end < floor {
				r.jump(p, floor)
			}
		}
	}
	r.materialise(true)
	if r.changed {
		r.remember()
	}
	for _, st := range s.streams {
		for _, p := range st.parts {
			p.load = load{} // what was replayed is not new
			st.moveStart(p)
		}
	}
	if err := s.Load(cursorSpace, func(name string, v []byte) error {
		err := s.cursors.restore(name, v)
		if damaged(err) {
			s.log.Error("cursor is damaged and is forgotten", "cursor", name, "err", err)
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	s.tellUnconfigured()
	s.tellSize()
	s.checkRoom()
	return nil
}
