package bridge

import (
	"context"
	"errors"
	"log/slog"
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
	up          *upstream // all that its lanes know of Kafka is of this cluster
	partition   int
	log         *slog.Logger
	source      Log
	cursor      Cursor // where the tail goes on
	keep        Cursor // what retention has to leave: the cursor, or a detached lane that is behind it
	deadLetters string // stream; empty when there is none
	wall        func() time.Time

	space   string       // of its positions
	prefix  string       // of their keys
	backlog *backlog     // that it delivers; nil for the route's own one
	from    spool.Offset // the route's own: what is below is of a backlog
	until   spool.Offset // a backlog's: its end; otherwise beyond all
	asides  []*feeder    // the route's own: those of the partition's backlogs
	older   []*feeder    // a backlog's: those of the partition's older ones
	before  *feeder      // of the stint before, has something in the air; nil by and by

	unwatch func()

	wakeC  chan struct{} // the tail: something may have changed
	catchC chan struct{} // the catch-up: the same
	saveC  chan struct{} // the bridge's saver: positions of lanes have changed

	crashEnd spool.Offset // records below it may have been sent by a run that had no end
	began    time.Time
	watch    *watch            // nil when nobody waits for its records
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
	placedOn  *lane            // of the record in hand, see watch.placed
	head      int64            // receive time of the record in hand, 0 at the tail
	lastHead  int64            // of the last one, 0 before the first
	outlets   map[string]*outlet
	dests     map[destination]*outlet // cache; nil is a record that the route does not take
	lanes     []*lane
	touched   []*lane  // have got messages since they were kicked
	dropped   []string // entries of lanes that are no more
	rewind    *rewind  // nil when the tail is not below the cursor
	detached  int
	flying    int
	savedTo   int       // lane to begin the next save with
	catchFrom time.Time // the catch-up rests until then, for the route's rate
	changed   bool      // a topic or the upstream
	stopping  bool
	waiting   bool // a backlog that has to wait for an older one
	acked     uint64
	retired   bool      // its stint is over: what lands moves nothing
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

func newFeeder(b *Bridge, r *route, up *upstream, partition int, bl *backlog) *feeder {
	f := &feeder{
		r: r, up: up, partition: partition, source: b.source, cursor: r.cursor, keep: r.keep, deadLetters: b.cfg.deadLetters(), saveC: b.saveC, wall: b.now,
		log:     b.log.With("route", r.cfg.Name, "partition", partition),
		wakeC:   make(chan struct{}, 1),
		catchC:  make(chan struct{}, 1),
		hints:   make(map[string]hint),
		outlets: make(map[string]*outlet),
		dests:   make(map[destination]*outlet),
	}
	id := ""
	if f.space, f.until = space(r.cfg.Name), spool.NoOffset; bl != nil {
		f.space, f.prefix, f.backlog, f.until, id = backlogSpace(r.cfg.Name), bl.id+"/", bl, bl.parts[partition].to, bl.id
		f.cursor, f.keep, f.waiting = bl.cursor, bl.keep, true
		f.log = f.log.With("backlog", bl.id)
	} else if r.watches != nil {
		r.watches[partition].take(f)
	}
	f.tail, f.behind = r.mapper.NewScratch(b.now), r.mapper.NewScratch(b.now)
	f.graves.ctx, f.graves.end = context.WithCancel(context.Background())
	f.pos = f.cursor.Position(partition)
	if bl != nil {
		f.pos = min(max(f.pos, bl.parts[partition].from), f.until)
		f.cursor.Commit(partition, f.pos)
	} else if f.from = r.splitAt(partition); f.from > 0 {
		f.pos = max(f.pos, f.from)
		f.cursor.Commit(partition, f.from)
		f.keep.Commit(partition, f.from)
	}
	f.committed = f.pos
	f.progress, f.began = time.Now(), time.Now()
	if r.cfg.Delivery == ExactlyOnce {
		f.exactly = b.exactlyOn(r, up, partition, id)
	}
	f.unwatch = f.up.Watch(func() {
		f.mu.Lock()
		f.changed = true
		f.mu.Unlock()
		signal(f.wakeC)
		signal(f.catchC)
	})
	return f
}

// end is the durable end of what is f's.
func (f *feeder) end() spool.Offset {
	_, end := f.source.Bounds(f.r.cfg.Stream, f.partition)
	return min(end, f.until)
}

// feed reads the tail until ctx ends, or a backlog's end.
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
		if ctx.Err() != nil || err == nil {
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
		positions, err := f.exactly.Open(ctx)
		if err == nil {
			f.mu.Lock()
			end := f.end()
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
	for from < f.until {
		b, err := r.Next(ctx)
		if err != nil {
			return err
		}
		f.readFailed(nil)
		f.bound(&b)
		if err := f.take(ctx, b); err != nil {
			return err
		}
		from = b.Next
	}
	return nil // a backlog's tail has an end
}

// bound takes from b what is not f's.
func (f *feeder) bound(b *spool.Batch) {
	if b.Next <= f.until {
		return
	}
	n := len(b.Records)
	for n > 0 && b.Records[n-1].Offset >= f.until {
		n--
	}
	if g := b.Gap; g != nil && g.To > f.until {
		b.Gap = &spool.Gap{From: min(g.From, f.until), To: f.until, Reason: g.Reason}
	}
	first := min(max(b.First, f.pos), f.until) // only this goroutine moves pos
	b.Records, b.Next = b.Records[:n], f.until
	b.Expired = min(b.Expired, max(int(f.until-first)-n, 0))
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
	if f.retired {
		return
	}
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
	f.endRewindLocked(low)
	if low > f.committed {
		f.committed = low
		f.progress = time.Now()
		f.cursor.Commit(f.partition, low)
	}
	if keep > f.kept {
		f.kept = keep
		f.keep.Commit(f.partition, keep)
	}
	if f.watch != nil {
		f.tellAwaitedLocked()
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
