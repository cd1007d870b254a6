package downlink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// ClientPrefix begins the client ID of what a downlink publishes: no client may have such a one, so that a record which has it came by a
// downlink.
const ClientPrefix = "$forebay/downlink/"

// partition carries the records of one Kafka partition to the log, in order.
type partition struct {
	d *downlink
	kafka.Partition
	clientID string
	key      string // of its position
	scratch  *mapping.DownScratch
	wake     chan struct{}

	at    place // behind the last record that is dealt with; the worker's
	dirty bool  // at is not in an entry yet; the worker's

	// Of the session's goroutine.
	want     int64 // offset of the record that is to be fetched next
	epoch    int32 // of the record before it
	assigned bool
	lost     bool // its position is not in the log: the bounds have to be asked for

	mu      sync.Mutex
	queue   []item
	bytes   int       // of it
	since   time.Time // an append waits
	why     error     // for what
	stopped bool      // nothing is fetched, until the queue is empty
	durable int64     // position
	high    int64     // end of the log in Kafka, -1 when it is not known
	fault   *fault    // why nothing is read
	held    *gap
	moved   *[16]byte // ID of the topic that the queue is on its way to
}

// item is a record, or a new position.
type item struct {
	rec  kafka.Incoming
	move *place
	size int
}

func newPartition(d *downlink, p kafka.Partition, at place) *partition {
	return &partition{
		d: d, Partition: p, clientID: ClientPrefix + d.cfg.Name + "/" + p.String(), key: positionKey(d.cfg.Name, p), scratch: d.mapper.NewScratch(),
		wake: make(chan struct{}, 1), at: at, want: at.next, epoch: at.epoch, durable: at.next, high: -1,
	}
}

func (p *partition) push(items ...item) {
	size := 0
	for i := range items {
		size += items[i].size
	}
	p.mu.Lock()
	p.queue = append(p.queue, items...)
	p.bytes += size
	p.mu.Unlock()
	p.d.buffered.Add(int64(size))
	signal(p.wake)
}

// take waits for what is to be done next, false at the end. idle is called before a wait.
func (p *partition) take(ctx context.Context, idle func()) (item, bool) {
	for ctx.Err() == nil {
		p.mu.Lock()
		if len(p.queue) > 0 {
			it := p.queue[0]
			p.queue[0] = item{}
			if p.queue = p.queue[1:]; len(p.queue) == 0 {
				p.queue = nil
			}
			p.mu.Unlock()
			return it, true
		}
		p.mu.Unlock()
		idle()
		select {
		case <-ctx.Done():
		case <-p.wake:
		}
	}
	return item{}, false
}

// gone notes that an item is dealt with; it has the partition fetched again when it was the last.
func (p *partition) gone(it *item, resume func(kafka.Partition)) {
	p.mu.Lock()
	p.bytes -= it.size
	again := p.stopped && len(p.queue) == 0
	if again {
		p.stopped = false
	}
	p.mu.Unlock()
	p.d.buffered.Add(-int64(it.size))
	signal(p.d.spaceC)
	if again {
		resume(p.Partition)
		p.d.log.Info("partition is read again", "partition", p.String())
	}
}

// work deals with what is fetched until ctx ends. What is left in the queue then is fetched again.
func (p *partition) work(ctx context.Context, resume func(kafka.Partition)) {
	skipped := 0
	for {
		it, ok := p.take(ctx, func() {
			skipped = 0
			p.save(ctx)
		})
		if !ok {
			return
		}
		switch {
		case it.move != nil:
			p.at, p.dirty = *it.move, true
			p.save(ctx)
		case it.rec.Offset >= p.at.next: // or it came twice
			if !p.deal(ctx, &it.rec) {
				return
			}
			if skipped++; !p.dirty {
				skipped = 0
			} else if skipped >= saveSkipped {
				p.save(ctx)
			}
		}
		p.gone(&it, resume)
	}
}

const saveSkipped = 1000 // records that are left out in a row before the position behind them is written

