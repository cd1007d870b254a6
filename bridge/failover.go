package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// A route with failover is on the first of its upstreams, or on another one while the first is of no use. What decides are
// acknowledgements: an upstream is of no use when a lane of the route has had something to deliver for so long and none of the
// route's lanes got anything acknowledged, whatever the connections say. One stuck lane beside others that flow moves nothing.
//
// Nothing is sent for trial to an upstream that the route is not on. It is taken for usable while its cluster answers and the
// metadata tell of no fault of the route's topic; should it not acknowledge, the route moves again, each time more slowly.
//
// The choice is state of the spool, made durable before the first record goes the new way:
//
//	key    <route>
//	value  1 <upstream> <Unix time in nanoseconds since when> <auto or operator> <reason>
//
// where 1 is the version. There is no entry while the route is on its first upstream.
const (
	activeSpace   = "bridge-active"
	activeVersion = "1"
)

// failover is where a route may go, where it is, and why.
type failover struct {
	list []*upstream // the first is where the route belongs

	mu     sync.Mutex
	active *upstream
	since  time.Time // zero: from the start
	by     string    // auto or operator
	reason string

	hindered map[string]string // the others that cannot be used, and why

	missed atomic.Bool // somebody was told that the upstream is away, and may have kept what he has

	moving bool // the next are those of who watches
	judge  judge
}

const (
	byItself   = "auto"
	byOperator = "operator"
)

// judge is what is known about a route's upstreams from one look to the next.
type judge struct {
	progress time.Time                  // when the route was last seen to have nothing to deliver, or to deliver something
	acked    uint64                     // of the stint
	others   uint64                     // dead letters, and waiting for the route's rate
	strikes  int                        // moves in a row without an acknowledgement between
	returns  int                        // times in a row that the first upstream was left soon after the return to it
	backAt   time.Time                  // the return
	well     map[*upstream]time.Time    // since when it is usable without a break; no entry when it is not
	topics   map[*upstream]*kafka.Topic // of a route with one topic: what is known there of it
}

// How routes are watched.
const (
	lookEvery    = 250 * time.Millisecond
	aliveAgain   = 2 * time.Second // a sign of life that is older is asked for
	aliveFor     = 10 * time.Second
	maxPatience  = 4                // doublings of failover.after and fail_back_after
	leaveFlights = 10 * time.Second // for what is in the air to an upstream that acknowledges
)

// move is a request to go elsewhere.
type move struct {
	r    *route
	to   *upstream
	done chan error
}

func (r *route) hasStandby() bool { return len(r.failover.list) > 1 }

// where is the upstream that the route is on, since when, and why it is not the first.
func (fo *failover) where() (up *upstream, since time.Time, by, reason string) {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	return fo.active, fo.since, fo.by, fo.reason
}

// FailoverState is where a route with failover is.
type FailoverState struct {
	Upstreams []string  `json:"upstreams"` // in the order of choice
	Standby   bool      `json:"on_standby"`
	Since     time.Time `json:"since,omitzero"`
	By        string    `json:"by,omitempty"` // auto or operator
	Reason    string    `json:"reason,omitempty"`

	Hindered map[string]string `json:"hindered"` // the others that it could not go to now, and why
}

func (fo *failover) state() *FailoverState {
	if len(fo.list) == 1 {
		return nil
	}
	up, since, by, reason := fo.where()
	fo.mu.Lock()
	s := &FailoverState{Standby: up != fo.list[0], Since: since, By: by, Reason: reason, Hindered: maps.Clone(fo.hindered)}
	fo.mu.Unlock()
	for _, u := range fo.list {
		s.Upstreams = append(s.Upstreams, u.Name())
	}
	return s
}

// standby makes h that the route is not on its first upstream, if nothing is worse.
func (r *route) standby(h *RouteHealth) {
	fo := h.Failover
	if fo == nil || !fo.Standby || h.State != OK && h.State != Idle {
		return
	}
	h.State, h.Since, h.Reason = Degraded, fo.Since, "failover"
	h.Where = fmt.Sprintf("upstream %s instead of %s, by %s: %s", h.Upstream, fo.Upstreams[0], fo.By, fo.Reason)
	h.Hint = fmt.Sprintf("forebay route failover %s --to %s", h.Route, fo.Upstreams[0])
	if r.cfg.Failover.FailBack == FailBackAuto && fo.By == byItself {
		h.Hint = fmt.Sprintf("it goes back when %s has been healthy for %v; at once: %s", fo.Upstreams[0], r.cfg.Failover.FailBackAfter, h.Hint)
	}
}

