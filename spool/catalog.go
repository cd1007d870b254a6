package spool

import (
	"bytes"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// writeMeta writes the changes that wait, the partitions' next offsets and the catalog in one transaction with the
// journal position lsn, which is durable: a power cut would give the number of one that is not to another frame.
func (s *Spool) writeMeta(lsn uint64) error {
	now, clock := s.clock.state(s.boot())
	var cost int64
	changes := make([][]byte, 0, len(s.metaChanges))
	for _, c := range s.metaChanges {
		changes = append(changes, c.b)
		cost += c.cost
	}
	err := s.meta.update(func(tx *bolt.Tx) error {
		if err := s.meta.applyChanges(tx, changes...); err != nil {
			return err
		}
		if err := s.putCatalog(tx); err != nil {
			return err
		}
		if err := s.meta.putNumber(tx, keyApplied, lsn); err != nil {
			return err
		}
		return s.meta.putClock(tx, clock)
	})
	if err != nil {
		return fmt.Errorf("meta.db: %w", err)
	}
	clear(s.metaChanges)
	s.metaChanges = s.metaChanges[:0]
	s.metaApplied, s.metaWritten = lsn, now
	s.unappliedDone(cost)
	return nil
}

// putCatalog writes what has changed of partitions and segments. A segment's entry says what it held at least: one that is
// missing later is missed by it.
func (s *Spool) putCatalog(tx *bolt.Tx) error {
	for _, st := range s.streams {
		for _, p := range st.parts {
			if err := p.put(tx); err != nil {
				return err
			}
		}
		for _, f := range st.segments() {
			if f.catalogued.Load() {
				continue
			}
			rec := f.record()
			if err := putJSON(tx.Bucket(bucketSegments), segmentKey(st.name, f.seq), rec); err != nil {
				return err
			}
			if rec.Sealed {
				tx.OnCommit(func() { f.catalogued.Store(true) })
			}
		}
	}
	return nil
}

// put writes the partition's record when it is not what meta.db has.
func (p *partition) put(tx *bolt.Tx) error {
	p.mu.RLock()
	r := partitionRecord{Next: p.applied, Start: p.start, Lost: append([]lostRange(nil), p.lost...)}
	p.mu.RUnlock()
	j, err := json.Marshal(r)
	if err != nil || bytes.Equal(j, p.saved) {
		return err
	}
	tx.OnCommit(func() { p.saved = j })
	return tx.Bucket(bucketPartitions).Put(partitionKey(p.st.name, p.num), j)
}