// save writes a position that no record has brought along.
func (p *partition) save(ctx context.Context) {
	if p.dirty {
		p.append(ctx, func() error { return p.d.e.o.Log.Append(ctx, p.entry(nil, nil)) })
	}
}

// entry is rec, when there is one, with the position behind it.
func (p *partition) entry(rec *spool.Record, done func()) spool.Entry {
	return spool.Entry{
		Record: rec, Changes: []spool.Change{{Space: positionSpace, Key: p.key, Value: p.at.value()}}, Done: &landed{p, p.at.next, done},
	}
}

// landed is the completion of an entry.
type landed struct {
	p    *partition
	next int64
	done func()
}

// Durable implements spool.Completion.
func (l *landed) Durable(rec *spool.Record, err error) {
	d := l.p.d
	if err != nil {
		d.mu.Lock()
		d.failed = err
		d.mu.Unlock()
		return
	}
	l.p.mu.Lock()
	l.p.durable = l.next
	l.p.mu.Unlock()
	switch {
	case rec != nil && rec.Offset == spool.NoOffset:
		d.counts.leftOut[leftDropped].Add(1)
	case l.done != nil:
		l.done()
	}
}

const fullPause = 250 * time.Millisecond // between tries while there is no room

// append tries until the log has taken an entry, and reports whether it has. An error is returned when no try can change it.
func (p *partition) append(ctx context.Context, try func() error) (bool, error) {
	p.wait(true, nil)
	defer p.wait(false, nil)
	for {
		err := try()
		switch {
		case err == nil:
			p.dirty = false
			p.d.mu.Lock()
			p.d.places[p.Partition] = p.at
			p.d.mu.Unlock()
			return true, nil
		case errors.Is(err, ErrRefused), errors.Is(err, spool.ErrTooLarge), errors.Is(err, spool.ErrInvalid):
			return false, err
		case errors.Is(err, spool.ErrClosed), errors.Is(err, spool.ErrFailed):
			p.d.mu.Lock()
			p.d.failed = err
			p.d.mu.Unlock()
			<-ctx.Done()
			return false, nil
		}
		p.wait(true, err)
		if !sleep(ctx, fullPause) {
			return false, nil
		}
	}
}

// wait notes that an append waits, or that it does no more.
func (p *partition) wait(begins bool, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !begins:
		p.since, p.why = time.Time{}, nil
	case p.since.IsZero():
		p.since = time.Now()
	}
	if why != nil {
		p.why = why
	}
}

// deal makes of a record what becomes of it. It returns false when ctx has ended before.
func (p *partition) deal(ctx context.Context, rec *kafka.Incoming) bool {
	d := p.d
	before := p.at
	p.at.next, p.at.epoch = rec.Offset+1, rec.Epoch
	skip := func(why leftReason) bool {
		d.counts.leftOut[why].Add(1)
		p.dirty = true
		return true
	}
	switch {
	case rec.Control:
		p.dirty = true
		return true
	case d.cfg.OwnRecords == OwnDrop && mapping.Identified(rec, d.e.o.GatewayID):
		return skip(leftOwn)
	case rec.Value == nil && d.cfg.NullValue == NullDrop:
		return skip(leftNull)
	}
	now := d.e.o.Now()
	pub, err := d.mapper.Publish(p.scratch, rec, now)
	switch {
	case err != nil:
		return p.poison(ctx, rec, err, before)
	case pub.Expired:
		return skip(leftExpired)
	}
	d.counts.headers.Add(uint64(pub.LeftOut))
	r, size := pub.Record, uint64(len(rec.Value))
	r.ClientID, r.ReceivedAt = p.clientID, now.UnixNano()
	ok, err := p.append(ctx, func() error {
		again := *r // what is handed over belongs to the log
		return d.e.o.Front.Publish(ctx, p.entry(&again, func() {
			d.counts.records.Add(1)
			d.counts.bytes.Add(size)
		}))
	})
	if err != nil {
		return p.poison(ctx, rec, err, before)
	}
	if !ok {
		p.at = before
	}
	return ok
}
