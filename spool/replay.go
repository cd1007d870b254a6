package spool

import (
	"errors"
	"fmt"

	"github.com/forebay-gateway/forebay/spool/journal"
)

// replay gives everything that the journal has to the tail, and from there on to segments and meta.db.
func (r *recovery) replay() error {
	s := r.s
	after := journal.LSN(s.metaApplied)
	applied := s.metaApplied
	if r.missing || r.rebuilt {
		after = 0 // everything that was not recycled yet
	}
	s.tail.lsn = s.metaApplied
	err := s.journal.Replay(after, func(lsn journal.LSN, payload []byte) error {
		r.frames++
		err := decodePayload(payload, payloadVisitor{
			records: r.replayRecords,
			changes: func(b []byte) error {
				// One that cannot be read would keep all after it from meta.db, and the journal from being released.
				if err := decodeChanges(b, func(string, string, []byte) error { return nil }); err != nil {
					return err
				}
				if uint64(lsn) > applied {
					s.tail.changes = append(s.tail.changes, pendingChanges{b: append([]byte(nil), b...), cost: int64(len(b))})
					s.unapplied += int64(len(b))
					s.unappliedRaw.Add(int64(len(b)))
				}
				return nil
			},
		})
		if damaged(err) {
			s.log.Error("journal frame cannot be read, what it held is lost", "lsn", uint64(lsn), "err", err)
			r.lostFrames = append(r.lostFrames, fmt.Sprint(lsn))
			err = nil
		}
		if err != nil {
			return err
		}
		s.tail.lsn = max(s.tail.lsn, uint64(lsn))
		if s.unappliedRaw.Load() >= materialiseBytes {
			r.materialise(false)
		}
		return nil
	})
	var loss *journal.LossError
	if errors.As(err, &loss) {
		for _, l := range loss.Lost {
			if r.rebuilt && l.From == 1 {
				continue // recycled: what was applied is not known any more, and the journal has no need to keep what was
			}
			if uint64(l.To) > applied {
				r.lostFrames = append(r.lostFrames, fmt.Sprintf("%d..%d", max(l.From, journal.LSN(applied+1)), l.To))
			}
		}
		err = nil
	}
	return err
}

// materialise tries to move what was replayed. On a full disk it stays in memory: it came from there, and Append waits.
func (r *recovery) materialise(force bool) {
	if err := r.s.materialise(force); err != nil {
		r.s.setMaterialiseError(err)
	}
}

func (r *recovery) replayRecords(stream string, partition int, base Offset, count int, body []byte) error {
	s := r.s
	if !validStreamName(stream) {
		return &CorruptionError{Where: "records section", Detail: fmt.Sprintf("stream %q", stream)}
	}
	st := s.streamOnDisk(stream, partition)
	p := st.parts[partition]
	if base+Offset(count) <= p.end {
		return nil // a segment has them
	}
	recs, next, err := decodeRecords(make([]Record, 0, count), append([]byte(nil), body...), uint16(partition), base)
	if err != nil {
		return err
	}
	if len(recs) != count || next != base+Offset(count) {
		return &CorruptionError{Where: "records section", Detail: fmt.Sprintf("%d records, %d expected", len(recs), count)}
	}
	if base > p.end {
		r.jump(p, base)
	} else {
		recs = recs[p.end-base:]
	}
	var cost, minExpiry int64
	for i := range recs {
		cost += int64(recordMemory(&recs[i]))
		minExpiry = minNonZero(minExpiry, recs[i].ExpiresAt)
	}
	s.tail.publish(p, recs, cost, minExpiry)
	s.unapplied += cost
	s.unappliedRaw.Add(int64(len(body)))
	r.records += len(recs)
	return nil
}

// jump goes on at o: what lies between is lost, or was trimmed before meta.db was.
func (r *recovery) jump(p *partition, o Offset) {
	if p.end == 0 && r.rebuilt {
		p.start, p.end, p.applied = o, o, o
		return
	}
	r.hole(p, p.end, o)
	if p.applied == p.end {
		p.applied = o
	}
	p.end = o
}
