package spool

import (
	"fmt"
	"sync"
)

// tail bounds the memory of the newest records of all partitions. What no segment has yet cannot be evicted; Append
// waits instead when there is too much of it.
type tail struct {
	limit int64

	// mu is held while a group is published, so that whoever holds it sees all partitions at the same journal position.
	mu      sync.Mutex
	lsn     uint64   // of the last published group
	order   []*chunk // all chunks by age
	bytes   int64
	changes []pendingChanges // published, not yet in meta.db
}

// pendingChanges are the state changes of one group as they are in the journal.
type pendingChanges struct {
	b    []byte
	cost int64
}

// chunk is a run of decoded records of one partition. Records are immutable once published; a chunk may still grow at
// its end, which readers do not see: they hold a slice of the length it had.
type chunk struct {
	p         *partition
	first     Offset
	records   []Record
	bytes     int64 // by recordMemory
	minExpiry int64 // earliest expiry, 0 when none expires
}

func (c *chunk) next() Offset { return c.first + Offset(len(c.records)) }

const (
	chunkRecords = 512       // a chunk that small groups fill is closed at this many records
	chunkBytes   = 128 << 10 // or this much memory: eviction goes by whole chunks
)

// publish makes the records of one section visible. t.mu is held. recs[0].Offset is the partition's end. The chunk keeps
// recs when keep says so.
func (t *tail) publish(p *partition, recs []Record, bytes int64, minExpiry int64) (kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if recs[0].Offset != p.end {
		panic(fmt.Sprintf("BUG: %s/%d: publish of offset %d at the end %d", p.st.name, p.num, recs[0].Offset, p.end))
	}
	if n := len(p.chunks); n > 0 && len(recs) < chunkRecords/4 {
		if c := p.chunks[n-1]; c.next() == p.end && len(c.records)+len(recs) <= chunkRecords && c.bytes+bytes <= chunkBytes {
			c.records = append(c.records, recs...)
			c.bytes += bytes
			c.minExpiry = minNonZero(c.minExpiry, minExpiry)
			t.publishedLocked(p, len(recs), bytes)
			return false
		}
	}
	c := &chunk{p: p, first: p.end, bytes: bytes, minExpiry: minExpiry}
	if kept = len(recs) >= chunkRecords/4; kept {
		c.records = recs
	} else {
		c.records = append(make([]Record, 0, max(8, 2*len(recs))), recs...)
	}
	p.chunks = append(p.chunks, c)
	t.order = append(t.order, c)
	t.publishedLocked(p, len(recs), bytes)
	return kept
}

func (t *tail) publishedLocked(p *partition, n int, bytes int64) {
	p.end += Offset(n)
	p.load.bytes += bytes
	p.load.records += uint64(n)
	t.bytes += bytes
	p.wakeLocked()
}

// evict drops the oldest chunks that segments have, until the limit is kept.
func (t *tail) evict() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.evictLocked()
}

func (t *tail) evictLocked() {
	n := 0
	for t.bytes > t.limit && n < len(t.order) {
		c := t.order[n]
		c.p.mu.Lock()
		if c.next() > c.p.applied {
			c.p.mu.Unlock()
			break
		}
		// The oldest chunk of all is the oldest of its partition.
		c.p.chunks[0] = nil
		c.p.chunks = c.p.chunks[1:]
		c.p.mu.Unlock()
		t.bytes -= c.bytes
		t.order[n] = nil
		n++
	}
	t.order = t.order[n:]
}

// chunkLocked is the chunk that holds o, nil when memory does not. p.mu is held.
func (p *partition) chunkLocked(o Offset) *chunk {
	lo, hi := 0, len(p.chunks)
	for lo < hi {
		if mid := (lo + hi) / 2; p.chunks[mid].next() <= o {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(p.chunks) && p.chunks[lo].first <= o {
		return p.chunks[lo]
	}
	return nil
}

// chunkAfterLocked is the first chunk that begins after o, nil when there is none. p.mu is held.
func (p *partition) chunkAfterLocked(o Offset) *chunk {
	for _, c := range p.chunks {
		if c.first > o {
			return c
		}
	}
	return nil
}

func minNonZero(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
