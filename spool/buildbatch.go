package spool

import (
	"fmt"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// buildBatch encodes records from o on, until the batch is large enough. It has none when all up to end is lost. The
// memory is that of old.
func (p *partition) buildBatch(o, end Offset, old segment.Batch) (segment.Batch, error) {
	b := segment.Batch{Partition: uint16(p.num), Base: uint64(o), Body: old.Body[:0], Expiries: old.Expiries[:0]}
	for o < end && len(b.Body) < batchBytes {
		p.mu.RLock()
		c := p.chunkLocked(o)
		var recs []Record
		if c != nil {
			recs = c.records[o-c.first : min(c.next(), end)-c.first]
		}
		var after *chunk
		lost := false
		if c == nil {
			after = p.chunkAfterLocked(o)
			_, lost = p.lostAtLocked(o)
		}
		p.mu.RUnlock()
		if c == nil && after != nil && after.first < end { // a loss of the journal that came before this start
			if b.Count > 0 {
				break
			}
			o = after.first
			b.Base = uint64(o)
			continue
		}
		if c == nil && lost { // likewise, and nothing came after it
			if b.Count == 0 {
				o = end
			}
			break
		}
		if c == nil {
			panic(fmt.Sprintf("BUG: %s/%d: offset %d of %d is neither in the tail nor in a segment", p.st.name, p.num, o, end))
		}
		for i := range recs {
			if len(b.Body) >= batchBytes {
				break
			}
			addToBatch(&b, &recs[i], 0)
			o++
		}
	}
	b.Next = uint64(o)
	return b, nil
}

func addToBatch(b *segment.Batch, r *Record, skip uint64) {
	if cap(b.Body) == 0 {
		b.Body = make([]byte, 0, batchBytes+4<<10)
	}
	b.Body = appendRecord(b.Body, r, skip)
	if b.Count == 0 || r.ReceivedAt < b.MinTime {
		b.MinTime = r.ReceivedAt
	}
	if b.Count == 0 || r.ReceivedAt > b.MaxTime {
		b.MaxTime = r.ReceivedAt
	}
	b.Count++
	b.Expiries = append(b.Expiries, r.ExpiresAt)
	if r.ExpiresAt == 0 {
		b.Never++
		return
	}
	b.MinExpiry = minNonZero(b.MinExpiry, r.ExpiresAt)
	b.MaxExpiry = max(b.MaxExpiry, r.ExpiresAt)
}
