package bridge

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// stint is a route's time on one upstream: its feeders, whose lanes, topics, producers and positions in Kafka are of that
// cluster and of no other. A route that goes to another cluster gets another stint, which begins where the spool says that the
// one before has ended: positions of lanes and the cursor, as after a restart.
//
// What an ended stint has in the air may land later, or never. It moves nothing then: its feeders are retired before the next
// stint looks where to begin.
type stint struct {
	r       *route
	up      *upstream
	feeders []*feeder     // all
	own     []*feeder     // those of them that go on with new records, by partition
	aside   []*backlogRun // the oldest first

	feeding     sync.WaitGroup
	stopFeeding context.CancelFunc
	sending     sync.WaitGroup // transactions
	stopSending context.CancelFunc
}

// backlogRun is a backlog in a stint.
type backlogRun struct {
	bl      *backlog
	feeders []*feeder // of the partitions that it has

	stop   context.CancelFunc // ends what carries it
	over   bool               // it is delivered; this and the next are of whoever watches the route
	passed time.Time
}

// newStint makes the feeders of r on up, and gives them what earlier ones have left in the spool.
func (b *Bridge) newStint(r *route, up *upstream) (*stint, error) {
	st := &stint{r: r, up: up, stopFeeding: func() {}, stopSending: func() {}}
	for p := range r.partitions {
		st.own = append(st.own, newFeeder(b, r, up, p, nil))
	}
	st.feeders = slices.Clone(st.own)
	err := b.loadPositions(r, space(r.cfg.Name), "", st.own)
	for _, bl := range r.backlogged() {
		run := &backlogRun{bl: bl, stop: func() {}}
		byPartition := make([]*feeder, r.partitions)
		for p := range bl.parts {
			if p < r.partitions {
				f := newFeeder(b, r, up, p, bl)
				f.older = slices.Clone(st.own[p].asides)
				byPartition[p], run.feeders, st.own[p].asides = f, append(run.feeders, f), append(st.own[p].asides, f)
			}
		}
		st.feeders, st.aside = append(st.feeders, run.feeders...), append(st.aside, run)
		if err == nil {
			err = b.loadPositions(r, backlogSpace(r.cfg.Name), bl.id+"/", byPartition)
		}
	}
	if err != nil {
		for _, f := range st.feeders {
			f.released()
		}
		return nil, err
	}
	if r.isUnclean(up) && r.cfg.AfterCrash == ReadBack && r.cfg.Delivery != ExactlyOnce {
		b.log.Info("last run had no end; partitions are read back before anything is sent", "route", r.cfg.Name, "upstream", up.Name())
		for _, f := range st.feeders {
			f.crashEnd = f.end()
		}
	}
	for _, f := range st.feeders {
		f.pausesChanged()
		if f.backlog != nil {
			f.mu.Lock()
			f.commitLocked() // a new one keeps more than it needs
			f.mu.Unlock()
		}
	}
	return st, nil
}

// start runs st until ctx ends, or is stopped; what it has in the air until sendCtx ends.
func (st *stint) start(ctx, sendCtx context.Context) {
	ctx, st.stopFeeding = context.WithCancel(ctx)
	sendCtx, st.stopSending = context.WithCancel(sendCtx)
	for _, f := range st.own {
		st.feeding.Go(func() { f.feed(ctx) })
		if w := f.watch; w != nil {
			st.feeding.Go(func() { f.await(ctx, w) })
		}
		st.carry(ctx, sendCtx, f)
	}
	var aside []func() (tails *sync.WaitGroup)
	for _, run := range st.aside {
		ctx, stopFeeding := context.WithCancel(ctx)
		sendCtx, stopSending := context.WithCancel(sendCtx)
		run.stop = func() { stopFeeding(); stopSending() }
		aside = append(aside, func() *sync.WaitGroup { return st.carryAside(ctx, sendCtx, run) })
	}
	if len(aside) > 0 {
		st.feeding.Go(func() { // a newer one waits for the tails of the older, and not for lanes that are held
			for _, carry := range aside {
				if carry().Wait(); ctx.Err() != nil {
					return
				}
			}
		})
	}
}

