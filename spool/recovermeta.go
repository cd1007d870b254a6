package spool

import (
	"errors"
	"io/fs"
	"os"

	bolt "go.etcd.io/bbolt"
)

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

func (r *recovery) readMeta() error {
	m := r.s.meta
	return m.view(func(tx *bolt.Tx) error {
		r.s.metaApplied = m.number(tx, keyApplied)
		r.s.quarantined.Store(m.number(tx, keyQuarantined))
		r.seen = m.clockState(tx)
		r.restored = m.number(tx, keyRestored) != 0
		var err error
		if r.s.forks, err = m.forks(tx); err != nil {
			return err
		}
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
