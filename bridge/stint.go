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
	feeders []*feeder

	feeding     sync.WaitGroup
	stopFeeding context.CancelFunc
	sending     sync.WaitGroup // transactions
	stopSending context.CancelFunc
}

// newStint makes the feeders of r on up, and gives them what earlier ones have left in the spool.
func (b *Bridge) newStint(r *route, up *upstream) (*stint, error) {
	st := &stint{r: r, up: up, stopFeeding: func() {}, stopSending: func() {}}
	for p := range r.partitions {
		st.feeders = append(st.feeders, newFeeder(b, r, up, p))
	}
	if err := b.loadPositions(r, st.feeders); err != nil {
		for _, f := range st.feeders {
			f.released()
		}
		return nil, err
	}
	if r.isUnclean(up) && r.cfg.AfterCrash == ReadBack && r.cfg.Delivery != ExactlyOnce {
		b.log.Info("last run had no end; partitions are read back before anything is sent", "route", r.cfg.Name, "upstream", up.Name())
		for _, f := range st.feeders {
			_, f.crashEnd = f.source.Bounds(r.cfg.Stream, f.partition)
		}
	}
	for _, f := range st.feeders {
		f.pausesChanged()
	}
	return st, nil
}

// start runs st until ctx ends, or is stopped; what it has in the air until sendCtx ends.
func (st *stint) start(ctx, sendCtx context.Context) {
	ctx, st.stopFeeding = context.WithCancel(ctx)
	sendCtx, st.stopSending = context.WithCancel(sendCtx)
	for _, f := range st.feeders {
		st.feeding.Go(func() { f.feed(ctx) })
		st.feeding.Go(func() { f.catchUp(ctx) })
		if w := f.watch; w != nil {
			st.feeding.Go(func() { f.await(ctx, w) })
		}
		if f.exactly != nil {
			st.sending.Go(func() { f.exactly.Run(sendCtx) })
		}
	}
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
func (r *route) exactlyOn(up *upstream, partition int, epoch string) *kafka.Exactly {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := fmt.Sprintf("forebay/%s/%s/%d", r.gatewayID, r.cfg.Name, partition)
	key := up.Name() + " " + id
	if r.exactly[key] == nil {
		r.exactly[key] = up.NewExactly(id, epoch)
	}
	return r.exactly[key]
}

// upstream is where the route's records go now.
func (r *route) upstream() *upstream { return r.stint.Load().up }

// How long a stint that ends waits for dead letters on their way to the disk, and for its positions.
const (
	leaveGraves = time.Second
	leaveSave   = 10 * time.Second
)

// endStint ends st: it sends nothing more, waits until ctx ends for what is in the air, stores where each lane is, and moves the
// cursor for the last time. It returns how many records have no outcome: they may be in the cluster.
func (b *Bridge) endStint(ctx context.Context, st *stint) (unknown int) {
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
	if unknown > 0 {
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
