package bridge

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// splitting is what is known from one look at a route with drain: live_first to the next. A route is split when its upstream
// acknowledges its own records again, and those are old: not while nothing is acknowledged, or each look would put a bit more aside.
type splitting struct {
	stint   *stint
	acked   uint64
	ackedAt time.Time
	behind  time.Time // since when the route is behind while its upstream acknowledges
	after   time.Time // not before: the last one could not be made
}

// How routes are split.
const (
	acksFor    = 3 * time.Second  // acknowledgements come: the last one is not older, nor older than half of live_after
	splitAfter = lookEvery        // a backlog that is gone by the next look is none
	splitLand  = time.Second      // for what is in the air; it may also land later
	splitAgain = 30 * time.Second // behind one that could not be made: it ends a stint all the same
	elseEvery  = 5 * time.Second
)

// wantsSplit reports whether r is to put aside what it has not delivered.
func (r *route) wantsSplit(now time.Time) bool {
	s, st := &r.splitting, r.stint.Load()
	if s.stint != st {
		*s = splitting{stint: st, after: s.after}
	}
	acked, behind := uint64(0), false
	for _, f := range st.own {
		n, b := f.isBehind(time.Duration(r.cfg.LiveAfter), true)
		acked, behind = acked+n, behind || b
	}
	if acked != s.acked {
		s.acked, s.ackedAt = acked, now
	}
	if !behind || now.Before(s.after) || s.ackedAt.IsZero() || now.Sub(s.ackedAt) > r.acksFor() || r.isPaused() || st.taken() || len(r.backlogged()) >= maxBacklogs {
		s.behind = time.Time{}
		return false
	}
	if s.behind.IsZero() {
		s.behind = now
	}
	return now.Sub(s.behind) >= splitAfter
}

// acksFor is how old the last acknowledgement of an upstream that acknowledges may be. When an upstream goes away, records are older than
// live_after only after that: a split would then put aside the first moments of the outage alone, and end a stint for it.
func (r *route) acksFor() time.Duration { return min(acksFor, time.Duration(r.cfg.LiveAfter)/2) }

// isWatched reports whether somebody has to look after r's upstream or its backlogs.
func (r *route) isWatched() bool {
	return r.hasStandby() || r.cfg.Drain == LiveFirst || len(r.stint.Load().aside) > 0
}

// lookAside says what has to be done about r's backlogs, nil for nothing.
func (b *Bridge) lookAside(r *route, now time.Time) func(ctx, sendCtx context.Context) {
	for _, run := range r.stint.Load().aside {
		if run.look(b, r, now) {
			return func(ctx, _ context.Context) { b.endBacklog(ctx, r, run) }
		}
	}
	if r.cfg.Drain == LiveFirst && r.wantsSplit(now) {
		return func(ctx, sendCtx context.Context) { b.split(ctx, sendCtx, r) }
	}
	return nil
}

// isBehind reports whether what f sends next was received longer ago than limit, and how much it got acknowledged. A lane that is held or
// paused does not count, nor, with flowing, one that is stuck: nothing would go out sooner for a split.
func (f *feeder) isBehind(limit time.Duration, flowing bool) (acked uint64, behind bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mayBeSplitLocked() {
		return f.acked, false
	}
	old := func(received time.Time) bool { return f.wall().Sub(received) > limit }
	if f.lastHead != 0 && f.pos < f.end() && old(time.Unix(0, f.lastHead)) {
		return f.acked, true
	}
	now := time.Now()
	return f.acked, slices.ContainsFunc(f.lanes, func(l *lane) bool {
		if !l.detached || l.partition < 0 || l.paused || l.held || l.poison {
			return false
		}
		if flowing && (l.failures > 0 || l.check != checked || now.Sub(l.progress) > f.r.acksFor()) {
			return false
		}
		t, known := l.oldest()
		return known && old(t)
	})
}

// mayBeSplitLocked reports whether the cursor and the lanes' positions say what is delivered.
func (f *feeder) mayBeSplitLocked() bool {
	return f.rewind == nil // else the tail is below the cursor
}

