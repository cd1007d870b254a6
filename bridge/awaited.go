package bridge

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Awaiter waits for a record to be dealt with on every route that must have it: acknowledged by all in-sync replicas, durable in the
// dead letters, or left out by the route's own rules.
type Awaiter interface {
	// Settled is called at most once, with locks of the bridge held: it must not block, nor call the bridge. reason is empty when Kafka
	// has the record, Unrouted when no route takes it, and Lost.
	Settled(reason string)

	// Doubt says why the record cannot be expected in time. It may come in time all the same: Doubt may be called again, and Settled,
	// unless Over says otherwise. It is called like Settled.
	Doubt(reason string)

	// Over reports that nobody waits any more. It must not block.
	Over() bool
}

// What an Awaiter is told; in doubt also string(Paused).
const (
	Unrouted    = "unrouted"    // no route that counts takes the record
	Lost        = "lost"        // it is gone from the spool
	Unreachable = "unreachable" // in doubt: the upstream has not answered for as long as the stream's acknowledgements may wait
	Held        = "held"        // in doubt: the lane waits for somebody to act
	Behind      = "behind"      // in doubt: the oldest record before it is older than that
)

// Await is what Options say about a stream whose publishers wait for Kafka.
type Await struct {
	Routes  []string // that must have a record; empty: all that read the stream
	Timeout time.Duration
}

// watch has those who wait for records of a route looked after, if there may be any.
func (b *Bridge) watch(r *route, partitions int) {
	a, ok := b.awaits[r.cfg.Stream]
	if !ok || len(a.Routes) > 0 && !slices.Contains(a.Routes, r.cfg.Name) {
		return
	}
	list := b.watched[r.cfg.Stream]
	if list == nil {
		list = make([][]*watch, partitions)
		b.watched[r.cfg.Stream] = list
	}
	for p := range partitions {
		_, end := b.source.Bounds(r.cfg.Stream, p)
		w := &watch{timeout: a.Timeout, earlier: end, newC: make(chan struct{}, 1)}
		r.watches = append(r.watches, w)
		list[p] = append(list[p], w)
	}
}

// Await has to told when the record at an offset of a stream is dealt with. The stream is one of Options.Await, the record is durable.
func (b *Bridge) Await(stream string, partition int, at spool.Offset, to Awaiter) {
	list := b.watched[stream]
	if partition >= len(list) || len(list[partition]) == 0 {
		to.Settled(Unrouted)
		return
	}
	w := &wanted{to: to}
	w.left.Store(int32(len(list[partition])))
	for _, on := range list[partition] {
		on.add(ticket{at: at, wanted: w})
	}
}

// AwaitEarlier has to told when everything is dealt with that was in the stream when the bridge was made.
func (b *Bridge) AwaitEarlier(stream string, to Awaiter) {
	w := &wanted{to: to}
	w.taken.Store(true)
	w.left.Store(1) // for this call
	for _, list := range b.watched[stream] {
		for _, on := range list {
			if on.earlier > 0 {
				w.left.Add(1)
				on.add(ticket{at: on.earlier - 1, all: true, wanted: w})
			}
		}
	}
	w.done(true)
}

// Away says why what comes to a partition of a stream now cannot arrive in time, empty when that is not known: a route is paused, its
// upstream has not answered for as long as an acknowledgement may wait, or what is before it has waited for so long. Who is not let in for
// that is something that the route owes all the same: it goes on with another upstream for it, if it has one.
func (b *Bridge) Away(stream string, partition int) (reason string) {
	if list := b.watched[stream]; partition < len(list) {
		for _, on := range list[partition] {
			if reason = on.away(); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// wanted is one record that somebody waits for, on all its routes.
type wanted struct {
	to    Awaiter
	left  atomic.Int32
	taken atomic.Bool // by a route
	over  atomic.Bool
}

// done notes that a route is done with the record.
func (w *wanted) done(taken bool) {
	if taken {
		w.taken.Store(true)
	}
	if w.left.Add(-1) > 0 {
		return
	}
	if w.taken.Load() {
		w.settle("")
		return
	}
	w.settle(Unrouted)
}

func (w *wanted) settle(reason string) {
	if !w.over.Swap(true) {
		w.to.Settled(reason)
	}
}

func (w *wanted) idle() bool { return w.over.Load() || w.to.Over() }
