package mqtt

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// fights slows down clients that take one client ID from each other. Each of them connects again when it has lost its
// connection, so that without it they would do nothing else, as fast as the gateway lets them.
//
// A client ID has a level: a take-over raises it by one, take_over_interval lowers it by one. Above take_over_burst the
// next connection waits before it may take over, for a time that doubles with the level up to take_over_interval. One
// connection waits for one client ID: a later one sends it away.
type fights struct {
	burst int
	every time.Duration // 0: no limit

	mu     sync.Mutex
	byID   map[string]*fight // of client IDs with a level
	lines  int               // log lines since the last sweep
	logged time.Time
}

type fight struct {
	level  float64
	at     time.Time // when level was right
	count  int       // take-overs that waited, since the last line in the log
	logged time.Time
	waiter context.CancelCauseFunc // of the connection that waits
}

const (
	firstWait = 50 * time.Millisecond

	// maxOver is how far above the burst a level rises: with one side gone the other is not slowed down for long.
	maxOver = 10

	// One line about a client ID in this time, and some lines in all: there may be many that fight.
	fightLog   = time.Minute
	fightLines = 10
)

var errSuperseded = errors.New("another client of this client ID came: server busy")

func newFights(cfg *Config) *fights {
	return &fights{burst: cfg.TakeOverBurst, every: cfg.TakeOverInterval.Std(), byID: make(map[string]*fight)}
}

// enter counts a take-over and returns how long it has to wait.
func (t *fights) enter(id string, now time.Time) time.Duration {
	if t.every == 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.byID[id]
	if f == nil {
		f = &fight{at: now}
		t.byID[id] = f
	}
	f.decay(now, t.every)
	f.level = min(f.level+1, float64(t.burst+maxOver))
	over := int(math.Ceil(f.level)) - t.burst
	if over <= 0 {
		return 0
	}
	f.count++
	return min(firstWait<<(over-1), t.every)
}

func (f *fight) decay(now time.Time, every time.Duration) {
	f.level = max(0, f.level-float64(now.Sub(f.at))/float64(every))
	f.at = now
}

// wait sends away who waits for the same client ID and waits itself.
func (t *fights) wait(ctx context.Context, id string, d time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.mu.Lock()
	f := t.byID[id]
	if f == nil { // swept
		t.mu.Unlock()
		return nil
	}
	if f.waiter != nil {
		f.waiter(errSuperseded)
	}
	f.waiter = cancel
	t.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx) // and waiter is the later one's, or of no use
	case <-timer.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err // the later one came in the last moment
	}
	f.waiter = nil
	return nil
}

// report tells whether there is to be a line in the log now, and about how many take-overs.
func (t *fights) report(id string, now time.Time) (count int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.byID[id]
	if f == nil || now.Sub(f.logged) < fightLog {
		return 0, false
	}
	if now.Sub(t.logged) >= fightLog {
		t.logged, t.lines = now, 0
	}
	if t.lines++; t.lines > fightLines {
		return 0, false
	}
	count, f.count, f.logged = f.count, 0, now
	return count, true
}

// sweep forgets client IDs that are at peace.
func (t *fights) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, f := range t.byID {
		f.decay(now, t.every)
		if f.level == 0 && f.waiter == nil && now.Sub(f.logged) >= fightLog {
			delete(t.byID, id)
		}
	}
}

// connectionOf is the connection that a client has, nil when there is none.
func (srv *Server) connectionOf(id string) *conn {
	srv.mu.Lock()
	s := srv.sessions[id]
	srv.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// takeOver lets c wait when its client ID is fought over.
func (srv *Server) takeOver(ctx context.Context, c *conn, id string) error {
	other := srv.connectionOf(id)
	if other == nil {
		return nil
	}
	now := srv.now()
	wait := srv.fights.enter(id, now)
	if wait == 0 {
		return nil
	}
	srv.metrics.takeOversHeld.Inc()
	if n, ok := srv.fights.report(id, now); ok {
		srv.log.Warn("clients fight over a client ID, their connections are slowed down", "client", id, "take_overs", n,
			"listener", c.lst.cfg.Name, "remote", c.nc.RemoteAddr().String(), "other_remote", other.nc.RemoteAddr().String(),
			"hint", "give each client an ID of its own")
	}
	return srv.fights.wait(ctx, id, wait)
}
