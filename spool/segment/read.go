package segment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	// maxChunk is how much one read transaction copies out. A writer cannot use the pages that a reader may still see: 3000
	// commits under one held transaction made a file of 7 MB grow to 3.7 GB.
	maxChunk     = 512 << 10 // 20 ms from a cold disk at 25 MB/s, the worst that was measured without read-ahead
	maxChunkTime = 20 * time.Millisecond
)

// Read calls fn for the batches of the partition from the one that holds offset from, or else the first after it, until
// the bodies delivered reach maxBytes (at least one is delivered) or the segment ends. next is where to go on: the Next
// of the last batch that fn took, or from when there was none; Info tells whether that is the end.
//
// Bodies are checked and belong to fn. fn runs outside of any transaction and may take its time. An error of fn is
// returned as it is. A damaged batch is a *CorruptionError with partition and base; Skip tells where to go on behind it.
func (s *Segment) Read(partition uint16, from uint64, maxBytes int, fn func(Batch) error) (next uint64, err error) {
	sequential := s.ahead.continues(partition, from)
	next = from
	defer func() { s.ahead.reached(partition, next) }()
	if maxBytes >= scanBytes && runtime.GOMAXPROCS(0) > 1 {
		return s.scan(partition, from, maxBytes, sequential, fn)
	}
	buf := chunkPool.Get().(*[]byte)
	defer func() { chunkPool.Put(buf) }()
	for first := true; first || maxBytes > 0; first = false {
		c := chunk{s: s, partition: partition, from: next, maxRaw: maxBytes, buf: (*buf)[:0], sequential: sequential, joined: !first}
		err := c.fill()
		*buf = c.buf[:0]
		if err != nil && len(c.items) == 0 {
			return next, s.wrap("read", err)
		}
		for _, d := range s.decodeAll(&c) {
			b, err := d.batch, d.err
			if err == nil {
				err = s.chained(&c, b)
			}
			if err != nil {
				return next, s.wrap("read", err)
			}
			if err := fn(b); err != nil {
				return next, err
			}
			next = b.Next
			maxBytes -= len(b.Body)
			c.joined = true
			c.from = next
		}
		if err != nil {
			return next, s.wrap("read", err)
		}
		if c.end {
			return next, s.wrap("read", s.ended(&c, next))
		}
		sequential = true
	}
	return next, nil
}

// item is a stored batch in a chunk's buffer.
type item struct {
	key      Ref
	from, to int
	size     int // of the whole value
}

// chunk is what one read transaction takes out.
type chunk struct {
	s          *Segment
	partition  uint16
	from       uint64
	joined     bool // from is the Next of a batch just delivered
	sequential bool
	headers    bool // only headers
	maxRaw     int

	buf   []byte
	items []item
	end   bool          // there is nothing behind the items
	info  PartitionInfo // before the transaction: what it must show at least
}

func (c *chunk) fill() error {
	c.info = c.s.state.Load().parts[c.partition]
	current := Ref{Base: math.MaxUint64}
	err := c.s.view(func(tx *bolt.Tx) error {
		d := tx.Bucket(bucketData)
		if d == nil {
			return storedError("no bucket d")
		}
		cur := d.Cursor()
		k, v, err := c.seek(tx, d, cur, &current)
		if err != nil {
			return err
		}
		start := time.Now()
		raw := 0
		for ; k != nil; k, v = cur.Next() {
			key, err := parseDataKey(k)
			if err != nil {
				return err
			}
			if key.Partition != c.partition {
				break
			}
			if len(c.items) > 0 && (len(c.buf) >= maxChunk || raw >= c.maxRaw || time.Since(start) > maxChunkTime) {
				return nil
			}
			current = key
			at, limit := len(c.buf), math.MaxInt
			if c.headers {
				limit = headerSize
			}
			var size int
			if c.buf, size, err = c.s.appendValue(c.buf, tx, d, k, v, limit, c.sequential); err != nil {
				return err
			}
			if val := c.buf[at:]; !c.headers && len(val) >= headerSize {
				raw += int(le.Uint32(val[12:]))
			}
			c.items = append(c.items, item{key: key, from: at, to: len(c.buf), size: size})
		}
		c.end = true
		return nil
	})
	return c.s.placeBatch(current, err)
}

