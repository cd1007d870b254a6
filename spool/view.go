package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// View is a spool that nobody runs, opened to be looked at. It shows what the next start would recover, the records that
// are only in the journal included, and changes nothing: no file is made, written, moved or removed. While it is open no
// gateway can start on the directory.
type View struct {
	s        *Spool // never started: streams, segments and tail as recovery would make them
	lock     io.Closer
	rebuilt  bool // meta.db cannot be used: it would be begun anew
	report   journal.Report
	pending  map[string]map[string][]byte // by space and key: changes that are only in the journal; nil deletes
	changes  int
	catalog  []catalogued
	bad      []SegmentListing // that cannot be opened
	findings []Finding
}

// catalogued is a segment that meta.db knows.
type catalogued struct {
	stream string
	seq    uint64
	rec    segmentRecord
}

// OpenView opens the spool in cfg.Dir for looking. ErrInUse means that a gateway runs on it: ask that one. Damage is no
// error, it is in Findings; what was written in a newer format is ErrUnsupported.
func OpenView(cfg Config, opts Options) (*View, error) {
	opts = opts.withDefaults()
	opts.Logger = slog.New(slog.DiscardHandler) // what recovery says here is in Findings
	v := &View{s: newSpool(cfg, opts), pending: make(map[string]map[string][]byte)}
	if err := v.open(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: look at %s: %w", cfg.Dir, err), v.Close())
	}
	return v, nil
}

// Close gives the directory back. Twice is fine.
func (v *View) Close() error {
	var errs []error
	for _, st := range v.s.streams {
		for _, f := range st.segments() {
			errs = append(errs, f.close())
		}
	}
	errs = append(errs, v.s.meta.close())
	v.s.meta = nil
	if v.lock != nil {
		errs = append(errs, v.lock.Close())
		v.lock = nil
	}
	return errors.Join(errs...)
}

// Findings are what was found wrong while the spool was opened. Verify looks further.
func (v *View) Findings() []Finding { return v.findings }

func (v *View) found(f Finding) { v.findings = append(v.findings, f) }

func (v *View) open(opts Options) error {
	if err := v.takeShared(); err != nil {
		return err
	}
	var err error
	if v.s.keys, err = loadKeys(v.s.cfg.Encryption); err != nil {
		return err
	}
	if err := v.openMeta(); err != nil {
		return err
	}
	s := v.s
	s.makeStreams()
	r := &recovery{s: s, rebuilt: v.rebuilt, catalog: make(map[string]map[uint64]segmentRecord), floor: make(map[*partition]Offset)}
	if s.meta != nil {
		if err := r.readMeta(); err != nil {
			return err
		}
	}
	for stream, segs := range r.catalog {
		for seq, rec := range segs {
			v.catalog = append(v.catalog, catalogued{stream, seq, rec})
		}
	}
	s.clock = newClock(opts.Now, r.seen)
	if err := v.openSegments(r); err != nil {
		return err
	}
	r.settlePartitions()
	told := make(map[*partition]int) // lost ranges that meta.db has, or that a segment was the finding of
	for _, st := range s.streams {
		for _, p := range st.parts {
			told[p] = len(p.lost)
		}
	}
	if err := v.readJournal(r); err != nil {
		return err
	}
	v.settle(r, told)
	return v.restoreCursors()
}

