package mqtt

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// lane is one partition of one stream. Its distributor reads the tail and offers each record once to whoever is live.
type lane struct {
	id        int
	stream    string
	partition int

	// mu is held while records are offered, and by who joins the tail.
	mu sync.Mutex

	// pos is the offset below which everything has been offered. It is written under mu, after the offers.
	pos atomic.Uint64

	// acked is the offset below which everything that is acknowledged to its publisher stands. A subscription begins at or
	// above it: what came before SUBSCRIBE is in the retained store, or not for the subscriber.
	acked atomic.Uint64
}

func (l *lane) position() spool.Offset { return spool.Offset(l.pos.Load()) }

// begin is where a subscription that is made now starts.
func (l *lane) begin() spool.Offset { return spool.Offset(max(l.pos.Load(), l.acked.Load())) }

// newLanes lists the log's partitions, each at its durable end: what is older is read by who was not there.
func newLanes(log Log) *lanes {
	ls := &lanes{first: make(map[string]int), count: make(map[string]int)}
	for _, info := range log.Streams() {
		ls.first[info.Name] = len(ls.list)
		ls.count[info.Name] = info.Partitions
		for p := range info.Partitions {
			l := &lane{id: len(ls.list), stream: info.Name, partition: p}
			_, end := log.Bounds(info.Name, p)
			l.pos.Store(uint64(end))
			ls.list = append(ls.list, l)
		}
	}
	return ls
}

// ends is the present position of all lanes.
func (ls *lanes) ends() positions {
	p := make(positions, len(ls.list))
	for i, l := range ls.list {
		p[i] = l.position()
	}
	return p
}

// begins is where a subscription that is made now starts on all lanes.
func (ls *lanes) begins() positions {
	p := make(positions, len(ls.list))
	for i, l := range ls.list {
		p[i] = l.begin()
	}
	return p
}

// acknowledged is told of a record before its publisher is, if it is told. Only the log's commit goroutine calls it, in the order of the
// log.
func (ls *lanes) acknowledged(stream string, rec *spool.Record) {
	if i, ok := ls.find(stream, int(rec.Partition)); ok {
		// A record that a stream's policy let go has no offset.
		ls.list[i].acked.Store(max(ls.list[i].acked.Load(), uint64(rec.Offset)+1))
	}
}

// Records that are offered under one hold of the lane's lock, and flushed together: a joining session waits that long.
const offerChunk = 64

// distributor feeds one lane.
type distributor struct {
	srv   *Server
	lane  *lane
	cache *matchCache
	enc   encoder
	dirty []*conn // connections that got something in this chunk
	pause *time.Timer
}

func (d *distributor) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := d.follow(ctx)
		if ctx.Err() != nil || errors.Is(err, spool.ErrClosed) {
			return
		}
		d.srv.log.Error("reading the tail of the spool, again in a second", "stream", d.lane.stream,
			"partition", d.lane.partition, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (d *distributor) follow(ctx context.Context) error {
	r, err := d.srv.spool.NewReader(d.lane.stream, d.lane.partition, d.lane.position())
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if b.Gap != nil {
			d.srv.gap(d.lane, "", b.Gap)
		}
		for recs := b.Records; ; {
			n := min(len(recs), offerChunk)
			next := b.Next
			if n < len(recs) {
				next = recs[n].Offset
			}
			d.offer(recs[:n], next)
			if recs = recs[n:]; len(recs) == 0 {
				break
			}
		}
		d.rest(ctx)
	}
}

// unusedRest is how long a distributor lets records gather that nobody can want.
const unusedRest = 10 * time.Millisecond

// rest lets records gather while nobody has subscribed to anything, offline sessions included: they may come back, and must not get what
// of QoS 0 was published before. Else each group of the log wakes the distributor of each lane that
// it has a record for, only to count it: that took a publisher's message as much time as its decoding.
func (d *distributor) rest(ctx context.Context) {
	if d.srv.subscriptions.Load() > 0 {
		return
	}
	used := d.srv.index.inUse()
	select {
	case <-used:
		return
	default:
	}
	if d.pause == nil {
		d.pause = time.NewTimer(unusedRest)
	} else {
		d.pause.Reset(unusedRest)
	}
	defer d.pause.Stop()
	select {
	case <-used:
	case <-d.pause.C:
	case <-ctx.Done():
	}
}

func (d *distributor) offer(recs []spool.Record, next spool.Offset) {
	now := d.srv.now()
	d.lane.mu.Lock()
	for i := range recs {
		rec := &recs[i]
		m := d.cache.get(rec.Topic)
		if len(m.targets) == 0 && len(m.groups) == 0 {
			continue
		}
		d.enc.reset(rec, now)
		for j := range m.targets {
			if c := m.targets[j].sess.offer(d.lane.id, rec, m.targets[j].subs, &d.enc); c != nil {
				d.mark(c)
			}
		}
		for _, g := range m.groups {
			if c := g.offer(d.lane.id, rec, &d.enc); c != nil {
				d.mark(c)
			}
		}
	}
	d.lane.pos.Store(uint64(next))
	d.lane.mu.Unlock()

	for _, c := range d.dirty {
		c.marked.Store(false)
	}
	flushAll(d.dirty)
	clear(d.dirty)
	d.dirty = d.dirty[:0]
}

// mark remembers that c has to be flushed when the chunk is offered.
func (d *distributor) mark(c *conn) {
	// All lanes share the flag. A lane that finds it set appended before, and the lane that set it clears it before it
	// wakes the flusher: that wake comes after the append.
	if c.marked.CompareAndSwap(false, true) {
		d.dirty = append(d.dirty, c)
	}
}
