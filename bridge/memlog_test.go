package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// memLog is a Log in memory: durable at once, nothing ever goes.
type memLog struct {
	mu      sync.Mutex
	streams map[string][]*memPartition
	cursors map[string]*memCursor
	state   map[string]map[string][]byte
	batch   int   // records of a reader's batch
	fail    error // of everything
	full    error // of appends
}

type memPartition struct {
	records []spool.Record
	start   spool.Offset
	grown   chan struct{}
}

func newMemLog(streams map[string]int) *memLog {
	l := &memLog{
		streams: make(map[string][]*memPartition), cursors: make(map[string]*memCursor),
		state: make(map[string]map[string][]byte), batch: 500,
	}
	for name, n := range streams {
		for range n {
			l.streams[name] = append(l.streams[name], &memPartition{grown: make(chan struct{})})
		}
	}
	return l
}

// add appends a record to a partition.
func (l *memLog) add(stream string, partition int, r spool.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.streams[stream][partition]
	r.Partition, r.Offset = uint16(partition), spool.Offset(len(p.records))
	if r.ReceivedAt == 0 {
		r.ReceivedAt = time.Now().UnixNano()
	}
	p.records = append(p.records, r)
	close(p.grown)
	p.grown = make(chan struct{})
}

func (l *memLog) Streams() []spool.StreamInfo {
	var out []spool.StreamInfo
	for _, name := range slices.Sorted(maps.Keys(l.streams)) {
		out = append(out, spool.StreamInfo{Name: name, Partitions: len(l.streams[name])})
	}
	return out
}

func (l *memLog) Bounds(stream string, partition int) (start, end spool.Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.streams[stream][partition]
	return p.start, spool.Offset(len(p.records))
}

func (l *memLog) NewReader(stream string, partition int, from spool.Offset) (Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return nil, l.fail
	}
	return &memReader{l: l, p: l.streams[stream][partition], stream: stream, partition: partition, next: from}, nil
}

type memReader struct {
	l         *memLog
	p         *memPartition
	stream    string
	partition int
	next      spool.Offset
}

func (r *memReader) Next(ctx context.Context) (spool.Batch, error) {
	for {
		r.l.mu.Lock()
		grown := r.p.grown
		r.l.mu.Unlock()
		b, ok, err := r.TryNext()
		if ok || err != nil {
			return b, err
		}
		select {
		case <-ctx.Done():
			return spool.Batch{}, ctx.Err()
		case <-grown:
		}
	}
}

func (r *memReader) TryNext() (spool.Batch, bool, error) {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.l.fail != nil {
		return spool.Batch{}, false, r.l.fail
	}
	b := spool.Batch{Stream: r.stream, Partition: r.partition}
	if r.next < r.p.start {
		b.Gap = &spool.Gap{From: r.next, To: r.p.start, Reason: spool.GapRetention}
		r.next = r.p.start
	}
	end := min(r.next+spool.Offset(r.l.batch), spool.Offset(len(r.p.records)))
	if r.next >= end {
		return spool.Batch{}, false, nil
	}
	b.First, b.Next = r.next, end
	b.Records = r.p.records[r.next:end:end]
	if now := time.Now().UnixNano(); slices.ContainsFunc(b.Records, func(rec spool.Record) bool { return rec.ExpiresAt != 0 && rec.ExpiresAt <= now }) {
		b.Records = slices.DeleteFunc(slices.Clone(b.Records), func(rec spool.Record) bool { return rec.ExpiresAt != 0 && rec.ExpiresAt <= now })
		b.Expired = int(end-r.next) - len(b.Records)
	}
	r.next = end
	return b, true, nil
}

func (r *memReader) Seek(o spool.Offset) { r.next = o }
func (r *memReader) Close()              {}

type memCursor struct {
	l   *memLog
	p   []*memPartition
	pos []spool.Offset
}

func (l *memLog) OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (Cursor, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.cursors[name]; ok {
		return c, nil
	}
	c := &memCursor{l: l, p: l.streams[stream], pos: make([]spool.Offset, len(l.streams[stream]))}
	for i, p := range c.p {
		c.pos[i] = p.start
		if o.From == spool.End {
			c.pos[i] = spool.Offset(len(p.records))
		}
	}
	l.cursors[name] = c
	return c, nil
}

func (l *memLog) DropCursor(ctx context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.cursors, name)
	return nil
}

func (l *memLog) Cursors() (out []spool.CursorInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.cursors)) {
		c := l.cursors[name]
		info := spool.CursorInfo{Name: name, Protect: true, Positions: slices.Clone(c.pos)}
		for stream, p := range l.streams {
			if len(p) > 0 && len(c.p) > 0 && p[0] == c.p[0] {
				info.Stream = stream
			}
		}
		for i, p := range c.p {
			info.Lag += uint64(spool.Offset(len(p.records)) - c.pos[i])
		}
		out = append(out, info)
	}
	return out
}

func (c *memCursor) Position(partition int) spool.Offset {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.pos[partition]
}

func (c *memCursor) Commit(partition int, next spool.Offset) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if end := spool.Offset(len(c.p[partition].records)); next > end {
		panic(fmt.Sprintf("commit %d past the end %d", next, end))
	}
	c.pos[partition] = max(c.pos[partition], next)
}

func (c *memCursor) Flush(context.Context) error { return nil }

func (l *memLog) Load(space string, fn func(key string, value []byte) error) error {
	l.mu.Lock()
	entries := maps.Clone(l.state[space])
	l.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		if err := fn(k, entries[k]); err != nil {
			return err
		}
	}
	return nil
}

func (l *memLog) Append(_ context.Context, e spool.Entry) error {
	l.mu.Lock()
	if err := cmp.Or(l.fail, l.full); err != nil {
		l.mu.Unlock()
		return err
	}
	for _, c := range e.Changes {
		if l.state[c.Space] == nil {
			l.state[c.Space] = make(map[string][]byte)
		}
		if c.Value == nil {
			delete(l.state[c.Space], c.Key)
		} else {
			l.state[c.Space][c.Key] = c.Value
		}
	}
	l.mu.Unlock()
	if e.Record != nil {
		if l.streams[e.Stream] == nil {
			return errors.New("no such stream")
		}
		l.add(e.Stream, 0, *e.Record)
	}
	if e.Done != nil {
		go e.Done.Durable(e.Record, nil)
	}
	return nil
}

// stored is the number of entries of a space, those of attached lanes left out.
func (l *memLog) stored(space string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.state[space] {
		if !strings.HasPrefix(string(v), positionsVersion+" a ") {
			n++
		}
	}
	return n
}

// clone is the log as another process finds it after a crash.
func (l *memLog) clone() *memLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &memLog{
		streams: make(map[string][]*memPartition), cursors: make(map[string]*memCursor),
		state: make(map[string]map[string][]byte), batch: l.batch,
	}
	for name, ps := range l.streams {
		for _, p := range ps {
			c.streams[name] = append(c.streams[name], &memPartition{records: slices.Clone(p.records), start: p.start, grown: make(chan struct{})})
		}
	}
	for name, cur := range l.cursors {
		nc := &memCursor{l: c, pos: slices.Clone(cur.pos)}
		for stream, ps := range l.streams {
			if len(ps) > 0 && len(cur.p) > 0 && ps[0] == cur.p[0] {
				nc.p = c.streams[stream]
			}
		}
		c.cursors[name] = nc
	}
	for space, kv := range l.state {
		c.state[space] = maps.Clone(kv)
	}
	return c
}