// waitsBehind reports whether the oldest record that f has not delivered was received longer ago than limit, by a look into the spool: a
// lane does not always know. One backlog for all partitions is better than one for each.
func (f *feeder) waitsBehind(limit time.Duration) bool {
	f.mu.Lock()
	at, may := f.pos, f.mayBeSplitLocked()
	for _, l := range f.lanes {
		if !l.paused && !l.held && !l.poison {
			at = min(at, l.unacked())
		}
	}
	f.mu.Unlock()
	if !may || at >= f.end() {
		return false
	}
	rd, err := f.source.NewReader(f.r.cfg.Stream, f.partition, at)
	if err != nil {
		return false
	}
	defer rd.Close()
	b, ok, err := rd.TryNext()
	return err == nil && ok && len(b.Records) > 0 && f.wall().Sub(time.Unix(0, b.Records[0].ReceivedAt)) > limit
}

// split puts aside what r has not delivered of the partitions that are behind, and begins another stint on the same upstream, in which
// the backlog has feeders of its own. When that cannot be made durable, or nobody knows what the cluster has, the route goes on as it was.
func (b *Bridge) split(ctx, sendCtx context.Context, r *route) {
	old := r.stint.Load()
	bl, before := newBacklog(b.now()), len(r.backlogged())
	var behind []*feeder
	for _, f := range old.own {
		if _, is := f.isBehind(time.Duration(r.cfg.LiveAfter), false); is || f.waitsBehind(time.Duration(r.cfg.LiveAfter)) {
			behind = append(behind, f)
		}
	}
	if len(behind) == 0 {
		return
	}
	landCtx, cancel := context.WithTimeout(ctx, splitLand)
	unknown := b.endStint(landCtx, old, false)
	cancel()
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveSave)
	defer cancel()
	records, sound := uint64(0), true
	for _, f := range behind {
		at, low, ok := f.settled()
		to := f.end()
		if sound = sound && ok; low < to {
			bl.parts[f.partition], records = span{at, to}, records+uint64(to-low)
		}
	}
	if sound && len(bl.parts) > 0 && ctx.Err() == nil {
		if err := b.noteBacklog(sctx, r, bl); err != nil {
			b.log.Warn("route goes on oldest first: the spool cannot note its backlog", "route", r.cfg.Name, "err", err)
			b.undoBacklog(ctx, r, bl)
		} else {
			r.setBacklogs(append(r.backlogged(), bl))
			r.counts.splits.Add(1)
			b.log.Info("route is behind; it goes on with new records, and delivers its backlog beside them", "route", r.cfg.Name, "backlog", bl.id,
				"offsets", bl.offsets(), "records", records, "records_of_unknown_outcome", unknown)
		}
	}
	if unknown == 0 && old.isEnded() {
		r.setUnclean(old.up, false) // for the next stint: nothing is to be read back. The spool has it that the route runs
	}
	if len(r.backlogged()) == before {
		r.splitting.after = time.Now().Add(splitAgain)
	}
	st := b.nextStint(ctx, r, old, old.up)
	if st == nil {
		return
	}
	st.start(ctx, sendCtx)
}

// settled is where f's tail is, once f is retired, and the lowest offset that is not delivered: of a lane that has a position of its own. It
// reports whether that is all that is to be known: nothing above is delivered, unless a lane's position in the spool says so.
func (f *feeder) settled() (at, low spool.Offset, sound bool) {
	low = f.lowest()
	f.mu.Lock()
	defer f.mu.Unlock()
	unsaved := slices.ContainsFunc(f.lanes, func(l *lane) bool { return l.detached && (!l.stored || l.savedAt != l.unacked()) })
	return f.pos, low, f.committed == f.pos && f.mayBeSplitLocked() && !unsaved
}