// takeShared takes the lock so that no gateway starts meanwhile.
func (v *View) takeShared() error {
	lock, err := vfs.LockShared(v.s.path("LOCK"))
	switch {
	case err == nil:
		v.lock = lock
		return nil
	case errors.Is(err, vfs.ErrLocked):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// A copy may come without it.
	for _, name := range []string{"meta.db", "journal", "seg"} {
		if _, err := os.Stat(v.s.path(name)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no spool here: %w", err)
}

// openMeta opens meta.db, and looks at all of it.
func (v *View) openMeta() error {
	path := v.s.path("meta.db")
	m, err := openMetaChecked(path, true)
	if err == nil {
		m.onDamage = func(space string, err error) {
			v.found(Finding{Severity: SeverityDamage, Path: path, What: "a value of " + spaceName(space) + ": " + detailOf(err), NextStart: "left out"})
		}
		if err = m.unlock(v.s.keys, true); err == nil {
			v.s.meta = m
			return nil
		}
		_ = m.close()
	}
	found := Finding{Severity: SeverityDamage, Path: path}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.rebuilt = true
		if v.empty() {
			return nil
		}
		found.What, found.NextStart = "is missing", "begun anew"
	case damaged(err):
		v.rebuilt = true
		found.What, found.NextStart = detailOf(err), "set aside in quarantine/ and begun anew"
	default:
		return err
	}
	found.NextStart += ": streams follow from their segments; sessions, retained messages and cursors are lost as far as the journal does not have them"
	v.found(found)
	return nil
}

// empty tells whether there is no segment: a gateway that was killed in its first second leaves that behind.
func (v *View) empty() bool {
	found, _ := filepath.Glob(v.s.path("seg", "*", "*"+segmentSuffix))
	return len(found) == 0
}

// openSegments opens what recovery would open, read-only.
func (v *View) openSegments(r *recovery) error {
	dirs, err := os.ReadDir(v.s.path("seg"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range dirs {
		if !d.IsDir() || !validStreamName(d.Name()) {
			v.found(Finding{Severity: SeverityNote, Path: v.s.path("seg", d.Name()), What: "is no stream's directory", NextStart: "left alone"})
			continue
		}
		if err := v.openStream(r, d.Name()); err != nil {
			return err
		}
	}
	for name, segs := range r.catalog {
		for seq, rec := range segs {
			if rec.Removed {
				continue
			}
			path := filepath.Join(v.s.segmentDir(name), segmentName(seq))
			v.lose(name, seq, path, rec, "file is missing", "")
		}
	}
	return nil
}

func (v *View) openStream(r *recovery, name string) error {
	entries, err := os.ReadDir(v.s.segmentDir(name))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(v.s.segmentDir(name), e.Name())
		seq, ok := parseSegmentName(e.Name())
		switch {
		case ok:
			if err := v.openSegment(r, name, seq, path); err != nil {
				return err
			}
		case strings.HasSuffix(e.Name(), segmentSuffix+".rewrite"), strings.HasSuffix(e.Name(), segmentSuffix+".tmp"):
			v.found(Finding{Severity: SeverityNote, Path: path, Stream: name, What: "unfinished file of an interrupted run", NextStart: "removed or replaced; nothing needs it"})
		default:
			v.found(Finding{Severity: SeverityNote, Path: path, Stream: name, What: "is no segment", NextStart: "left alone"})
		}
	}
	if st := v.s.byName[name]; st != nil {
		for i, f := range st.segs {
			if !f.sealed.Load() && i < len(st.segs)-1 {
				f.rolled.Store(true)
			}
		}
	}
	return nil
}

func (v *View) openSegment(r *recovery, name string, seq uint64, path string) error {
	st := v.s.streamOnDisk(name, 0)
	rec, known := r.catalog[name][seq]
	delete(r.catalog[name], seq)
	st.lastSeq = max(st.lastSeq, seq)
	if rec.Removed {
		v.found(Finding{Severity: SeverityNote, Path: path, Stream: name, What: "its removal was interrupted", NextStart: "removed"})
		return nil
	}
	o := v.s.segmentOptions(st, seq)
	o.ReadOnly = true
	seg, err := segment.Open(path, o)
	switch {
	case err == nil:
	case errors.Is(err, segment.ErrUnsupported):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case errors.Is(err, segment.ErrLocked):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case damaged(err):
		v.bad = append(v.bad, v.damagedListing(name, seq, path, err))
		if !known {
			v.found(Finding{
				Severity: SeverityDamage, Path: path, Stream: name, What: detailOf(err), seq: seq,
				NextStart: "set aside in quarantine/; meta.db does not know what it held",
			})
			return nil
		}
		v.lose(name, seq, path, rec, detailOf(err), "set aside in quarantine/, ")
		return nil
	default:
		return err
	}
	f := newSegmentFile(st, seq, seg)
	for _, rg := range f.ranges {
		st.grow(rg.Partition + 1)
	}
	st.segs = append(st.segs, f)
	return nil
}

func (v *View) damagedListing(stream string, seq uint64, path string, err error) SegmentListing {
	l := SegmentListing{Stream: stream, Sequence: seq, File: filepath.Base(path), State: "damaged", Problem: detailOf(err)}
	if fi, err := os.Stat(path); err == nil {
		l.FileBytes = fi.Size()
	}
	return l
}

// lose notes what a segment held that cannot be opened. The journal may still have some of it.
func (v *View) lose(stream string, seq uint64, path string, rec segmentRecord, what, does string) {
	st := v.s.streamOnDisk(stream, 0)
	told := false
	for _, rg := range rec.Partitions {
		st.grow(rg.Partition + 1)
		p := st.parts[rg.Partition]
		if rg.Next <= p.start || rg.Next <= rg.First {
			continue
		}
		told = true
		from := max(rg.First, p.start)
		v.found(Finding{
			Severity: SeverityDamage, Path: path, What: what, seq: seq,
			NextStart: does + "readers see a gap (damaged)",
		}.in(stream, rg.Partition, from, rg.Next))
		p.lost = append(p.lost, lostRange{From: from, To: rg.Next, Reason: GapDamaged})
	}
	if !told {
		v.found(Finding{Severity: SeverityDamage, Path: path, Stream: stream, What: what, seq: seq, NextStart: does + "no record is lost"})
	}
}

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

// settle is what recovery does last: partitions that end below what meta.db knows go on from there.
func (v *View) settle(r *recovery, told map[*partition]int) {
	for _, st := range v.s.streams {
		for _, p := range st.parts {
			if floor := r.floor[p]; p.end < floor {
				r.jump(p, floor)
			}
			for _, l := range p.lost[min(told[p], len(p.lost)):] {
				v.found(Finding{
					Severity: SeverityDamage, Path: v.s.path(), What: "records are neither in segments nor in the journal",
					NextStart: "readers see a gap (damaged)",
				}.in(st.name, p.num, l.From, l.To))
			}
			p.start = max(p.start, st.firstKept(p))
			p.load = load{}
		}
	}
}

// firstKept is the first offset of p that can be read.
func (st *stream) firstKept(p *partition) Offset {
	if f, first := st.holder(p.num, 0); f != nil {
		return min(first, p.applied)
	}
	return p.applied
}

// holder is the segment that holds o of a partition, or else the first one behind it, and the first of its offsets that is
// not below o.
func (st *stream) holder(partition int, o Offset) (f *segmentFile, from Offset) {
	st.segMu.RLock()
	defer st.segMu.RUnlock()
	for _, f := range st.segs {
		if r, ok := f.rangeOf(partition); ok && r.Next > o {
			return f, max(o, r.First)
		}
	}
	return nil, 0
}

func (v *View) restoreCursors() error {
	values := make(map[string][]byte)
	if v.s.meta != nil {
		if err := v.s.meta.load(cursorSpace, func(name string, b []byte) error { values[name] = b; return nil }); err != nil {
			return err
		}
	}
	for name, b := range v.pending[cursorSpace] {
		if values[name] = b; b == nil {
			delete(values, name)
		}
	}
	for name, b := range values {
		err := v.s.cursors.restore(name, b)
		if damaged(err) {
			v.found(Finding{Severity: SeverityDamage, Path: v.s.path("meta.db"), What: detailOf(err), NextStart: "the cursor is forgotten"})
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// detailOf is the error without the path, which a Finding names by itself.
func detailOf(err error) string {
	var ce *segment.CorruptionError
	if errors.As(err, &ce) {
		return ce.Reason
	}
	var own *CorruptionError
	if errors.As(err, &own) {
		return own.Detail
	}
	return err.Error()
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

func (s *Spool) metaSpaces() ([]string, error) {
	if s.meta == nil {
		return nil, nil
	}
	return s.meta.spaces()
}
