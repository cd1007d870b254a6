package segment

import (
	"runtime"
	"sync"
)

// scanBytes is from where on a Read is a scan: the next chunks are fetched and decoded while fn has the one before.
const scanBytes = 2 * maxChunk

// scanAhead bounds the chunks that wait for fn, besides the one that it has: each is at most maxChunk of raw bytes and a batch.
const scanAhead = 2

// scanned is a chunk that is being decoded. out is there once done is closed.
type scanned struct {
	c    chunk
	buf  *[]byte
	err  error // of fetching it
	out  []decoded
	done chan struct{}
}

// scan is Read of much at once, on more than one processor.
func (s *Segment) scan(partition uint16, from uint64, maxBytes int, sequential bool, fn func(Batch) error) (next uint64, err error) {
	queue, stop := make(chan *scanned, scanAhead), make(chan struct{})
	go func() {
		defer close(queue)
		s.fetchChunks(partition, from, maxBytes, sequential, queue, stop)
	}()
	defer func() {
		close(stop)
		for r := range queue { // what was fetched for nothing
			<-r.done
			r.giveBack()
		}
	}()
	next = from
	joined := false
	for r := range queue {
		<-r.done
		next, err = s.deliver(r, next, &joined, fn)
		r.giveBack()
		if err != nil {
			return next, err
		}
	}
	return next, nil
}

func (r *scanned) giveBack() {
	*r.buf = r.c.buf[:0]
	chunkPool.Put(r.buf)
}

// deliver gives fn the batches of a chunk. A batch that is damaged tells what it says about the next one: what was fetched by that is never
// delivered.
func (s *Segment) deliver(r *scanned, next uint64, joined *bool, fn func(Batch) error) (uint64, error) {
	r.c.from, r.c.joined = next, *joined
	for _, d := range r.out {
		err := d.err
		if err == nil {
			err = s.chained(&r.c, d.batch)
		}
		if err != nil {
			return next, s.wrap("read", err)
		}
		if err := fn(d.batch); err != nil {
			return next, err
		}
		next, *joined = d.batch.Next, true
		r.c.from, r.c.joined = next, true
	}
	switch {
	case r.err != nil:
		return next, s.wrap("read", r.err)
	case r.c.end:
		return next, s.wrap("read", s.ended(&r.c, next))
	}
	return next, nil
}

// fetchChunks sends chunks until the segment ends, there is enough, or nobody wants more. Each is decoded beside the fetching of the next.
func (s *Segment) fetchChunks(partition uint16, from uint64, maxBytes int, sequential bool, queue chan<- *scanned, stop <-chan struct{}) {
	for joined := false; maxBytes > 0; joined = true {
		r := &scanned{buf: chunkPool.Get().(*[]byte), done: make(chan struct{})}
		r.c = chunk{s: s, partition: partition, from: from, maxRaw: min(maxBytes, maxChunk), buf: (*r.buf)[:0], sequential: sequential || joined, joined: joined}
		r.err = r.c.fill()
		last := r.err != nil || r.c.end || len(r.c.items) == 0
		for _, it := range r.c.items {
			b, raw, err := parseHeader(r.c.buf[it.from:it.to])
			if err != nil {
				last = true // decoding it tells what is wrong
				break
			}
			from = b.Next
			maxBytes -= int(raw)
		}
		go func() {
			defer close(r.done)
			r.out = make([]decoded, len(r.c.items))
			for i, it := range r.c.items {
				runtime.Gosched() // who waits for an acknowledgement goes first
				r.out[i].batch, r.out[i].err = s.decode(it.key, r.c.buf[it.from:it.to])
			}
		}()
		select {
		case queue <- r:
		case <-stop:
			<-r.done
			r.giveBack()
			return
		}
		if last {
			return
		}
	}
}

var chunkPool = sync.Pool{New: func() any { b := make([]byte, 0, maxChunk+64<<10); return &b }}
