package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/mqtt"
)

// The order of a gateway. Parts start from top to bottom, each one when the one before it is ready, and stop from bottom to top:
//
//	admin   health answers while the spool recovers
//	spool   everything else reads it or appends to it
//	tiering stores what the spool seals; the spool asks it from its own start on what may be removed
//	bridge  routes deliver what the last run left behind; it brings the embedded upstream along when that is enabled
//	mqtt    last in of what devices need, because nobody may publish before everything behind is there; first out, for the same reason
//	replay  after all that it reads and publishes to; what it does can wait for the next start
//	downlink publishes to mqtt what it reads through the bridge's upstreams; first out
//
// The numbers of stopShare say until which part of gateway.stop_timeout each stop may take, counted from the signal. They are
// moments and not lengths: what one part does not use is there for the next.
var stopShare = map[string]float64{
	"downlink": 0.05, // nothing more is read from Kafka; what is read and not in the spool is read again
	"replay":   0.10, // pages that are on their way land; the next start goes on with the rest
	"mqtt":     0.20, // listeners close, sessions are told 0x8B and what is on its way to them is written
	"bridge":   0.70, // what is in flight is acknowledged by Kafka, or left for the next start
	"tiering":  0.80, // an upload breaks off: the next start goes on with it
	"spool":    0.95, // accepted records are synced, cursors are durable, the directory is given back
	"admin":    1.00,
}

// part is a part as the lifecycle sees it.
type part struct {
	name string

	// start returns when the next part may start. It gives up when ctx ends.
	start func(ctx context.Context) error

	// run, when there is one, serves until stop; it is called after start and its return before that is a failure.
	run func() error

	// stop ends the part, and makes run return. It gives up when ctx ends, with an error that says what was left. It is only
	// called after start has returned without an error.
	stop func(ctx context.Context) error

	// health is nil, or what is wrong with the running part and what to do about it. It must not block. A part without it is well.
	health func() error

	// worry is what somebody has to look at although the part does all that it should; nil or like health.
	worry func() error

	// needed says that publishers cannot be acknowledged while health is not nil.
	needed bool

	// hint is what an operator can do when run failed.
	hint string
}

// state is where a part is in its life.
type state string

const (
	waiting  state = "waiting"
	starting state = "starting"
	running  state = "running"
	failed   state = "failed"
	stopping state = "stopping"
	stopped  state = "stopped"
)

// lifecycle starts and stops parts in order.
type lifecycle struct {
	log     *slog.Logger
	parts   []part
	timeout time.Duration // of the whole stop

	ended map[string]chan struct{} // closed when the part's run has returned; written by start only

	mu     sync.Mutex
	states map[string]state
	errs   map[string]error // why a part has failed
}

func newLifecycle(log *slog.Logger, timeout time.Duration, parts []part) *lifecycle {
	l := &lifecycle{log: log, parts: parts, timeout: timeout}
	l.ended, l.states, l.errs = map[string]chan struct{}{}, map[string]state{}, map[string]error{}
	for _, p := range parts {
		l.states[p.name] = waiting
	}
	return l
}

// start starts the parts in order. When one cannot start, those before it are stopped again. When ctx ends meanwhile, its error is
// wrapped, and ErrStopIncomplete too when a part did not end before its moment.
func (l *lifecycle) start(ctx context.Context) error {
	told := time.Now() // to stop, or later
	for i, p := range l.parts {
		if err := ctx.Err(); err != nil {
			return l.stopStarted(err, l.parts[:i], told)
		}
		l.set(p.name, starting, nil)
		began := time.Now()
		var err error
		if told, err = l.startOne(ctx, p); err != nil {
			l.set(p.name, failed, err)
			return l.stopStarted(fmt.Errorf("start %s: %w", p.name, err), l.parts[:i], told)
		}
		l.set(p.name, running, nil)
		l.log.Debug("part started", "part", p.name, "took", time.Since(began))
		if p.run != nil {
			ended := make(chan struct{})
			l.ended[p.name] = ended
			go l.watch(p, ended)
		}
	}
	return nil
}