// undoBacklog takes back a split that may have become durable, or not. Nothing may be sent before one of both is known, or a later start
// would deliver the backlog again. It gives up when ctx ends: then nothing is sent, and the next start takes up what it finds.
func (b *Bridge) undoBacklog(ctx context.Context, r *route, bl *backlog) {
	for told := false; ; told = true {
		uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveSave)
		err := b.noted(uctx, spool.Change{Space: backlogSpace(r.cfg.Name), Key: bl.id})
		if err == nil && bl.cursor != nil {
			err = b.dropBacklog(uctx, r, bl)
		}
		cancel()
		if err == nil {
			return
		}
		if !told {
			b.log.Error("a backlog that was not made cannot be cleared away; the route waits", "route", r.cfg.Name, "backlog", bl.id, "err", err)
		}
		if !sleep(ctx, readPause) {
			return
		}
	}
}

// drained reports whether f, of a backlog, has delivered everything.
func (f *feeder) drained() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.committed >= f.until && f.pos >= f.until && f.rewind == nil && len(f.graves.at) == 0 && !slices.ContainsFunc(f.lanes, func(l *lane) bool { return l.busy() || l.detached })
}

// look passes bl's cursors on where it has nothing to keep, and reports whether it is delivered.
func (run *backlogRun) look(b *Bridge, r *route, now time.Time) (delivered bool) {
	if run.over {
		return false
	}
	done := make(map[int]bool, len(run.feeders))
	for _, f := range run.feeders {
		done[f.partition] = f.drained()
	}
	if now.Sub(run.passed) >= elseEvery {
		run.passed = now
		b.passElsewhere(r, run.bl, func(p int) bool { return done[p] })
	}
	return !slices.ContainsFunc(run.feeders, func(f *feeder) bool { return !done[f.partition] })
}

// endBacklog forgets a backlog that is delivered.
func (b *Bridge) endBacklog(ctx context.Context, r *route, run *backlogRun) {
	if err := b.forgetBacklog(ctx, r, run); err != nil {
		if !run.bl.told.Swap(true) && ctx.Err() == nil {
			b.log.Warn("spool does not note that a backlog is delivered", "route", r.cfg.Name, "backlog", run.bl.id, "err", err)
		}
		return
	}
	run.over = true
	run.stop()
	r.mu.Lock()
	maps.DeleteFunc(r.exactly, func(key string, _ *kafka.Exactly) bool { return strings.HasSuffix(key, "/"+run.bl.id) })
	r.mu.Unlock()
	for _, f := range run.feeders {
		f.released()
	}
	b.log.Info("backlog is delivered", "route", r.cfg.Name, "backlog", run.bl.id, "after", b.now().Sub(run.bl.since))
}

func (b *Bridge) forgetBacklog(ctx context.Context, r *route, run *backlogRun) error {
	bl := run.bl
	// The route's own cursor first, and that old positions are gone: without the entry nothing says any more that they are of a backlog.
	for _, f := range r.stint.Load().own {
		for f.owesDeletions() {
			if err := b.saveOnce(ctx); err != nil {
				return err
			}
		}
	}
	b.savingMu.Lock() // a deletion that is on its way is durable, or is owed again
	owes := slices.ContainsFunc(r.stint.Load().own, (*feeder).owesDeletions)
	b.savingMu.Unlock()
	if owes {
		return errOwed
	}
	for _, c := range []Cursor{r.cursor, r.keep} {
		if err := c.Flush(ctx); err != nil {
			return err
		}
	}
	if err := b.noted(ctx, spool.Change{Space: backlogSpace(r.cfg.Name), Key: bl.id}); err != nil {
		return err
	}
	for _, f := range run.feeders {
		f.retire()
	}
	r.setBacklogs(slices.DeleteFunc(r.backlogged(), func(x *backlog) bool { return x == bl }))
	if err := b.dropBacklog(ctx, r, bl); err != nil { // the next start does it
		b.log.Warn("cursors of a delivered backlog are not dropped", "route", r.cfg.Name, "backlog", bl.id, "err", err)
	}
	return nil
}

var errOwed = errors.New("old positions of lanes are not deleted yet")

func (f *feeder) owesDeletions() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.dropped) > 0
}
