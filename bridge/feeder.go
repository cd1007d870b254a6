package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// feeder carries the records of one route and one spool partition: it reads the tail, spreads records over lanes, detaches
// lanes that hold the others, and moves the cursor behind the acknowledgements.
type feeder struct {
	r           *route
	partition   int
	log         *slog.Logger
	source      Log
	cursor      Cursor // where the tail goes on
	keep        Cursor // what retention has to leave: the cursor, or a detached lane that is behind it
	deadLetters string // stream; empty when there is none
	wall        func() time.Time

	wakeC  chan struct{} // the tail: something may have changed
	catchC chan struct{} // the catch-up: the same
	saveC  chan struct{} // the bridge's saver: positions of lanes have changed

	crashEnd spool.Offset // records below it may have been sent by a run that had no end
	began    time.Time
	exactly  *kafka.Exactly    // nil for at_least_once
	opened   bool              // exactly once: the positions are known; this and the next are guarded by mu
	openErr  error             // why they are not
	openedAt time.Time         // since when
	exact    map[string]uint64 // of lanes, as Kafka has them
	hints    map[string]hint   // by lane's key, of lanes that an earlier run has had

	mu        sync.Mutex
	tail      *mapping.Scratch // of the tail
	behind    *mapping.Scratch // of the catch-up
	graves    graves           // dead letters of the mapping
	pos       spool.Offset     // everything below is acknowledged, with a lane, or passed over for a detached one
	committed spool.Offset     // what the cursor was told
	kept      spool.Offset     // what keep was told
	now       time.Time        // of the batch in hand
	placing   *outlet          // of the record in hand, while it waits for a lane: it must not be given up as idle
	head      int64            // receive time of the record in hand, 0 at the tail
	outlets   map[string]*outlet
	dests     map[destination]*outlet // cache; nil is a record that the route does not take
	lanes     []*lane
	touched   []*lane  // have got messages since they were kicked
	dropped   []string // entries of lanes that are no more
	detached  int
	flying    int
	savedTo   int       // lane to begin the next save with
	catchFrom time.Time // the catch-up rests until then, for the route's rate
	changed   bool      // a topic or the upstream
	stopping  bool
	progress  time.Time // last acknowledgement, or when there began to be something to acknowledge
	readErr   error
	readErrAt time.Time
}

// destination is what decides about a record's Kafka topic: MQTT topic, and client only when the template says so; or the name that
// the mapping has made.
type destination struct{ topic, client, name string }

const (
	maxDestinations = 1 << 16 // of the cache, a few MiB
	lockedRecords   = 256     // so many records are placed before the lock is given to acknowledgements
	readPause       = time.Second
)

func newFeeder(b *Bridge, r *route, partition int, cursor, keep Cursor) *feeder {
	f := &feeder{
		r: r, partition: partition, source: b.source, cursor: cursor, keep: keep, deadLetters: b.cfg.deadLetters(), saveC: b.saveC, wall: b.now,
		log:     b.log.With("route", r.cfg.Name, "partition", partition),
		wakeC:   make(chan struct{}, 1),
		catchC:  make(chan struct{}, 1),
		hints:   make(map[string]hint),
		outlets: make(map[string]*outlet),
		dests:   make(map[destination]*outlet),
	}
	f.tail, f.behind = r.mapper.NewScratch(b.now), r.mapper.NewScratch(b.now)
	f.graves.ctx, f.graves.end = context.WithCancel(context.Background())
	f.pos = cursor.Position(partition)
	f.committed = f.pos
	f.progress, f.began = time.Now(), time.Now()
	if r.cfg.Delivery == ExactlyOnce {
		f.exactly = r.up.NewExactly(fmt.Sprintf("forebay/%s/%s/%d", r.gatewayID, r.cfg.Name, partition), b.spoolID+"/"+r.mapping())
	}
	r.up.Watch(func() {
		f.mu.Lock()
		f.changed = true
		f.mu.Unlock()
		signal(f.wakeC)
		signal(f.catchC)
	})
	return f
}

// feed reads the tail until ctx ends.
func (f *feeder) feed(ctx context.Context) {
	if f.r.mapper.Constant() { // ask about it now, and not when the first record waits
		f.mu.Lock()
		f.openLocked(f.r.mapper.Text())
		f.mu.Unlock()
	}
	if f.exactly != nil && !f.open(ctx) {
		return
	}
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		f.readFailed(err)
		if !sleep(ctx, readPause) {
			return
		}
	}
}

