package gateway

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/gateway/config"
)

// NewLogger writes to w what cfg asks for. Repeats of a message are throttled, see throttle.
func NewLogger(cfg config.Log, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.Level.Slog(), ReplaceAttr: readable}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if cfg.Format == config.FormatJSON {
		h = slog.NewJSONHandler(w, opts)
	}
	return slog.New(newThrottle(h))
}

// readable writes durations as "37ms" in JSON too, where slog has nanoseconds without saying so.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

const (
	throttleWindow = 10 * time.Second
	throttleBurst  = 5    // of one message in one window; an operator sees that it repeats, and the disk stays free
	throttleKeys   = 4096 // messages are constants and the attributes that count come from the configuration: hundreds, not more
)

// throttleBy are the attributes by which a message counts as another one: two routes that are down are two messages. Their
// values come from the configuration, so that a client cannot make new ones.
var throttleBy = map[string]bool{"component": true, "part": true, "route": true, "upstream": true, "listener": true, "stream": true, "reason": true}

// throttle lets the first few lines of a message through in each window, counts the others, and puts the count on the next
// line of that message as "repeats". Debug lines are asked for and pass.
type throttle struct {
	slog.Handler
	prefix string // of the key: level-independent attributes that With has bound
	seen   *seen  // shared by all handlers that come from one logger
}

type seen struct {
	mu    sync.Mutex
	lines map[string]*line
}

// line is how often one message came.
type line struct {
	since   time.Time // start of the window
	passed  int       // in this window
	repeats int       // held back since the last line that passed
}

var _ slog.Handler = (*throttle)(nil)

func newThrottle(h slog.Handler) *throttle {
	return &throttle{Handler: h, seen: &seen{lines: map[string]*line{}}}
}

// Handle passes r on or counts it.
func (t *throttle) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return t.Handler.Handle(ctx, r)
	}
	repeats, pass := t.seen.take(t.key(r), r.Time)
	if !pass {
		return nil
	}
	if repeats > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("repeats", repeats))
	}
	return t.Handler.Handle(ctx, r)
}

func (t *throttle) key(r slog.Record) string {
	var b strings.Builder
	b.WriteString(t.prefix)
	r.Attrs(func(a slog.Attr) bool {
		writeKey(&b, a)
		return true
	})
	b.WriteString(r.Level.String() + "\x00" + r.Message)
	return b.String()
}

func writeKey(b *strings.Builder, a slog.Attr) {
	if throttleBy[a.Key] {
		b.WriteString(a.Key + "=" + a.Value.String() + "\x00")
	}
}

// take says whether a line may pass at now, and how many before it did not.
func (s *seen) take(key string, now time.Time) (repeats int, pass bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[key]
	if l == nil {
		if len(s.lines) >= throttleKeys {
			s.forgetLocked(now)
		}
		l = &line{since: now}
		s.lines[key] = l
	}
	if now.Sub(l.since) >= throttleWindow {
		l.since, l.passed = now, 0
	}
	if l.passed >= throttleBurst {
		l.repeats++
		return 0, false
	}
	l.passed++
	repeats, l.repeats = l.repeats, 0
	return repeats, true
}

// forgetLocked makes room: first what was quiet for a window, then, should the keys really be that many, everything.
func (s *seen) forgetLocked(now time.Time) {
	for key, l := range s.lines {
		if now.Sub(l.since) >= throttleWindow && l.repeats == 0 {
			delete(s.lines, key)
		}
	}
	if len(s.lines) >= throttleKeys {
		clear(s.lines)
	}
}

// WithAttrs binds attributes.
func (t *throttle) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	b.WriteString(t.prefix)
	for _, a := range attrs {
		if a.Key == "component" && a.Value.String() == "audit" {
			return t.Handler.WithAttrs(attrs) // audit.rate bounds each event; here refusals of strangers would hide what an operator did
		}
		writeKey(&b, a)
	}
	return &throttle{Handler: t.Handler.WithAttrs(attrs), prefix: b.String(), seen: t.seen}
}

// WithGroup opens a group.
func (t *throttle) WithGroup(name string) slog.Handler {
	return &throttle{Handler: t.Handler.WithGroup(name), prefix: t.prefix, seen: t.seen}
}
