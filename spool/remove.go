package spool

import (
	"bytes"
	"context"
	"encoding/json"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// removeSegment takes a segment out of the log and removes its file: first the catalog says so, then the file goes, in
// steps that do not stall the journal's syncs, then the catalog forgets it. A crash in between is finished at the start.
func (s *Spool) removeSegment(ctx context.Context, f *segmentFile, reason string) bool {
	return s.removeFor(ctx, f, reason, reason)
}

// removedStored is told of a segment that the store has: only its local copy is gone.
const removedStored = "stored"

// removeFor is removeSegment with what people are told as the reason.
func (s *Spool) removeFor(ctx context.Context, f *segmentFile, reason, told string) bool {
	st := f.st
	records := s.forget(f, reason)
	if err := s.tombstone(f); err != nil {
		// A full disk may refuse the catalog too. The file goes all the same: that makes the room.
		s.log.Warn("catalog cannot be written, segment is removed all the same", "path", f.path, "err", err)
	}
	if err := f.close(); err != nil {
		s.log.Warn("segment does not close", "path", f.path, "err", err)
	}
	if err := segment.Remove(ctx, f.path); err != nil {
		s.log.Warn("segment cannot be removed now, it goes at the next start", "path", f.path, "err", err)
		return false
	}
	st.bytes.Add(-f.bytes.Swap(0))
	s.uncatalogue(f)
	s.metrics.removed.WithLabelValues(told).Inc()
	s.log.Info("segment removed", "stream", st.name, "segment", f.seq, "reason", told, "records", records)
	s.checkRoom()
	return true
}

// forget takes f out of its stream, moves the log starts, and counts what that loses.
func (s *Spool) forget(f *segmentFile, reason string) (records uint64) {
	st := f.st
	st.segMu.RLock()
	ranges := f.ranges
	st.segMu.RUnlock()
	floors := make([]Offset, len(ranges))
	for i, r := range ranges {
		o, ok := s.cursors.floor(st.parts[r.Partition])
		if !ok {
			o = r.Next
		}
		floors[i] = max(r.First, o)
	}
	now := s.clock.now()
	_, _ = f.with(func(seg *segment.Segment) error {
		in := seg.Info()
		live, _ := in.Expiry.Live(now)
		st.expired.Add(in.Records - min(live, in.Records))
		return nil
	})
	for i, r := range ranges {
		p := st.parts[r.Partition]
		records += uint64(r.Next - r.First)
		var undelivered uint64
		if r.Next > floors[i] {
			undelivered = uint64(r.Next - floors[i])
		}
		switch reason {
		case GapDropped:
			st.dropped[dropOldest].Add(undelivered)
		case GapDamaged:
			st.dropped[dropDamaged].Add(uint64(r.Next - r.First))
		case GapNotStored:
			st.dropped[dropNotStored].Add(uint64(r.Next - r.First))
		}
		p.mu.Lock()
		if reason != GapRetention {
			p.addLostLocked(lostRange{From: r.First, To: r.Next, Reason: reason})
		}
		p.mu.Unlock()
		st.moveStartPast(p, f) // before it is gone: a reader must not take it for a hole
	}
	st.remove(f)
	return records
}

// moveStart sets the log start to the first offset that can be read.
func (st *stream) moveStart(p *partition) { st.moveStartPast(p, nil) }

// moveStartPast is moveStart as if without were gone already.
func (st *stream) moveStartPast(p *partition, without *segmentFile) {
	first := NoOffset
	for _, f := range st.segments() {
		st.segMu.RLock()
		r, ok := f.rangeOf(p.num)
		st.segMu.RUnlock()
		if ok && f != without {
			first = r.First
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = max(p.start, min(first, p.applied))
}

func (s *Spool) tombstone(f *segmentFile) error {
	return s.meta.update(func(tx *bolt.Tx) error {
		if err := s.putCatalog(tx); err != nil {
			return err
		}
		rec := f.record()
		rec.Removed = true
		return putJSON(tx.Bucket(bucketSegments), segmentKey(f.st.name, f.seq), rec)
	})
}

// uncatalogue forgets a removed segment, but for the highest number of its stream: that one stays, as removed, until there is a higher
// one. Else a start that finds no segment would give numbers out again, and what is stored elsewhere goes by them.
func (s *Spool) uncatalogue(f *segmentFile) {
	highest := f.seq+1 == f.st.nextSeq()
	if err := s.meta.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSegments)
		if !highest {
			if err := b.Delete(segmentKey(f.st.name, f.seq)); err != nil {
				return err
			}
		}
		return forgetRemoved(b, f.st.name, f.seq)
	}); err != nil && s.throttle.allow(s.clock.now()) {
		s.log.Warn("catalog keeps a removed segment until the next start", "path", f.path, "err", err)
	}
}

// forgetRemoved deletes the numbers below seq that stayed although their segments are removed.
func forgetRemoved(b *bolt.Bucket, stream string, seq uint64) error {
	prefix := append([]byte(stream), 0)
	var old [][]byte
	c := b.Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix) && bytes.Compare(k, segmentKey(stream, seq)) < 0; k, v = c.Next() {
		var rec segmentRecord
		if json.Unmarshal(v, &rec) == nil && rec.Removed {
			old = append(old, bytes.Clone(k))
		}
	}
	for _, k := range old {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