// open fences what an earlier run has left and takes the positions of lanes from Kafka. Nothing is sent before.
func (f *feeder) open(ctx context.Context) bool {
	for told := false; ctx.Err() == nil; {
		err := f.r.up.EnsurePositions(ctx)
		var positions map[string]uint64
		if err == nil {
			positions, err = f.exactly.Open(ctx)
		}
		if err == nil {
			f.mu.Lock()
			_, end := f.source.Bounds(f.r.cfg.Stream, f.partition)
			for lane, at := range positions { // a spool that was restored from a copy gives the offsets behind it again
				positions[lane] = min(at, uint64(end))
			}
			f.exact, f.opened, f.openErr = positions, true, nil
			for _, l := range f.lanes {
				l.delivered = max(l.delivered, spool.Offset(positions[kafka.LaneKey(l.out.topic.Name, l.out.n, l.partition)]))
			}
			f.mu.Unlock()
			signal(f.catchC)
			return true
		}
		f.mu.Lock()
		if f.openErr == nil {
			f.openedAt = time.Now()
		}
		f.openErr = err
		f.mu.Unlock()
		if !told && ctx.Err() == nil {
			f.log.Warn("positions of exactly-once delivery cannot be read; records wait in the spool", "err", err)
			told = true
		}
		if !sleep(ctx, readPause) {
			return false
		}
	}
	return false
}

func (f *feeder) follow(ctx context.Context) error {
	f.mu.Lock()
	from := f.pos
	f.mu.Unlock()
	r, err := f.source.NewReader(f.r.cfg.Stream, f.partition, from)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if err != nil {
			return err
		}
		f.readFailed(nil)
		if err := f.take(ctx, b); err != nil {
			return err
		}
	}
}

func (f *feeder) readFailed(err error) {
	f.mu.Lock()
	told := f.readErr != nil
	f.readErr = err
	if err != nil && !told {
		f.readErrAt = time.Now()
	}
	f.mu.Unlock()
	if err != nil && !told && !errors.Is(err, spool.ErrClosed) {
		f.log.Error("spool cannot be read; the route waits", "err", err)
	}
}

// take places the records of a batch.
func (f *feeder) take(ctx context.Context, b spool.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = time.Now()
	if g := b.Gap; g != nil && g.To > f.pos {
		lost := uint64(g.To - max(g.From, f.pos))
		f.r.counts.gap(g.Reason, lost)
		f.log.Error("records are gone before they were delivered", "from", max(g.From, f.pos), "to", g.To, "reason", g.Reason)
	}
	f.r.counts.expired.Add(uint64(b.Expired))
	for i := range b.Records {
		rec := f.r.record(&b.Records[i])
		if rec.Offset < f.pos {
			continue
		}
		if i%lockedRecords == lockedRecords-1 {
			f.kickLocked()
			f.mu.Unlock()
			f.mu.Lock() // acknowledgements go first
		}
		f.pos = rec.Offset
		if err := f.placeLocked(ctx, rec); err != nil {
			return err
		}
		f.pos = rec.Offset + 1
	}
	f.pos = max(f.pos, b.Next)
	f.head = 0
	f.kickLocked()
	f.commitLocked()
	if f.detached > 0 {
		signal(f.catchC)
	}
	return nil
}

// placeLocked gives rec to its lane. It waits while the lane is full, and detaches a lane that would hold the others.
func (f *feeder) placeLocked(ctx context.Context, rec *spool.Record) error {
	o, d := f.decideLocked(f.tail, rec, false)
	if d.Action == mapping.Refuse {
		return f.entombLocked(ctx, rec, &d)
	}
	if o == nil {
		if d.Reason == mapping.None {
			f.r.counts.skipped.Add(1)
		}
		return nil
	}
	f.head = rec.ReceivedAt
	o.used, f.placing = f.now, o
	defer func() { f.placing = nil }()
	if f.pos == f.committed {
		f.progress = time.Now()
	}
	var since time.Time // we wait
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		// An upstream that is away holds the route, as a pause does: nothing is gained by detaching all its lanes.
		if f.r.isPaused() || !f.r.up.Up() {
			f.kickLocked()
			f.waitLocked(ctx, time.Second)
			f.now, since = time.Now(), time.Time{}
			continue
		}
		l := f.laneLocked(o, &d)
		if l.detached {
			o.owed++
			return nil // the catch-up comes to it
		}
		if l.hasRoom() && !o.draining() {
			if wait := f.r.rate.take(time.Now(), wireSize(rec)); wait > 0 {
				f.kickLocked()
				f.limitedLocked(ctx, wait)
				since = time.Time{}
				continue
			}
			l.add(f.message(f.tail, rec, &d))
			f.touched = append(f.touched, l)
			return nil
		}
		now := time.Now()
		if since.IsZero() {
			since = now
			f.kickLocked()
		}
		left := f.r.up.StallAfter() - now.Sub(since)
		if left <= 0 {
			if o.draining() {
				o.until = now // with the old number of partitions, until there is a moment without traffic
				continue
			}
			if f.detached < maxDetached && f.r.up.AliveSince(since) {
				f.detachLocked(l, rec.Offset)
				if len(o.lanes) > 0 && l.check == checked { // a topic that is being made, or a partition that is read back, is no stall
					f.r.counts.detached.Add(1)
				}
				if l.nextTime == 0 {
					l.nextTime = rec.ReceivedAt
				}
				o.owed++
				return nil
			}
			left = minWait
		}
		f.waitLocked(ctx, left)
		f.now = time.Now()
	}
}

