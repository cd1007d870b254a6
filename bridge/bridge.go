package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// Options are what the program wires. Log and GatewayID are needed; nil otherwise means: no log, a private registry, the
// system clock, TCP.
type Options struct {
	Log        Log
	GatewayID  string
	Forks      []spool.Fork // of the spool
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time // the clock of Record.ReceivedAt

	// Await are the streams whose publishers wait for Kafka, see Bridge.Await.
	Await map[string]Await
	Dial  func(ctx context.Context, network, host string) (net.Conn, error)
}

// Bridge carries records from the spool to Kafka.
type Bridge struct {
	cfg        Config
	source     Log
	log        *slog.Logger
	registerer prometheus.Registerer
	now        func() time.Time
	embedded   *embedded.Upstream
	upstreams  []*upstream
	routes     []*route
	cursors    []Cursor
	dead       *DeadLetters // nil when there are none
	gatewayID  string
	forks      []spool.Fork
	dial       func(ctx context.Context, network, host string) (net.Conn, error)
	down       atomic.Pointer[downlink.Engine]
	awaits     map[string]Await
	watched    map[string][][]*watch // of the streams in awaits, by partition and route
	spoolID    string                // of routes that deliver exactly once: positions in Kafka are this spool's
	pausing    sync.Mutex
	redriving  chan struct{} // holds one while a redrive runs
	saveC      chan struct{}
	savingMu   sync.Mutex    // one save of positions at a time
	moveC      chan move     // an operator wants a route to go elsewhere
	unmoved    chan struct{} // closed when nobody moves routes any more

	feeding sync.WaitGroup // what moves routes; stints have their own
	saving  sync.WaitGroup
	asked   sync.WaitGroup // work that somebody asked for

	mu          sync.Mutex
	started     bool
	stopFeeding context.CancelFunc
	stopSaving  context.CancelFunc
	stopSending context.CancelFunc
	closing     bool
	closed      chan struct{} // closed when Close is through
	err         error
}

// New opens the routes' cursors and starts the upstreams' clients. It does not wait for a cluster, and sends nothing
// before Run. When ctx ends before the spool has room for new cursors, New gives up.
func New(ctx context.Context, cfg Config, opts Options) (*Bridge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	b := &Bridge{
		cfg: cfg, gatewayID: opts.GatewayID, forks: opts.Forks, dial: opts.Dial, source: opts.Log, log: opts.Logger, registerer: opts.Registerer, now: opts.Now,
		redriving: make(chan struct{}, 1), awaits: opts.Await, watched: make(map[string][][]*watch),
		saveC: make(chan struct{}, 1), moveC: make(chan move), unmoved: make(chan struct{}),
		closed: make(chan struct{}), stopFeeding: func() {}, stopSaving: func() {}, stopSending: func() {},
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.now == nil {
		b.now = time.Now
	}
	if b.registerer == nil {
		b.registerer = prometheus.NewRegistry()
	}
	if err := b.open(ctx, opts); err != nil {
		b.shutUpstreams()
		return nil, fmt.Errorf("bridge: %w", err)
	}
	return b, nil
}

func (b *Bridge) open(ctx context.Context, opts Options) error {
	streams := make(map[string]int)
	for _, s := range b.source.Streams() {
		streams[s.Name] = s.Partitions
	}
	if d := b.cfg.deadLetters(); d != "" && streams[d] == 0 {
		return fmt.Errorf("dead_letter_stream: unknown stream %q; list it under spool.streams", d)
	}
	for i, r := range b.cfg.Routes {
		if r = r.WithDefaults(b.cfg.onlyUpstream()); streams[r.Stream] == 0 {
			return fmt.Errorf("routes[%d].stream: unknown stream %q; list it under spool.streams", i, r.Stream)
		}
	}
	upstreams := b.cfg.Upstreams
	if b.cfg.Embedded.Enabled {
		var err error
		if b.embedded, err = embedded.Start(b.cfg.Embedded, embedded.Options{Logger: b.log}); err != nil {
			return err
		}
		upstreams = append(slices.Clip(upstreams), kafka.Config{Name: EmbeddedUpstream, Brokers: []string{b.embedded.Addr()}})
	}
	for _, u := range upstreams {
		c, err := kafka.New(u, kafka.Options{GatewayID: opts.GatewayID, Logger: b.log, Dial: opts.Dial})
		if err != nil {
			return err
		}
		b.upstreams = append(b.upstreams, &upstream{Client: c})
	}
	b.tellOrphans()
	if err := b.identify(ctx); err != nil {
		return err
	}
	for _, rc := range b.cfg.Routes {
		if err := b.openRoute(ctx, rc.WithDefaults(b.cfg.onlyUpstream()), opts.GatewayID, streams); err != nil {
			return err
		}
	}
	if err := b.openDeadLetters(ctx); err != nil {
		return err
	}
	lctx, cancel := context.WithTimeout(ctx, leaveSave)
	defer cancel()
	for _, r := range b.routes {
		if err := b.loadBacklogs(lctx, r); err != nil {
			return err
		}
	}
	for _, load := range []func() error{b.loadPauses, b.loadRunning, b.loadActive} {
		if err := load(); err != nil {
			return err
		}
	}
	for _, r := range b.routes {
		st, err := b.newStint(r, r.failover.active)
		if err != nil {
			return err
		}
		r.stint.Store(st)
	}
	return b.registerer.Register(collector{b})
}

// identify gives the spool an ID that no other has, if a route needs one: offsets of another spool under the same gateway ID
// must not be taken for ours.
func (b *Bridge) identify(ctx context.Context) error {
	if !slices.ContainsFunc(b.cfg.Routes, func(r RouteConfig) bool { return r.Delivery == ExactlyOnce }) {
		return nil
	}
	const in, key = "bridge-spool", "id"
	if err := b.source.Load(in, func(_ string, value []byte) error { b.spoolID = string(value); return nil }); err != nil || b.spoolID != "" {
		return err
	}
	b.spoolID = rand.Text()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	done := make(durable, 1)
	if err := b.source.Append(ctx, spool.Entry{Changes: []spool.Change{{Space: in, Key: key, Value: []byte(b.spoolID)}}, Done: done}); err != nil {
		return err
	}
	return done.wait(ctx)
}

// enter begins work that Close waits for, false when the bridge is closing.
func (b *Bridge) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return false
	}
	b.asked.Add(1)
	return true
}

