package bridge

import (
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

// leaveFlights is the time for what is in the air to an upstream that acknowledges.
const leaveFlights = 10 * time.Second

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
			if !r.isWatched() {
				continue
			}
			r.sweep()
			if r.failover.moving {
				continue
			}
			if r.hasStandby() {
				if to, reason := r.look(now); to != nil {
					begin(move{r, to, make(chan error, 1)}, reason)
					continue
				}
			}
			if work := b.lookAside(r, now); work != nil {
				r.failover.moving = true
				b.feeding.Go(func() {
					work(ctx, sendCtx)
					ended <- r
				})
			}
		}
	}
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
	unknown := b.endStint(leaveCtx, old, true)
	cancel()
	if unknown == 0 && old.isEnded() {
		if err := b.unmark(context.WithoutCancel(ctx), []*stint{old}); err != nil {
			b.log.Warn("spool does not note that the route has ended on an upstream; it reads back when it returns", "route", r.cfg.Name, "err", err)
		}
	}
	st := b.nextStint(ctx, r, old, m.to)
	if st == nil {
		return ctx.Err()
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
