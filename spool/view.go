package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

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
	r := newRecovery(s, v.rebuilt)
	if s.meta != nil {
		err := r.readMeta()
		if damaged(err) { // pages are sound, a value is not
			if err := v.forgetMeta(err); err != nil {
				return err
			}
			r = newRecovery(s, true)
		} else if err != nil {
			return err
		}
	}
	for stream, segs := range r.catalog {
		for seq, rec := range segs {
			v.catalog = append(v.catalog, catalogued{stream, seq, rec})
		}
	}
	s.clock = newClock(opts, r.seen)
	if err := v.openSegments(r); err != nil {
		return err
	}
	r.settleClock()
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
	found.NextStart += metaAnew
	v.found(found)
	return nil
}

// forgetMeta goes on as if meta.db had been begun anew, which the next start does.
func (v *View) forgetMeta(why error) error {
	s := v.s
	v.rebuilt = true
	v.found(Finding{Severity: SeverityDamage, Path: s.path("meta.db"), What: detailOf(why), NextStart: "set aside in quarantine/ and begun anew" + metaAnew})
	err := s.meta.close()
	s.meta, s.streams, s.metaApplied = nil, nil, 0
	clear(s.byName)
	s.makeStreams()
	return err
}

const metaAnew = ": streams follow from their segments; sessions, retained messages and cursors are lost as far as the journal does not have them"

// empty tells whether there is no segment: a gateway that was killed in its first second leaves that behind.
func (v *View) empty() bool {
	found, _ := filepath.Glob(v.s.path("seg", "*", "*"+segmentSuffix))
	return len(found) == 0
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