// loadActive takes up where the routes were.
func (b *Bridge) loadActive() error {
	return b.source.Load(activeSpace, func(key string, value []byte) error {
		fields := strings.SplitN(string(value), " ", 5)
		if fields[0] != activeVersion {
			return fmt.Errorf("active upstream of %q: %w", key, spool.ErrUnsupported)
		}
		if len(fields) != 5 {
			return fmt.Errorf("active upstream of %q = %q is damaged", key, value)
		}
		ns, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return fmt.Errorf("active upstream of %q = %q is damaged: %w", key, value, err)
		}
		r := b.route(key)
		if r == nil {
			return nil
		}
		fo := &r.failover
		for _, up := range fo.list {
			if up.Name() == fields[1] {
				fo.active, fo.since, fo.by, fo.reason = up, time.Unix(0, ns), fields[3], fields[4]
				return nil
			}
		}
		b.log.Warn("the upstream that the route was on is not its any more; it goes on with the first", "route", key,
			"before", fields[1], "upstream", fo.active.Name())
		return nil
	})
}

// activeNow is what notes where a route is.
func activeNow(r *route, up *upstream, since time.Time, by, reason string) spool.Change {
	c := spool.Change{Space: activeSpace, Key: r.cfg.Name}
	if up != r.failover.list[0] {
		c.Value = fmt.Appendf(nil, "%s %s %d %s %s", activeVersion, up.Name(), since.UnixNano(), by, reason)
	}
	return c
}

// Failover has a route go on with another one of its upstreams, and stay there: it does not go back by itself from where an
// operator has sent it, but it does leave an upstream that acknowledges nothing. It returns when the route is there.
func (b *Bridge) Failover(ctx context.Context, name, to string) error {
	r := b.route(name)
	if r == nil {
		return fmt.Errorf("%q: %w", name, ErrUnknownRoute)
	}
	var names []string
	var up *upstream
	for _, u := range r.failover.list {
		names = append(names, u.Name())
		if u.Name() == to {
			up = u
		}
	}
	switch {
	case !r.hasStandby():
		return fmt.Errorf("route %s has no other upstream: list one under failover.to: %w", name, spool.ErrInvalid)
	case up == nil:
		return fmt.Errorf("route %s does not go to upstream %q; it has %s: %w", name, to, strings.Join(names, ", "), spool.ErrInvalid)
	}
	if !b.enter() {
		return ErrClosed
	}
	defer b.leave()
	b.mu.Lock()
	started := b.started
	b.mu.Unlock()
	if !started {
		return ErrClosed
	}
	m := move{r, up, make(chan error, 1)}
	select {
	case b.moveC <- m:
	case <-ctx.Done():
		return ctx.Err()
	case <-b.unmoved:
		return ErrClosed
	}
	select {
	case err := <-m.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("route %s is on its way to %s: %w", name, to, ctx.Err())
	}
}

// ErrCannotMove means that a route cannot go to another upstream now.
var ErrCannotMove = errors.New("the route cannot move now")

// watchOver moves routes from upstream to upstream until ctx ends.
func (b *Bridge) watchOver(ctx, sendCtx context.Context) {
	defer close(b.unmoved)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	ended := make(chan *route, len(b.routes))
	begin := func(m move, reason string) {
		m.r.failover.moving = true
		b.feeding.Go(func() {
			m.done <- b.move(ctx, sendCtx, m, reason)
			ended <- m.r
		})
	}
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-ended:
			r.failover.moving = false
			continue
		case m := <-b.moveC:
			switch {
			case m.r.failover.moving:
				m.done <- fmt.Errorf("route %s is on its way already: %w", m.r.cfg.Name, ErrCannotMove)
			case m.r.stint.Load().taken():
				m.done <- fmt.Errorf("route %s: another gateway with the same gateway.id has taken over: %w", m.r.cfg.Name, ErrCannotMove)
			case m.r.lingers(m.to):
				m.done <- fmt.Errorf("upstream %s: records of the route's last time there have no outcome yet; try again when it answers: %w", m.to.Name(), ErrCannotMove)
			default:
				begin(m, byOperator)
			}
			continue
		case <-look.C:
		}
		now := time.Now()
		for _, r := range b.routes {
			if !r.hasStandby() {
				continue
			}
			r.sweep()
			if r.failover.moving {
				continue
			}
			if to, reason := r.look(now); to != nil {
				begin(move{r, to, make(chan error, 1)}, reason)
			}
		}
	}
}