// seek puts cur on the first batch to deliver: the one that holds c.from, or the first behind it.
func (c *chunk) seek(tx *bolt.Tx, d *bolt.Bucket, cur *bolt.Cursor, current *Ref) (k, v []byte, err error) {
	start := dataKey(c.partition, c.from)
	k, v = cur.Seek(start)
	if c.joined || string(k) == string(start) {
		return k, v, nil
	}
	var pk, pv []byte
	if k == nil {
		pk, pv = cur.Last()
	} else {
		pk, pv = cur.Prev()
	}
	if pk == nil {
		k, v = cur.Seek(start)
		return k, v, nil
	}
	prev, err := parseDataKey(pk)
	if err != nil {
		return nil, nil, err
	}
	if prev.Partition == c.partition {
		*current = prev
		val, _, err := c.s.appendValue(nil, tx, d, pk, pv, math.MaxInt, false)
		if err != nil {
			return nil, nil, err
		}
		// The CRC too: a damaged Next must not hide the batch.
		b, err := checkedHeader(val)
		if err != nil {
			return nil, nil, err
		}
		if b.Next > c.from {
			return pk, pv, nil
		}
		*current = Ref{Base: math.MaxUint64}
	}
	k, v = cur.Seek(start)
	return k, v, nil
}

func checkedHeader(v []byte) (Batch, error) {
	if len(v) < headerSize || le.Uint32(v[4:]) != storedCRC(v) {
		return Batch{}, storedError("crc of header and body")
	}
	b, _, err := parseHeader(v)
	return b, err
}

// appendValue appends the stored batch under k in d or x, or its first limit bytes, to dst. size is all of it.
//
// Values in a page run of their own are read with plain reads, not through bbolt's map: that is twice as fast from a cold
// disk, and a bad sector is an error and not a fault. In a transaction their pages do not change.
func (s *Segment) appendValue(dst []byte, tx *bolt.Tx, d *bolt.Bucket, k, v []byte, limit int, sequential bool) (out []byte, size int, err error) {
	if v != nil {
		return append(dst, v[:min(limit, len(v))]...), len(v), nil
	}
	n := d.Bucket(k)
	if n == nil {
		return dst, 0, storedError("no value")
	}
	r, err := readRun(s.raw, uint64(n.Root()), uint64(tx.Size())/pageSize)
	if err != nil {
		return dst, 0, err
	}
	if sequential {
		s.ahead.want(s.raw, r.off, int64(r.size))
	}
	at, n2 := len(dst), min(limit, r.size)
	dst = slices.Grow(dst, n2)[:at+n2]
	if _, err := s.raw.ReadAt(dst[at:], r.off); err != nil {
		return dst[:at], 0, readError(uint64(r.off)/pageSize, err)
	}
	return dst, r.size, nil
}

// decodeAll decodes the items of a chunk, on two cores when it is worth it: decompression is what limits a scan.
func (s *Segment) decodeAll(c *chunk) []decoded {
	out := make([]decoded, len(c.items))
	work := func(first, step int) {
		for i := first; i < len(out); i += step {
			runtime.Gosched() // who waits for an acknowledgement goes first
			it := c.items[i]
			out[i].batch, out[i].err = s.decode(it.key, c.buf[it.from:it.to])
		}
	}
	if len(out) < 4 || len(c.buf) < 64<<10 || runtime.GOMAXPROCS(0) < 2 {
		work(0, 1)
		return out
	}
	var wg sync.WaitGroup
	wg.Go(func() { work(1, 2) })
	work(0, 2)
	wg.Wait()
	return out
}

type decoded struct {
	batch Batch
	err   error
}