// carry runs all of f but its tail.
func (st *stint) carry(ctx, sendCtx context.Context, f *feeder) {
	st.feeding.Go(func() { f.catchUp(ctx) })
	if f.exactly != nil {
		st.sending.Go(func() { f.exactly.Run(sendCtx) })
	}
}

// carryAside runs the feeders of a backlog.
func (st *stint) carryAside(ctx, sendCtx context.Context, run *backlogRun) (tails *sync.WaitGroup) {
	tails = new(sync.WaitGroup)
	for _, f := range run.feeders {
		f.mu.Lock()
		f.waiting, f.progress = false, time.Now()
		f.mu.Unlock()
		st.carry(ctx, sendCtx, f)
		tails.Go(func() { f.feed(ctx) })
	}
	return tails
}

// stints are those of all routes now.
func (b *Bridge) stints() []*stint {
	out := make([]*stint, 0, len(b.routes))
	for _, r := range b.routes {
		out = append(out, r.stint.Load())
	}
	return out
}

// feeders are those of all routes now.
func (b *Bridge) feeders() (out []*feeder) {
	for _, st := range b.stints() {
		out = append(out, st.feeders...)
	}
	return out
}

// exactlyOn is what delivers exactly once on up: the same for all stints there, so that it knows whether another gateway has
// been there meanwhile.
func (b *Bridge) exactlyOn(r *route, up *upstream, partition int, backlog string) *kafka.Exactly {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := fmt.Sprintf("forebay/%s/%s/%d", r.gatewayID, r.cfg.Name, partition)
	if backlog != "" {
		id += "/" + backlog
	}
	key := up.Name() + " " + id
	if r.exactly[key] == nil {
		epoch, before := b.epochs(r, partition)
		r.exactly[key] = up.NewExactly(id, epoch, before...)
	}
	return r.exactly[key]
}

// epochs are those of positions in Kafka: that of this spool, and those of the spools that it was restored from, which may have gone
// on to deliver other records under the offsets that this one has given since.
func (b *Bridge) epochs(r *route, partition int) (now string, before []kafka.Epoch) {
	id := b.spoolID
	for i := range b.forks {
		before = append(before, kafka.Epoch{Name: id + "/" + r.mapping(), Until: uint64(b.forks[i].End(r.cfg.Stream, partition))})
		id = b.spoolID + "~" + b.forks[i].ID
	}
	return id + "/" + r.mapping(), before
}

// upstream is where the route's records go now.
func (r *route) upstream() *upstream { return r.stint.Load().up }

// How long a stint that ends waits for dead letters on their way to the disk, and for its positions.
const (
	leaveGraves = time.Second
	leaveSave   = 10 * time.Second
)

// endStint ends st: it sends nothing more, waits until ctx ends for what is in the air, stores where each lane is, and moves the
// cursor for the last time. It returns how many records have no outcome: they may be in the cluster. Those are given up if the route goes
// elsewhere.
func (b *Bridge) endStint(ctx context.Context, st *stint, elsewhere bool) (unknown int) {
	st.stopFeeding()
	st.feeding.Wait()
	gctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveGraves)
	defer cancel()
	for _, f := range st.feeders {
		f.settle(ctx)
		f.settleGraves(gctx)
		f.closeGraves()
	}
	st.stopSending()
	st.sending.Wait() // a commit that is under way has an outcome, or has timed out
	for _, f := range st.feeders {
		f.withdraw()
		unknown += f.part()
	}
	if unknown > 0 && elsewhere {
		st.up.Renew(unknown)
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), leaveSave)
	defer cancel()
	b.savingMu.Lock()
	defer b.savingMu.Unlock()
	for _, f := range st.feeders {
		for {
			more, err := b.saveFeeder(ctx, f)
			if err != nil {
				b.log.Warn("positions of lanes are not stored; the next upstream gets records again from the cursor on", "route", st.r.cfg.Name, "err", err)
			}
			if err != nil || !more {
				break
			}
		}
		f.retire()
	}
	return unknown
}