// look decides whether r has to go elsewhere, and why.
func (r *route) look(now time.Time) (to *upstream, reason string) {
	fo, j, cfg := &r.failover, &r.failover.judge, &r.cfg.Failover
	active, _, by, _ := fo.where()
	j.watch(r, active, now)
	if r.stint.Load().taken() {
		return nil, ""
	}
	after, backAfter := time.Duration(cfg.After), time.Duration(cfg.FailBackAfter)
	if now.Sub(j.progress) >= after<<min(j.strikes, maxPatience) {
		for _, up := range fo.list {
			if up != active && !j.well[up].IsZero() && !r.lingers(up) {
				j.strikes++
				return up, r.complaint()
			}
		}
	}
	first := fo.list[0]
	if active == first && !j.backAt.IsZero() && now.Sub(j.backAt) >= backAfter<<min(j.returns, maxPatience) {
		j.backAt, j.returns = time.Time{}, 0 // it has held
	}
	if active == first || cfg.FailBack == FailBackNever || by == byOperator {
		return nil, ""
	}
	if well := j.well[first]; !well.IsZero() && now.Sub(well) >= backAfter<<min(j.returns, maxPatience) && !r.lingers(first) {
		return first, byReturn
	}
	return nil, ""
}

const byReturn = "fail_back"

// watch notes what can be seen of r and its upstreams.
func (j *judge) watch(r *route, active *upstream, now time.Time) {
	if j.well == nil {
		j.well, j.topics = make(map[*upstream]time.Time), make(map[*upstream]*kafka.Topic)
		j.progress = now
		if r.mapper.Constant() {
			for _, up := range r.failover.list {
				j.topics[up] = up.Topic(r.mapper.Text(), r.cfg.CreateTopics)
			}
		}
	}
	owes, acked := r.owes(now)
	if active.Up() {
		r.failover.missed.Store(false)
	}
	owes = owes || r.failover.missed.Load()
	others := r.counts.deadLettered.Load() + uint64(r.counts.limited.Load())
	if acked > j.acked {
		j.strikes = 0
	}
	if !owes || acked != j.acked || others != j.others || r.isPaused() {
		j.progress = now
	}
	j.acked, j.others = acked, others
	hindered := make(map[string]string)
	for _, up := range r.failover.list {
		if up == active {
			delete(j.well, up)
			continue
		}
		switch why := hindrance(up, j.topics[up], now); {
		case why != "":
			delete(j.well, up)
			hindered[up.Name()] = why
		case j.well[up].IsZero():
			j.well[up] = now
		}
	}
	r.failover.mu.Lock()
	r.failover.hindered = hindered
	r.failover.mu.Unlock()
}

// hindrance is the reason why a route should not go to up, empty when none is known.
func hindrance(up *upstream, topic *kafka.Topic, now time.Time) string {
	up.AliveSince(now.Add(-aliveAgain)) // asks
	if s := up.Status(); !s.Up || now.Sub(s.Alive) > aliveFor {
		reason, _ := kafka.ConnectionReason(s.ConnError)
		return cmp.Or(reason, "not_reachable")
	}
	if topic == nil {
		return ""
	}
	topic.Ask()
	s := topic.Status()
	switch {
	case s.Fault != nil:
		return s.Fault.Reason
	case s.Partitions == 0:
		return "topic_unknown"
	}
	for p := range s.Partitions {
		if v, faulty := topic.PartitionFault(p); faulty {
			return v.Reason
		}
	}
	return ""
}

// moved begins anew behind a move, which is at an end.
func (j *judge) moved(r *route, from, to *upstream, now time.Time) {
	wait := time.Duration(r.cfg.Failover.FailBackAfter) << min(j.returns, maxPatience)
	switch first := r.failover.list[0]; {
	case to == first:
		j.backAt = now
	case from == first && !j.backAt.IsZero():
		if now.Sub(j.backAt) < wait {
			j.returns++
		} else {
			j.returns = 0
		}
		j.backAt = time.Time{}
	}
	j.progress, j.acked = now, 0
	r.failover.missed.Store(false)
	clear(j.well)
}

// owes reports whether the route has something that its upstream should acknowledge now, and how much that has acknowledged since
// the route is there.
func (r *route) owes(now time.Time) (owes bool, acked uint64) {
	for _, f := range r.stint.Load().feeders {
		o, n := f.owes(now)
		owes, acked = owes || o, acked+n
	}
	return owes, acked
}