func (b *Bridge) leave() { b.asked.Done() }

func (b *Bridge) isClosing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closing
}

func (b *Bridge) openRoute(ctx context.Context, rc RouteConfig, gatewayID string, streams map[string]int) error {
	if rc.Upstream == EmbeddedUpstream && rc.CreateTopics == nil {
		rc.CreateTopics = &kafka.Create{Partitions: int32(b.cfg.Embedded.Partitions)}
	}
	r, err := newRoute(rc, gatewayID, b.forks)
	if err != nil {
		return err
	}
	r.dead = rc.Stream == b.cfg.deadLetters()
	for _, name := range append([]string{rc.Upstream}, rc.Failover.To...) {
		for _, u := range b.upstreams {
			if u.Name() == name {
				r.failover.list = append(r.failover.list, u)
			}
		}
	}
	r.failover.active = r.failover.list[0]
	from, err := parseFrom(rc.From)
	if err != nil {
		return err
	}
	isNew := !slices.ContainsFunc(b.source.Cursors(), func(c spool.CursorInfo) bool { return c.Name == routeCursor(rc.Name) })
	// This one first: with from: end it must not begin behind the other.
	keep, err := b.source.OpenCursor(ctx, keepCursor(rc.Name), rc.Stream, spool.CursorOptions{From: from, Protect: true})
	if err != nil {
		return fmt.Errorf("route %s: %w", rc.Name, err)
	}
	cursor, err := b.source.OpenCursor(ctx, routeCursor(rc.Name), rc.Stream, spool.CursorOptions{From: from, Protect: true})
	if err != nil {
		return fmt.Errorf("route %s: %w", rc.Name, err)
	}
	if isNew {
		b.tellStart(rc, cursor, streams[rc.Stream])
	}
	b.watch(r, streams[rc.Stream])
	r.cursor, r.keep, r.partitions = cursor, keep, streams[rc.Stream]
	b.routes = append(b.routes, r)
	b.cursors = append(b.cursors, cursor, keep)
	return nil
}

// The cursors of a route: the position of its tail, and what retention has to leave for its detached lanes.
func routeCursor(route string) string { return "route/" + route }
func keepCursor(route string) string  { return "route/" + route + "/keep" }