// startOne also waits for a start that does not look at its context, as long as a stop of that part may take and no longer: the
// recovery of a large spool does not. told is when ctx ended, or else when the start did.
func (l *lifecycle) startOne(ctx context.Context, p part) (told time.Time, err error) {
	done, left := make(chan error), make(chan struct{})
	go func() {
		err := p.start(ctx)
		select {
		case done <- err:
		case <-left:
			if err == nil { // too late: nobody else stops it
				late, cancel := context.WithCancel(context.Background())
				cancel()
				_ = p.stop(late)
			}
		}
	}()
	select {
	case err := <-done:
		return time.Now(), err
	case <-ctx.Done():
	}
	told = time.Now()
	select {
	case err := <-done:
		return told, err
	case <-time.After(time.Duration(stopShare[p.name] * float64(l.timeout))):
		close(left)
		l.log.Error("start did not end in order", "part", p.name, "hint", "the log before this says what it waited for; what is acknowledged is in the spool")
		return told, fmt.Errorf("still busy after its deadline: %w: %w", ErrStopIncomplete, ctx.Err())
	}
}

// stopStarted stops the parts that have started when a later one could not, for err.
func (l *lifecycle) stopStarted(err error, parts []part, told time.Time) error {
	stop := l.stop(parts, told)
	if stop != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		stop = fmt.Errorf("%w: %w", ErrStopIncomplete, stop)
	}
	return errors.Join(err, stop)
}

// watch calls a part's run. Its return is what stop asked for, or a failure that somebody must know of: the other parts go on.
func (l *lifecycle) watch(p part, ended chan<- struct{}) {
	defer close(ended)
	err := p.run()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.states[p.name] != running {
		if err != nil && !errors.Is(err, context.Canceled) && !stoppedFirst(err) {
			l.log.Warn("part ended with an error", "part", p.name, "err", err)
		}
		return
	}
	if err == nil {
		err = errors.New("stopped by itself")
	}
	l.states[p.name], l.errs[p.name] = failed, err
	l.log.Error("part failed, the others go on", "part", p.name, "err", err, "hint", p.hint)
}

// stoppedFirst reports whether a part was stopped before it began to run, as happens when a later one cannot start.
func stoppedFirst(err error) bool {
	return errors.Is(err, bridge.ErrClosed) || errors.Is(err, mqtt.ErrClosed)
}

// stopAll stops every part, last first.
func (l *lifecycle) stopAll() error { return l.stop(l.parts, time.Now()) }

// stop stops parts, last first, each until its moment, counted from told. A part that does not make it is left behind with an error: what is
// acknowledged is in the journal, and the next start takes it from there.
func (l *lifecycle) stop(parts []part, told time.Time) error {
	var errs []error
	for i := len(parts) - 1; i >= 0; i-- {
		p := parts[i]
		l.set(p.name, stopping, nil)
		until := told.Add(time.Duration(stopShare[p.name] * float64(l.timeout)))
		if err := l.stopOne(p, until); err != nil {
			l.log.Error("part did not stop in order", "part", p.name, "err", err,
				"hint", "what is acknowledged is in the spool; raise gateway.stop_timeout if this repeats")
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
		l.set(p.name, stopped, nil)
		l.log.Debug("part stopped", "part", p.name, "after", time.Since(told))
	}
	return errors.Join(errs...)
}

// stopOne also waits for a stop that does not look at its context, but not for ever.
func (l *lifecycle) stopOne(p part, until time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := p.stop(ctx)
		if ended := l.ended[p.name]; ended != nil {
			<-ended
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // it gave up when the context ended, and may know more than that
		return err
	case <-time.After(graceAfterDeadline):
		return fmt.Errorf("still busy after its deadline: %w", ctx.Err())
	}
}

// graceAfterDeadline is for a stop to notice its deadline and return: closing files, not waiting for others.
const graceAfterDeadline = 500 * time.Millisecond

func (l *lifecycle) set(name string, s state, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s == stopping || s == stopped {
		err = l.errs[name] // why it failed earlier stays visible
	}
	l.states[name], l.errs[name] = s, err
}

// worries is what an operator has to look at although a running part is well.
func (l *lifecycle) worries(p part, s state) error {
	if s != running || p.worry == nil {
		return nil
	}
	return p.worry()
}

// look is a part's state and, when there is one, its problem. It asks a running part how it is.
func (l *lifecycle) look(p part) (state, error) {
	l.mu.Lock()
	s, err := l.states[p.name], l.errs[p.name]
	l.mu.Unlock()
	if s == running && p.health != nil {
		err = p.health()
	}
	return s, err
}