func (f *feeder) owes(now time.Time) (owes bool, acked uint64) {
	_, end := f.source.Bounds(f.r.cfg.Stream, f.partition)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owesLocked(now, end), f.acked
}

func (f *feeder) owesLocked(now time.Time, end spool.Offset) bool {
	if now.Before(f.catchFrom) { // the route's rate
		return false
	}
	if f.exactly != nil && !f.opened {
		return f.openErr != nil && f.committed < end
	}
	if f.placing != nil && !f.up.Up() { // the tail waits
		return true
	}
	for _, l := range f.lanes {
		if l.busy() && l.owes() {
			return true
		}
	}
	return false
}

// owes reports whether l waits for its upstream and not for somebody else: what Kafka will not take is refused everywhere.
func (l *lane) owes() bool {
	return !l.paused && !l.poison && (!l.held || l.verdict.Class == kafka.Fault)
}

// complaint is what is wrong with the upstream that the route is on.
func (r *route) complaint() string {
	st := r.stint.Load()
	if s := st.up.Status(); !s.Up {
		if reason, _ := kafka.ConnectionReason(s.ConnError); reason != "" {
			return reason
		}
	}
	h := RouteHealth{}
	for _, f := range st.feeders {
		f.examine(&h, time.Now())
	}
	return cmp.Or(h.Reason, "no_acknowledgement")
}

// taken reports whether another gateway with the same ID delivers the route's records: this one must not go and do so elsewhere.
func (st *stint) taken() bool {
	return slices.ContainsFunc(st.feeders, func(f *feeder) bool { return f.exactly != nil && f.exactly.Taken() })
}

// move ends the route's stint and begins one on another upstream.
func (b *Bridge) move(ctx, sendCtx context.Context, m move, reason string) error {
	r, fo := m.r, &m.r.failover
	by := byItself
	if reason == byOperator {
		by = byOperator
	}
	old := r.stint.Load()
	now := b.now()
	if m.to == old.up {
		if by == byOperator { // it stays
			if err := b.noted(ctx, activeNow(r, m.to, now, by, reason)); err != nil {
				return err
			}
			fo.set(m.to, now, by, reason)
		}
		return nil
	}
	// First: whatever happens from here on, a restart begins there. Positions are good for both.
	if err := b.noted(ctx, activeNow(r, m.to, now, by, reason), running(r, m.to)); err != nil {
		b.log.Error("route stays on its upstream: the spool cannot note where it goes", "route", r.cfg.Name, "upstream", old.up.Name(), "err", err)
		return err
	}
	wait := time.Duration(0)
	if reason == byReturn || reason == byOperator {
		wait = leaveFlights
	}
	leaveCtx, cancel := context.WithTimeout(ctx, wait)
	unknown := b.endStint(leaveCtx, old)
	cancel()
	if unknown == 0 && old.isEnded() {
		if err := b.unmark(context.WithoutCancel(ctx), []*stint{old}); err != nil {
			b.log.Warn("spool does not note that the route has ended on an upstream; it reads back when it returns", "route", r.cfg.Name, "err", err)
		}
	}
	st, err := b.newStint(r, m.to)
	for told := false; err != nil; told = true { // they could be read at the start
		if !told {
			b.log.Error("positions of the route cannot be read; it waits", "route", r.cfg.Name, "err", err)
		}
		if !sleep(ctx, readPause) {
			return err
		}
		st, err = b.newStint(r, m.to)
	}
	r.setUnclean(m.to, true)
	r.departedMu.Lock()
	r.departed = append(r.departed, old.feeders...)
	r.departedMu.Unlock()
	r.sweep()
	r.stint.Store(st)
	for _, f := range st.feeders { // a pause that came after they were made went to those before
		f.pausesChanged()
	}
	fo.set(m.to, now, by, reason)
	r.counts.moves.Add(1)
	fo.judge.moved(r, old.up, m.to, time.Now())
	b.log.Warn("route goes on with another upstream", "route", r.cfg.Name, "upstream", m.to.Name(), "before", old.up.Name(), "by", by,
		"reason", reason, "records_of_unknown_outcome", unknown)
	st.start(ctx, sendCtx)
	return nil
}

func (fo *failover) set(up *upstream, since time.Time, by, reason string) {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	fo.active, fo.since, fo.by, fo.reason = up, since, by, reason
}