// nextStint makes the stint behind old, nil when ctx ends before its positions could be read.
func (b *Bridge) nextStint(ctx context.Context, r *route, old *stint, up *upstream) *stint {
	st, err := b.newStint(r, up)
	for told := false; err != nil; told = true { // they could be read at the start
		if !told {
			b.log.Error("positions of the route cannot be read; it waits", "route", r.cfg.Name, "err", err)
		}
		if !sleep(ctx, readPause) {
			return nil
		}
		st, err = b.newStint(r, up)
	}
	if up == old.up {
		st.behind(old)
	}
	r.setUnclean(up, true)
	r.departedMu.Lock()
	r.departed = append(r.departed, old.feeders...)
	r.departedMu.Unlock()
	r.sweep()
	r.stint.Store(st)
	for _, f := range st.feeders { // a pause that came after they were made went to those before
		f.pausesChanged()
	}
	return st
}

// behind has each feeder know whose flights it has to wait for, lane by lane: those of the one that had its records before.
func (st *stint) behind(old *stint) {
	for _, f := range st.feeders {
		for _, was := range old.feeders {
			same := was.backlog == f.backlog || was.backlog == nil && !slices.ContainsFunc(old.aside, func(run *backlogRun) bool { return run.bl == f.backlog })
			if was.partition == f.partition && same && was.inAir() {
				f.before = was
			}
		}
	}
}

// inAir reports whether f, or one before it, has something in the air.
func (f *feeder) inAir() bool {
	f.mu.Lock()
	flying, before := f.flying > 0, f.before
	f.mu.Unlock()
	return flying || before != nil && before.inAir()
}

// lingers reports whether a feeder before l's has something in the air on the same lane: what the partition has is not known before it
// has landed.
func (l *lane) lingers() bool {
	for f := l.f.before; f != nil; {
		f.mu.Lock()
		flying := slices.ContainsFunc(f.lanes, func(was *lane) bool {
			return was.flight != nil && was.partition == l.partition && was.out.topic.Name == l.out.topic.Name
		})
		before := f.before
		f.mu.Unlock()
		if flying {
			return true
		}
		f = before
	}
	if !l.f.before.inAir() {
		l.f.before = nil
	}
	return false
}

// overtakes reports whether an older backlog has something left for l's partition.
func (l *lane) overtakes() bool {
	return slices.ContainsFunc(l.f.older, func(f *feeder) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.ContainsFunc(f.lanes, func(was *lane) bool {
			return (was.detached || was.busy()) && (was.partition == l.partition || was.partition < 0) && was.out.topic.Name == l.out.topic.Name
		})
	})
}

// withdraw takes back what has not left for Kafka yet: flights that wait for their partition, which another feeder's has.
func (f *feeder) withdraw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lanes {
		if l.flight == nil || f.exactly != nil || !f.up.Withdraw(l.flight) {
			continue
		}
		l.again(l.flight.Messages)
		l.flight = nil
		f.flying--
	}
}

// retire has f move nothing any more, whatever lands.
func (f *feeder) retire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retired = true
	for _, l := range f.lanes {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
}

// released gives back what a retired feeder has of its upstream, false while something of it is in the air.
func (f *feeder) released() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flying > 0 {
		return false
	}
	f.unwatch()
	for _, o := range f.outlets {
		f.up.Release(o.topic)
	}
	clear(f.outlets)
	f.up.lanes.Add(-int64(len(f.lanes)))
	f.lanes = nil
	return true
}

// sweep forgets the feeders of earlier stints that have landed.
func (r *route) sweep() {
	r.departedMu.Lock()
	defer r.departedMu.Unlock()
	r.departed = slices.DeleteFunc(r.departed, (*feeder).released)
}

// lingers reports whether an earlier stint has something in the air on up: what the partitions have is not known before it has
// landed.
func (r *route) lingers(up *upstream) bool {
	r.departedMu.Lock()
	defer r.departedMu.Unlock()
	return slices.ContainsFunc(r.departed, func(f *feeder) bool { return f.up == up })
}

// settleGraves waits for dead letters on their way.
func (f *feeder) settleGraves(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.graves.at) > 0 && ctx.Err() == nil {
		f.waitLocked(ctx, time.Second)
	}
	f.commitLocked()
}

// noted makes changes of the spool's state durable.
func (b *Bridge) noted(ctx context.Context, changes ...spool.Change) error {
	if len(changes) == 0 {
		return nil
	}
	done := make(durable, 1)
	if err := b.source.Append(ctx, spool.Entry{Changes: changes, Done: done}); err != nil {
		return err
	}
	return done.wait(ctx)
}