func (s *Segment) decode(key Ref, v []byte) (Batch, error) {
	b, err := decodeStored(v, s.seal, inData)
	if err == nil && (b.Partition != key.Partition || b.Base != key.Base || b.Next <= b.Base) {
		err = damaged("says it is partition %d, [%d, %d)", b.Partition, b.Base, b.Next)
	}
	return b, place(s.path, int(key.Partition), key.Base, err)
}

// chained finds a batch that is missing before b: a damaged key can hide one.
func (s *Segment) chained(c *chunk, b Batch) error {
	missing := c.joined || c.from >= c.info.First && c.from < c.info.Next
	if missing && b.Base > c.from && s.state.Load().parts[c.partition].Gaps == 0 {
		return &CorruptionError{Path: s.path, Partition: int(c.partition), Base: c.from, Reason: fmt.Sprintf("no batch, the next is at %d", b.Base)}
	}
	return nil
}

// ended finds a batch that is missing at the end.
func (s *Segment) ended(c *chunk, next uint64) error {
	if next < c.info.Next {
		return &CorruptionError{Path: s.path, Partition: int(c.partition), Base: next, Reason: fmt.Sprintf("no batch, partition ends at %d", c.info.Next)}
	}
	return nil
}

// placeBatch adds the batch to damage found in a transaction; current.Base is the maximum when there was none.
func (s *Segment) placeBatch(current Ref, err error) error {
	if err == nil {
		return nil
	}
	if current.Base == math.MaxUint64 {
		return place(s.path, -1, 0, err)
	}
	var ce *CorruptionError
	if errors.As(err, &ce) && ce.Partition < 0 {
		ce.Partition, ce.Base = int(current.Partition), current.Base
	}
	return place(s.path, int(current.Partition), current.Base, err)
}

// Skip returns the base of the first batch of the partition whose base is above offset; ok is false when there is none.
func (s *Segment) Skip(partition uint16, offset uint64) (base uint64, ok bool, err error) {
	if offset == math.MaxUint64 {
		return 0, false, nil
	}
	err = s.view(func(tx *bolt.Tx) error {
		k, _ := tx.Bucket(bucketData).Cursor().Seek(dataKey(partition, offset+1))
		if k == nil {
			return nil
		}
		r, err := parseDataKey(k)
		base, ok = r.Base, r.Partition == partition
		return err
	})
	if err != nil || !ok {
		return 0, false, s.wrap("skip", place(s.path, -1, 0, err))
	}
	return base, true, nil
}

// Headers is Read for tools, to the end and without bodies: it neither reads nor checks them.
func (s *Segment) Headers(ctx context.Context, partition uint16, from uint64, fn func(Batch) error) error {
	c := chunk{s: s, partition: partition, from: from, headers: true, maxRaw: math.MaxInt}
	for !c.end {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.buf, c.items = c.buf[:0], c.items[:0]
		err := c.fill()
		for _, it := range c.items {
			b, _, perr := parseHeaderOf(c.buf[it.from:it.to], uint64(it.size))
			if perr != nil {
				return s.wrap("read", place(s.path, int(partition), it.key.Base, perr))
			}
			if err := fn(b); err != nil {
				return err
			}
			c.from, c.joined = b.Next, true
		}
		if err != nil {
			return s.wrap("read", err)
		}
	}
	return nil
}

// SeekTime returns the base of the first batch of the partition that has a record received at or after t (Unix
// nanoseconds), also when the clock went back in between. ok is false when there is none.
func (s *Segment) SeekTime(partition uint16, t int64) (offset uint64, ok bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		k, _ := tx.Bucket(bucketTime).Cursor().Seek(timeKey(partition, t, 0))
		if k == nil {
			return nil
		}
		r, _, err := parseTimeKey(k)
		offset, ok = r.Base, r.Partition == partition
		return err
	})
	if err != nil || !ok {
		return 0, false, s.wrap("seek", place(s.path, -1, 0, err))
	}
	return offset, true, nil
}