// message is what a lane gets of rec.
func (f *feeder) message(s *mapping.Scratch, rec *spool.Record, d *mapping.Decision) kafka.Message {
	m := f.r.message(s, rec, d)
	m.Expires = rec.ExpiresAt
	return m
}

const minWait = 50 * time.Millisecond

// waitLocked gives the lock away until something may have changed.
func (f *feeder) waitLocked(ctx context.Context, d time.Duration) {
	f.mu.Unlock()
	defer f.mu.Lock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-f.wakeC:
	case <-t.C:
	}
}

// limitedLocked waits for the route's rate, which is no stall.
func (f *feeder) limitedLocked(ctx context.Context, d time.Duration) {
	began := time.Now()
	f.waitLocked(ctx, min(d, time.Second))
	now := time.Now()
	f.r.counts.limited.Add(int64(now.Sub(began)))
	f.progress, f.now = now, now
}

// decideLocked is what becomes of rec and where it goes. There is no outlet when it goes nowhere: the filters do not match, and
// the decision has no reason, or the mapping says so.
func (f *feeder) decideLocked(s *mapping.Scratch, rec *spool.Record, again bool) (o *outlet, d mapping.Decision) {
	if f.r.mapper.Plain() {
		if o = f.plainLocked(s, rec); o != nil {
			d = f.r.mapper.Decide(s, rec, again)
		}
		return o, d
	}
	if !f.r.matches(rec.Topic) {
		return nil, d
	}
	if d = f.r.mapper.Decide(s, rec, again); d.Action != mapping.Send {
		return nil, d
	}
	at := destination{name: d.Topic}
	o, ok := f.dests[at]
	if !ok {
		o = f.namedLocked(d.Topic, d.Overflow, d.Constant)
		f.rememberLocked(at, o)
	}
	return o, d
}

// plainLocked is where rec goes when MQTT topic and client ID decide that, nil when the route does not take it.
func (f *feeder) plainLocked(s *mapping.Scratch, rec *spool.Record) *outlet {
	at := destination{topic: rec.Topic}
	if f.r.mapper.UsesClient() {
		at.client = rec.ClientID
	}
	o, ok := f.dests[at]
	if ok {
		return o
	}
	if f.r.matches(rec.Topic) {
		name, overflow := f.r.mapper.Topic(s, rec)
		o = f.namedLocked(name, overflow, f.r.mapper.Constant())
	}
	// A copy: the record's strings may be part of a large piece of memory.
	f.rememberLocked(destination{topic: strings.Clone(at.topic), client: strings.Clone(at.client)}, o)
	return o
}

func (f *feeder) rememberLocked(at destination, o *outlet) {
	if len(f.dests) >= maxDestinations {
		clear(f.dests)
	}
	f.dests[at] = o
}

// namedLocked is the outlet of a name that a template has made, or the one that takes what is too much.
func (f *feeder) namedLocked(name, overflow string, constant bool) *outlet {
	first := false
	if !constant {
		name, first = f.r.admit(name, overflow)
	}
	if first {
		f.log.Warn("route has max_topics topics; records that need more go to the overflow topic",
			"max_topics", f.r.cfg.MaxTopics, "topic", name)
	}
	return f.openLocked(name)
}

func (f *feeder) openLocked(name string) *outlet {
	o, ok := f.outlets[name]
	if !ok {
		o = &outlet{topic: f.r.up.Topic(name, f.r.cfg.CreateTopics), used: time.Now()}
		f.outlets[name] = o
	}
	return o
}

