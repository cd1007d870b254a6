package mqtt

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// RateConfig is how much may come in a second.
type RateConfig struct {
	// PUBLISH, SUBSCRIBE and UNSUBSCRIBE packets in a second; 0 is no limit.
	Messages int `yaml:"messages"`

	// Size of all packets in a second, such as 64KiB/s; 0 is no limit.
	Bytes unit.Rate `yaml:"bytes"`
}

func (c RateConfig) validate(key string, fault func(string, ...any)) {
	if c.Messages < 0 {
		fault(key+".messages: %d is negative", c.Messages)
	}
	if c.Bytes < 0 {
		fault(key+".bytes: %v is negative", c.Bytes)
	}
}

// What becomes of a client that stays above its rate.
const (
	overRateSlow       = "slow"
	overRateRefuse     = "refuse"
	overRateDisconnect = "disconnect"
)

// meter lets so many units pass in a second, and as many more at once as the burst stands for. It holds one number: when the next
// unit is due.
type meter struct {
	each  float64 // nanoseconds of one unit
	burst int64   // nanoseconds
	due   atomic.Int64
}

// newMeter returns nil without a limit.
func newMeter(perSecond float64, burst time.Duration) *meter {
	if perSecond <= 0 {
		return nil
	}
	return &meter{each: float64(time.Second) / perSecond, burst: int64(burst)}
}

// monotonic is a clock that nobody sets.
func monotonic() int64 { return int64(time.Since(processStart)) }

var processStart = time.Now().Add(-time.Hour) // an hour ago: what was never due has all of its burst

// take counts n units and returns how long their turn is away; a nil meter has no limit.
func (m *meter) take(now int64, n int) time.Duration {
	if m == nil {
		return 0
	}
	for {
		old := m.due.Load()
		due := max(old, now-m.burst) + int64(m.each*float64(n))
		if m.due.CompareAndSwap(old, due) {
			return time.Duration(due - now)
		}
	}
}

// rested reports whether half of the burst is there again.
func (m *meter) rested(now int64) bool { return m == nil || m.due.Load() <= now-m.burst/2 }

// whole reports whether all of the burst is there.
func (m *meter) whole(now int64) bool { return m == nil || m.due.Load() <= now-m.burst }

// pace is what one client, one listener or all of them together may send.
type pace struct {
	limit    string // key of the configuration
	messages *meter
	bytes    *meter
}

// newPace returns nil without a limit.
func newPace(limit string, cfg RateConfig, burst time.Duration) *pace {
	p := &pace{limit: limit, messages: newMeter(float64(cfg.Messages), burst), bytes: newMeter(float64(cfg.Bytes), burst)}
	if p.messages == nil && p.bytes == nil {
		return nil
	}
	return p
}

func (p *pace) whole(now int64) bool { return p.messages.whole(now) && p.bytes.whole(now) }

// pacing is what a connection may send. It belongs to its reader, but for own, which goes with the client ID: otherwise whoever
// connects again would begin with a new burst.
type pacing struct {
	own    *pace // nil without
	shared []*pace

	read  int64 // bytes of the connection that the paces know of
	over  int64 // since when the client is above its own pace, monotonic; 0 is not
	told  bool  // the audit knows of it
	blame error // of the limit that is passed
}

func (l *listener) newPacing() *pacing {
	p := &pacing{own: newPace(limitClientRate, l.clientRate(), l.srv.cfg.RateBurst.Std())}
	for _, s := range []*pace{l.pace, l.srv.pace} {
		if s != nil {
			p.shared = append(p.shared, s)
		}
	}
	if p.own == nil && len(p.shared) == 0 {
		return nil
	}
	return p
}

// keepPace lets a client go on with the rate that it had on its last connection. s.mu is held.
func (c *conn) keepPace(s *session) {
	switch {
	case c.pacing == nil || c.pacing.own == nil:
	case s.pace != nil && s.pace.same(c.pacing.own):
		c.pacing.own = s.pace
	default:
		s.pace = c.pacing.own
	}
}

// same reports whether two paces have the same rates: a client may come back by another listener.
func (p *pace) same(q *pace) bool {
	equal := func(a, b *meter) bool { return (a == nil) == (b == nil) && (a == nil || a.each == b.each) }
	return equal(p.messages, q.messages) && equal(p.bytes, q.bytes)
}

// clientRate is that of the listener, or of the front.
func (l *listener) clientRate() RateConfig {
	if l.cfg.ClientRate != (RateConfig{}) {
		return l.cfg.ClientRate
	}
	return l.srv.cfg.ClientRate
}

// paced lets the connection wait for its rates, and deals with a packet that they refuse; false ends the connection.
func (c *conn) paced(ctx context.Context, p wire.Packet) bool {
	refused, ok := c.slow(ctx, p)
	c.overRate = nil
	if refused == nil || !ok {
		return ok
	}
	if c.srv.cfg.WhenOverRate == overRateDisconnect {
		c.limitReached(limitClientRate, refused)
		c.closeFor(refused)
		return false
	}
	if _, publish := p.(*wire.Publish); publish {
		c.overRate = refused // check answers it
	}
	return true
}

// slow lets a connection wait that sends more than it may: it is not read meanwhile, and the network holds back its client. refused
// is not nil when the client is to be refused or disconnected, because it goes on like that. false: the connection is over.
func (c *conn) slow(ctx context.Context, p wire.Packet) (refused error, ok bool) {
	s := c.pacing
	messages := 0
	switch p.(type) {
	case *wire.Publish, *wire.Subscribe, *wire.Unsubscribe:
		messages = 1
	}
	read := c.in.n - int64(c.dec.Buffered())
	bytes := int(read - s.read)
	s.read = read

	now := monotonic()
	var longest time.Duration
	limit := ""
	take := func(p *pace) time.Duration {
		wait := max(p.messages.take(now, messages), p.bytes.take(now, bytes))
		if wait > longest {
			longest, limit = wait, p.limit
		}
		return wait
	}
	if s.own != nil {
		rested := s.own.messages.rested(now) && s.own.bytes.rested(now)
		byMessages, byBytes := s.own.messages.take(now, messages), s.own.bytes.take(now, bytes)
		switch wait := max(byMessages, byBytes); {
		case wait > 0:
			longest, limit = wait, s.own.limit
			if s.over == 0 {
				s.over = now
			}
			if s.blame = errByteRate; byMessages >= byBytes {
				s.blame = errMessageRate
			}
		case rested:
			s.over, s.told = 0, false
		}
	}
	for _, p := range s.shared {
		take(p)
	}
	if longest <= 0 {
		return nil, true
	}
	if !s.told {
		s.told = true
		c.limitReached(limit, nil)
	}
	cfg := &c.srv.cfg
	if s.over != 0 && cfg.WhenOverRate != overRateSlow && time.Duration(now-s.over) >= cfg.OverRateTime.Std() {
		refused = s.blame
		if cfg.WhenOverRate == overRateDisconnect {
			return refused, true // there is nothing to wait for
		}
	}
	c.srv.metrics.slowed(limit, longest)
	t := time.NewTimer(longest)
	defer t.Stop()
	select {
	case <-t.C:
		return refused, true
	case <-ctx.Done():
		return nil, false
	}
}
