package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	s.clock = newClock(opts.Now, r.seen)
	if s.clock.ahead > 0 {
		s.log.Warn("wall clock is behind what the spool has seen; its own time goes on from there", "behind", s.clock.ahead)
	}
	if err := r.openSegments(); err != nil {
		return err
	}
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
		if err := errors.Join(s.fs.MkdirAll(s.path(dir), 0o750), vfs.OS.MkdirAll(s.path(dir), 0o750)); err != nil {
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

// openMeta opens meta.db. A damaged one is set aside and begun anew: the segments and the journal say most of what it knew.
func (s *Spool) openMeta() (rebuilt bool, err error) {
	path := s.path("meta.db")
	fi, err := os.Stat(path)
	gone := errors.Is(err, fs.ErrNotExist) || err == nil && fi.Size() == 0
	if rebuilt = gone && s.hasSegments(); rebuilt {
		s.log.Error("meta.db is missing and is begun anew: "+metaLost, "path", path)
	}
	m, err := openMetaChecked(path, false)
	if err == nil {
		if err = m.unlock(s.keys, false); err != nil {
			_ = m.close()
		}
	}
	if err == nil {
		s.takeMeta(m)
		if gone {
			err = s.syncDir(s.cfg.Dir)
		}
		return rebuilt, err
	}
	if !damaged(err) {
		return false, err
	}
	return true, s.beginMeta(err)
}

// beginMeta sets meta.db aside and begins a new one.
func (s *Spool) beginMeta(why error) error {
	path := s.path("meta.db")
	to, err := s.setAside(path, "meta.db")
	if err != nil {
		return errors.Join(why, err)
	}
	s.log.Error("meta.db is damaged and was set aside: "+metaLost, "err", why, "quarantine", to)
	m, err := openMeta(path, false)
	if err == nil {
		err = m.unlock(s.keys, false)
	}
	s.takeMeta(m)
	return err
}

const metaLost = "sessions, retained messages and cursors are lost as far as the journal does not have them; " +
	"streams are rebuilt from their segments"

// hasSegments tells whether the directory was in use before. One of a gateway that was killed in its first second was not.
func (s *Spool) hasSegments() bool {
	dirs, _ := os.ReadDir(s.path("seg"))
	for _, d := range dirs {
		files, _ := os.ReadDir(s.path("seg", d.Name()))
		for _, f := range files {
			if _, ok := parseSegmentName(f.Name()); ok {
				return true
			}
		}
	}
	return false
}

func (s *Spool) takeMeta(m *meta) {
	s.meta = m
	if m == nil {
		return
	}
	m.onDamage = func(space string, err error) {
		s.log.Error("value in meta.db is damaged and is left out", "space", space, "err", err)
	}
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
		s.log.Warn("stream is on the disk but not in the configuration; it can be read and gets nothing new", "stream", name)
		cfg := DefaultStreamConfig(name)
		cfg.Partitions = 1
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
	seen         int64
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

func (r *recovery) readMeta() error {
	m := r.s.meta
	return m.view(func(tx *bolt.Tx) error {
		r.s.metaApplied = m.number(tx, keyApplied)
		r.s.quarantined.Store(m.number(tx, keyQuarantined))
		r.seen = int64(m.number(tx, keyClock))
		if err := m.partitions(tx, func(stream string, partition int, rec partitionRecord) error {
			p := r.s.streamOnDisk(stream, partition).parts[partition]
			p.start, p.lost = rec.Start, rec.Lost
			r.floor[p] = rec.Next
			return nil
		}); err != nil {
			return err
		}
		return m.segments(tx, func(stream string, seq uint64, rec segmentRecord) error {
			st := r.s.streamOnDisk(stream, 0)
			st.lastSeq = max(st.lastSeq, seq)
			if r.catalog[stream] == nil {
				r.catalog[stream] = make(map[uint64]segmentRecord)
			}
			r.catalog[stream][seq] = rec
			return nil
		})
	})
}

// openSegments opens every segment of every stream on the disk.
func (r *recovery) openSegments() error {
	dirs, err := os.ReadDir(r.s.path("seg"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if !d.IsDir() || !validStreamName(d.Name()) {
			r.s.log.Warn("something else lies among the segments and is left alone", "path", r.s.path("seg", d.Name()))
			continue
		}
		if err := r.openStream(d.Name()); err != nil {
			return err
		}
	}
	for name, segs := range r.catalog {
		for seq, rec := range segs {
			if !rec.Removed {
				r.s.log.Warn("segment is missing; what the journal has of it comes back", "path", r.s.segmentDir(name)+"/"+segmentName(seq))
				r.missingFiles++
				r.lose(name, seq, rec)
			}
		}
	}
	for _, st := range r.s.streams {
		if err := vfs.OS.MkdirAll(r.s.segmentDir(st.name), 0o750); err != nil {
			return err
		}
	}
	return nil
}

func (r *recovery) openStream(name string) error {
	dir := r.s.segmentDir(name)
	entries, err := os.ReadDir(dir) // sorted, and the names sort by sequence
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		seq, ok := parseSegmentName(e.Name())
		switch {
		case ok:
			if err := r.openSegment(r.s.streamOnDisk(name, 0), seq, path); err != nil {
				return err
			}
		case strings.HasSuffix(e.Name(), segmentSuffix+".rewrite"):
			_ = os.Remove(path) // the segment that it was to replace is still there
		default:
			r.s.log.Warn("something else lies among the segments and is left alone", "path", path)
		}
	}
	st := r.s.byName[name]
	if st == nil {
		return nil
	}
	for i, f := range st.segs {
		if !f.sealed.Load() && i < len(st.segs)-1 {
			f.rolled.Store(true)
		}
	}
	return nil
}

func (r *recovery) openSegment(st *stream, seq uint64, path string) error {
	s := r.s
	rec, known := r.catalog[st.name][seq]
	delete(r.catalog[st.name], seq)
	if rec.Removed {
		s.log.Info("removal of a segment is finished", "path", path)
		if err := os.Remove(path); err != nil {
			s.log.Warn("removed segment keeps its place on the disk", "path", path, "err", err)
		}
		return nil
	}
	seg, err := segment.Open(path, s.segmentOptions(st, seq))
	switch {
	case err == nil:
	case errors.Is(err, segment.ErrUnsupported):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case errors.Is(err, segment.ErrLocked):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case damaged(err):
		to, qerr := s.setAside(path, st.name+"-"+filepath.Base(path))
		if qerr != nil {
			return errors.Join(err, qerr)
		}
		s.log.Warn("segment is damaged and was set aside; what the journal has of it comes back", "path", path, "err", err, "quarantine", to)
		if known {
			r.lose(st.name, seq, rec)
		}
		st.lastSeq = max(st.lastSeq, seq)
		return nil
	default:
		return err
	}
	f := newSegmentFile(st, seq, seg)
	f.catalogued.Store(known && rec.Sealed && slices.Equal(rec.Partitions, f.ranges))
	for _, rg := range f.ranges {
		st.grow(rg.Partition + 1)
	}
	st.segs = append(st.segs, f)
	r.segments++
	return nil
}

// lose notes what a segment held that is gone. The journal, or another segment, may have it all the same.
func (r *recovery) lose(stream string, seq uint64, rec segmentRecord) {
	st := r.s.byName[stream]
	r.changed = true
	for _, rg := range rec.Partitions {
		st.grow(rg.Partition + 1)
		p := st.parts[rg.Partition]
		if rg.Next <= p.start || rg.Next <= rg.First {
			continue
		}
		r.gone[p] = append(r.gone[p], lostRange{From: rg.First, To: rg.Next})
	}
	key := segmentKey(stream, seq)
	if err := r.s.meta.update(func(tx *bolt.Tx) error { return tx.Bucket(bucketSegments).Delete(key) }); err != nil {
		r.s.log.Warn("catalog keeps a lost segment", "stream", stream, "segment", seq, "err", err)
	}
}

// settlePartitions sets where each partition's segments end.
func (r *recovery) settlePartitions() {
	for _, st := range r.s.streams {
		for _, p := range st.parts {
			have := p.start
			for _, f := range st.segs {
				if rg, ok := f.rangeOf(p.num); ok {
					have = max(have, rg.Next)
				}
			}
			p.end, p.applied = have, have
			if have < r.floor[p] {
				r.missing = true
			}
		}
	}
}

// noteHoles remembers and counts what no segment has below the partitions' ends. What is above them is the journal's.
func (r *recovery) noteHoles() {
	for _, st := range r.s.streams {
		for _, p := range st.parts {
			at, first := p.start, true
			for _, f := range st.segs {
				rg, ok := f.rangeOf(p.num)
				switch {
				case !ok:
					continue
				case !first:
					r.hole(p, at, rg.First)
				default: // what is below the first segment may have been removed with good reason
					for _, l := range r.gone[p] {
						r.hole(p, max(at, l.From), min(l.To, rg.First))
					}
				}
				at, first = max(at, rg.Next), false
			}
		}
	}
}

// hole remembers and counts as lost what is not known to be gone already.
func (r *recovery) hole(p *partition, from, to Offset) {
	for _, l := range p.notLostLocked(from, to) {
		r.lost.add(p.st.name, p.num, l.From, l.To)
		p.addLostLocked(l)
		p.st.dropped[dropDamaged].Add(uint64(l.To - l.From))
		r.changed = true
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
	s.tellSize()
	s.checkRoom()
	return nil
}