// laneLocked is the lane of a record of o.
func (f *feeder) laneLocked(o *outlet, d *mapping.Decision) *lane {
	if f.changed {
		f.changed = false
		f.respreadLocked()
	}
	if o.want != 0 {
		f.adoptLocked(o)
	}
	if o.n == 0 {
		n := o.topic.Status().Partitions
		if n == 0 {
			return f.wholeLocked(o)
		}
		f.spreadLocked(o, n)
	}
	p := d.PartitionOf(o.n)
	if l := o.lanes[p]; l != nil {
		return l
	}
	return f.addLaneLocked(o, p)
}

func (f *feeder) addLaneLocked(o *outlet, partition int32) *lane {
	l := &lane{f: f, out: o, partition: partition, window: kafka.MaxFlightRecords, progress: time.Now(), kafkaNext: -1, savedNext: -1}
	if h, ok := f.hints[l.key()]; ok {
		l.kafkaNext, l.savedNext = h.kafkaNext, h.kafkaNext
		if h.spread == o.n {
			l.delivered = h.next
		}
	}
	l.delivered = max(l.delivered, spool.Offset(f.exact[kafka.LaneKey(o.topic.Name, o.n, partition)]))
	if partition < 0 {
		o.whole = l
	} else {
		o.lanes[partition] = l
	}
	f.lanes = append(f.lanes, l)
	f.r.up.lanes.Add(1)
	l.look()
	return l
}

func (f *feeder) wholeLocked(o *outlet) *lane {
	if o.whole == nil {
		f.addLaneLocked(o, -1)
	}
	return o.whole
}

// laneMemory is what one lane may have pending; as much again may be in the air.
func (f *feeder) laneMemory() int {
	share := f.r.up.MaxBuffered() / (2 * max(f.r.up.lanes.Load(), 1))
	return int(min(max(share, minLaneMemory), kafka.MaxFlightBytes))
}

// detachLocked leaves l to the catch-up, from at or what it has pending.
func (f *feeder) detachLocked(l *lane, at spool.Offset) {
	l.next, l.nextTime = at, 0
	if len(l.pending) > 0 {
		l.next, l.nextTime = spool.Offset(l.pending[0].Offset), l.pending[0].Received().UnixNano()
	}
	l.out.owed += len(l.pending)
	l.drop()
	l.detached, l.detachAt = true, time.Now()
	f.detached++
	f.log.Debug("lane is detached", "topic", l.out.topic.Name, "kafka_partition", l.partition, "offset", l.next)
	signal(f.saveC)
	signal(f.catchC)
}

// attachLocked gives l back to the tail. Its stored entry goes when the cursor cannot be ahead of it any more.
func (f *feeder) attachLocked(l *lane) {
	l.detached = false
	f.detached--
	f.levelLocked(l.out)
	f.log.Debug("lane is attached again", "topic", l.out.topic.Name, "kafka_partition", l.partition, "after", time.Since(l.detachAt))
	signal(f.saveC)
	signal(f.wakeC)
}

// kickLocked sends what the lanes have got.
func (f *feeder) kickLocked() {
	if len(f.touched) == 0 {
		return
	}
	now := time.Now()
	for i, l := range f.touched {
		l.kick(now)
		f.touched[i] = nil
	}
	f.touched = f.touched[:0]
}

// commitLocked moves the cursor to the lowest offset that is not acknowledged. A detached lane holds it only until the
// lane's own position is durable. What the lane has not delivered stays in the spool all the same: keep never passes it.
func (f *feeder) commitLocked() {
	low, keep := f.pos, f.pos
	if at := f.graves.at; len(at) > 0 {
		low, keep = min(low, at[0]), min(keep, at[0])
	}
	for _, l := range f.lanes {
		at := l.unacked()
		if !l.detached || !l.stored {
			low = min(low, at)
		}
		if l.stored && l.savedAt != spool.NoOffset {
			at = min(at, l.savedAt) // where the lane goes on after a crash
		}
		keep = min(keep, at)
	}
	if low > f.committed {
		f.committed = low
		f.progress = time.Now()
		f.cursor.Commit(f.partition, low)
	}
	if keep > f.kept {
		f.kept = keep
		f.keep.Commit(f.partition, keep)
	}
}

// signal wakes the goroutine that waits on ch, or the next one that will.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleep waits, false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
