package downlink

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// downlink is one entry of the configuration at work.
type downlink struct {
	e       *Engine
	cfg     Config
	from    start
	pattern *regexp.Regexp
	mapper  *mapping.DownMapper
	up      *kafka.Client
	log     *slog.Logger
	counts  counts

	stop  context.CancelFunc // set by the engine when it starts
	ended chan struct{}

	changeC  chan struct{} // a pause or a resume
	spaceC   chan struct{} // a worker has taken something
	lookC    chan struct{} // topics have to be looked at now
	buffered atomic.Int64  // bytes that are read and not in the log

	// known and places belong to the running session, and to load before it.
	known known

	mu          sync.Mutex
	places      map[kafka.Partition]place // accepted by the log
	parts       map[kafka.Partition]*partition
	pausedSince time.Time
	endSession  context.CancelFunc // of the running session
	release     bool               // held partitions are to go on
	looked      bool               // the session has seen the topics
	missing     []missing          // topics of the configuration that do not exist
	faults      map[string]*fault  // by topic: why it cannot be looked at
	lookErr     fault
	failed      error // the log takes nothing more
}

// missing is a topic that does not exist, since when that is known.
type missing struct {
	topic string
	since time.Time
}

// fault is something that is wrong, since when.
type fault struct {
	kafka.Verdict
	since time.Time
}

func newDownlink(e *Engine, cfg Config) (*downlink, error) {
	m, err := mapping.NewDown(cfg.mapping(), e.o.GatewayID)
	if err != nil {
		return nil, err
	}
	d := &downlink{
		e: e, cfg: cfg, mapper: m, up: e.o.Upstream(cfg.Upstream), log: e.o.Logger.With("downlink", cfg.Name),
		changeC: make(chan struct{}, 1), spaceC: make(chan struct{}, 1), lookC: make(chan struct{}, 1),
		places: make(map[kafka.Partition]place), parts: make(map[kafka.Partition]*partition), faults: make(map[string]*fault),
	}
	if d.up == nil {
		return nil, fmt.Errorf("no upstream %q", cfg.Upstream)
	}
	if d.from, err = parseFrom(cfg.From); err != nil {
		return nil, fmt.Errorf("from: %w", err)
	}
	if d.pattern, err = cfg.pattern(); err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	return d, nil
}

// run reads, but for pauses, until ctx ends.
func (d *downlink) run(ctx context.Context) {
	for ctx.Err() == nil {
		sctx, end := context.WithCancel(ctx)
		d.mu.Lock()
		paused := !d.pausedSince.IsZero()
		d.endSession = end
		d.mu.Unlock()
		if paused {
			select {
			case <-ctx.Done():
			case <-d.changeC:
			}
			end()
			continue
		}
		err := d.read(sctx)
		end()
		if err != nil {
			d.log.Error("consumer cannot be made; again in a second", "err", err)
			sleep(ctx, time.Second)
		}
	}
}

// setPaused makes a pause or its end durable, and has run follow.
func (d *downlink) setPaused(ctx context.Context, since time.Time) error {
	change := spool.Change{Space: pausedSpace, Key: d.cfg.Name}
	if !since.IsZero() {
		change.Value = fmt.Appendf(nil, "%s %d", stateVersion, since.UnixNano())
	}
	d.mu.Lock()
	was := !d.pausedSince.IsZero()
	d.mu.Unlock()
	if was != since.IsZero() { // it is so
		return nil
	}
	if err := d.e.commit(ctx, change); err != nil {
		return err
	}
	d.mu.Lock()
	d.pausedSince = since
	end := d.endSession
	d.mu.Unlock()
	if end != nil && !since.IsZero() {
		end()
	}
	signal(d.changeC)
	what := "downlink resumed"
	if !since.IsZero() {
		what = "downlink paused"
	}
	d.log.Info(what)
	return nil
}

// Pause has a downlink read nothing until Resume, restarts included. It returns when that is durable. Pausing what is paused is fine.
func (e *Engine) Pause(ctx context.Context, name string) error {
	e.applying.RLock()
	defer e.applying.RUnlock()
	d, err := e.link(name)
	if err != nil {
		return err
	}
	return d.setPaused(ctx, e.o.Now())
}

// Resume ends a Pause, and lets partitions that are held by a gap go on behind it. Resuming what is not paused is fine.
func (e *Engine) Resume(ctx context.Context, name string) error {
	e.applying.RLock()
	defer e.applying.RUnlock()
	d, err := e.link(name)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.release = true
	d.mu.Unlock()
	signal(d.lookC)
	return d.setPaused(ctx, time.Time{})
}

// signal wakes the goroutine that waits on ch, or the next one that will.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleep waits, false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
