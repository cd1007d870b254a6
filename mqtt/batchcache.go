package mqtt

import (
	"sync"

	"github.com/forebay-gateway/forebay/spool"
)

// batchCache keeps the batches that were read last, so that sessions that return together, with about the same position,
// read and decode each segment once and not once a session. Records are shared and nobody changes them.
type batchCache struct {
	limit int64

	mu      sync.Mutex
	list    []*cachedBatch // the one that was used last stands last
	bytes   int64
	loading map[place]chan struct{} // closed when somebody has read from there
}

type cachedBatch struct {
	lane  int
	batch spool.Batch
	bytes int64
}

// recordCost is about what a record takes beside its payload.
const recordCost = 200

func newBatchCache(limit int64) *batchCache {
	return &batchCache{limit: limit, loading: make(map[place]chan struct{})}
}

// get returns the records from next on of a batch that covers it. When there is none, the caller has to read it and call
// put, with the batch or without; others that ask for the same offset wait for that.
func (c *batchCache) get(lane int, next spool.Offset) ([]spool.Record, spool.Offset, bool) {
	if c.limit == 0 {
		return nil, 0, false
	}
	at := place{int32(lane), next}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for i := len(c.list) - 1; i >= 0; i-- {
			e := c.list[i]
			if e.lane != lane || next < e.batch.First || next >= e.batch.Next {
				continue
			}
			copy(c.list[i:], c.list[i+1:])
			c.list[len(c.list)-1] = e
			recs := e.batch.Records
			for len(recs) > 0 && recs[0].Offset < next {
				recs = recs[1:]
			}
			return recs, e.batch.Next, true
		}
		done := c.loading[at]
		if done == nil {
			c.loading[at] = make(chan struct{})
			return nil, 0, false
		}
		c.mu.Unlock()
		<-done
		c.mu.Lock()
	}
}

// put ends a read that get has asked for. Only a batch without a gap is kept: a gap is counted for each who meets it.
func (c *batchCache) put(lane int, next spool.Offset, b *spool.Batch) {
	if c.limit == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := place{int32(lane), next}
	if done := c.loading[at]; done != nil {
		close(done)
		delete(c.loading, at)
	}
	if b == nil || b.Gap != nil || b.Next <= b.First {
		return
	}
	e := &cachedBatch{lane: lane, batch: *b}
	for i := range b.Records {
		e.bytes += recordCost + int64(len(b.Records[i].Payload))
	}
	c.list = append(c.list, e)
	c.bytes += e.bytes
	drop := 0
	for ; c.bytes > c.limit && drop < len(c.list); drop++ {
		c.bytes -= c.list[drop].bytes
		c.list[drop] = nil
	}
	c.list = c.list[drop:]
}

// clear gives the memory back. Who is still behind reads one batch more.
func (c *batchCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.bytes = nil, 0
}