// Embedded is the broker inside the gateway, nil when it is not enabled.
func (b *Bridge) Embedded() *embedded.Upstream { return b.embedded }

// Run delivers until ctx ends or the bridge is closed. Then it reads no more; what is in the air is Close's.
func (b *Bridge) Run(ctx context.Context) error {
	b.mu.Lock()
	if b.started || b.closing {
		b.mu.Unlock()
		return ErrClosed
	}
	b.started = true
	saveCtx, stopSaving := context.WithCancel(context.WithoutCancel(ctx)) // until Close: flights land after the feeding
	sendCtx, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	ctx, stopFeeding := context.WithCancel(ctx)
	defer stopFeeding()
	b.stopFeeding, b.stopSaving, b.stopSending = stopFeeding, stopSaving, stopSending
	if err := b.announce(ctx); err != nil {
		b.log.Warn("spool does not note that the routes run; a crash would double records", "err", err)
	}
	b.saving.Go(func() { b.save(saveCtx) })
	for _, st := range b.stints() {
		st.start(ctx, sendCtx)
	}
	if slices.ContainsFunc(b.routes, (*route).isWatched) {
		b.feeding.Go(func() { b.watchOver(ctx, sendCtx) })
	}
	b.mu.Unlock()
	b.waitFed()
	return nil
}

// Close stops reading, waits until ctx ends for what is in the air, makes the cursors durable, and closes the upstreams.
// What has no outcome by then is sent again after the next start. The spool has to be open until Close has returned. A
// second call waits for the first.
func (b *Bridge) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		<-b.closed
		return b.err
	}
	b.closing = true
	stopFeeding, stopSaving, stopSending := b.stopFeeding, b.stopSaving, b.stopSending
	b.mu.Unlock()
	defer close(b.closed)

	stopFeeding()
	b.waitFed()
	left := 0
	for _, f := range b.feeders() {
		left += f.settle(ctx)
	}
	for _, f := range b.feeders() {
		f.closeGraves()
	}
	if left > 0 {
		b.log.Warn("closed with records in the air; they are sent again after the next start", "records", left)
	}
	stopSending()
	for _, st := range b.stints() {
		st.sending.Wait()
	}
	b.shutUpstreams() // flights without an outcome come back now
	b.asked.Wait()
	for _, f := range b.feeders() {
		f.part()
	}
	stopSaving()
	b.saving.Wait()
	var errs []error
	// The deadline may be over; what is delivered should not be delivered again for that.
	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	ended := b.ended()
	errs = append(errs, b.saveOnce(fctx))
	cursors := slices.Clone(b.cursors)
	for _, r := range b.routes {
		for _, bl := range r.backlogged() {
			cursors = append(cursors, bl.cursor, bl.keep)
		}
	}
	for _, c := range cursors {
		errs = append(errs, c.Flush(fctx))
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, b.unmark(fctx, ended))
	}
	b.registerer.Unregister(collector{b})
	b.err = errors.Join(errs...)
	return b.err
}

// waitFed waits until nothing is read any more.
func (b *Bridge) waitFed() {
	b.feeding.Wait() // first: it makes stints
	for _, st := range b.stints() {
		st.feeding.Wait()
	}
}

const flushTimeout = 2 * time.Second

func (b *Bridge) shutUpstreams() {
	for _, u := range b.upstreams {
		u.Close()
	}
	if b.embedded != nil {
		if err := b.embedded.Close(); err != nil {
			b.log.Warn("embedded kafka did not close cleanly", "err", err)
		}
	}
}

// settle sends nothing more and waits for what is in the air. It returns how many records still are.
func (f *feeder) settle(ctx context.Context) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopping = true
	for _, l := range f.lanes {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	for (f.flying > 0 || len(f.graves.at) > 0) && ctx.Err() == nil {
		f.waitLocked(ctx, time.Second)
	}
	left := 0
	for _, l := range f.lanes {
		if l.flight != nil {
			left += len(l.flight.Messages)
		}
	}
	f.commitLocked()
	return left
}

// part gives every lane that has something left a position of its own, so that a clean stop doubles nothing: the cursor
// alone is as far as the slowest lane. It returns how many records are in the air.
func (f *feeder) part() (unknown int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lanes {
		if l.flight != nil {
			unknown += len(l.flight.Messages)
		}
		if !l.detached && l.busy() {
			f.detachLocked(l, f.pos)
		}
	}
	return unknown
}
