package mqtt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/transport"
	"github.com/forebay-gateway/forebay/spool"
)

// Options are what the program wires.
type Options struct {
	Log        Log                   // required, see SpoolLog
	Access     Access                // nil: Config.Auth decides
	Logger     *slog.Logger          // nil discards
	Audit      *slog.Logger          // of audit events; nil is Logger
	Registerer prometheus.Registerer // nil is private

	// Upstream is asked for the streams in Acks, whose publishers wait until their messages have arrived there.
	Upstream Upstream
	Acks     map[string]AckRule // by stream
	Now      func() time.Time   // nil is time.Now

	// Own is time that never steps, over restarts either: ends of sessions and delays of wills are kept in it. Nil is Now.
	Own func() time.Time

	BanFile string // of bans made while running, see auth.Options
	Version string // of the program, for $SYS/broker/version; empty is unknown
}

// Server is the MQTT front. New restores what is durable, Listen binds, Run serves.
type Server struct {
	cfg         Config
	spool       Log
	access      Access     // nil, or
	auth        *auth.Auth // nil
	audit       *audit.Recorder
	banFile     string
	log         *slog.Logger
	now         func() time.Time // the wall clock
	own         func() time.Time // what never steps, see Options
	metrics     *metrics
	outputLimit int
	output      outputMemory
	slots       *transport.Slots // of TLS handshakes
	traffic     traffic
	openLimit   int64        // connections of all listeners; 0: none
	opened      atomic.Int64 // of them

	pace       *pace  // of all clients together; nil without
	paces      paces  // of clients without a session
	rate       *meter // of new connections; nil without
	turnedAway atomic.Int64

	lanes    *lanes
	index    index
	retained retainedStore
	sys      sysTopics
	version  string
	writer   *stateWriter
	catchUp  *catchUp
	batches  *batchCache
	dirty    *dirtySet
	turns    turns
	timers   *timers
	fights   *fights
	clock    clock
	low      *lowWater
	upstream *upstreamAcks // nil when no publisher waits for the upstream

	// inGroup is what the acknowledgements of the present commit group have to be flushed to. It belongs to the log's
	// commit goroutine.
	inGroup []*conn
	stored  []storedAck // in the order of the log; likewise

	subscriptions atomic.Int64 // of all sessions, offline ones included

	sessionBytes atomic.Int64 // of all sessions, see sessionsize.go

	mu          sync.Mutex
	sessions    map[string]*session // by client ID
	settlements []settlement        // for unlockAndSettle

	shareMu sync.Mutex
	groups  map[string]*group // by filter as sent

	connMu    sync.Mutex
	conns     map[*conn]struct{}
	closing   bool
	deadline  time.Time   // until which Close waits; zero when it sets none
	draining  atomic.Bool // packets are not read any more
	listeners []*listener

	stop    context.CancelFunc // ends Run's goroutines
	stopped chan struct{}      // closed when Run has returned
	started bool
}

// New restores sessions, retained messages and wills from the log. Nothing runs yet. When ctx ends before
// the log has room for the cursor of the sessions, New gives up.
func New(ctx context.Context, cfg Config, opts Options) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("mqtt: %w", err)
	}
	if opts.Log == nil {
		return nil, errors.New("mqtt: no log")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Registerer == nil {
		opts.Registerer = prometheus.NewRegistry()
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Own == nil {
		opts.Own = opts.Now
	}
	srv := &Server{
		cfg: cfg, spool: opts.Log, access: opts.Access, log: opts.Logger, now: opts.Now, own: opts.Own,
		version:     cmp.Or(opts.Version, "unknown"),
		banFile:     opts.BanFile,
		outputLimit: int(cfg.OutputBuffer),
		lanes:       newLanes(opts.Log),
		catchUp:     newCatchUp(),
		batches:     newBatchCache(int64(cfg.CatchUpCache)),
		dirty:       newDirtySet(),
		sessions:    make(map[string]*session),
		groups:      make(map[string]*group),
		conns:       make(map[*conn]struct{}),
		stopped:     make(chan struct{}),
	}
	srv.writer = newStateWriter(opts.Log, srv.acknowledgeStored)
	srv.slots = newSlots(cfg.HandshakeShare, &srv.traffic)
	srv.pace = newPace(limitRate, cfg.Rate, cfg.RateBurst.Std())
	srv.rate = newMeter(float64(cfg.ConnectionRate), rateBurst)
	srv.timers = newTimers()
	srv.output.limit = int64(cfg.OutputMemory)
	srv.fights = newFights(&srv.cfg)
	srv.limitOpen(openFiles())
	if opts.Upstream != nil && len(opts.Acks) > 0 {
		srv.upstream = newUpstreamAcks(srv, opts.Upstream, opts.Acks)
	}
	m, err := newMetrics(srv, opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("mqtt: %w", err)
	}
	srv.metrics = m
	srv.audit, err = audit.New(cfg.Audit, audit.Options{
		Logger: cmp.Or(opts.Audit, opts.Logger), Spool: opts.Log, Registerer: opts.Registerer, Now: opts.Now,
	})
	if err != nil {
		m.unregister()
		return nil, fmt.Errorf("mqtt: %w", err)
	}
	if err := srv.open(ctx, opts.Registerer); err != nil {
		srv.closeAuth()
		srv.audit.Close()
		m.unregister()
		return nil, fmt.Errorf("mqtt: %w", err)
	}
	srv.spool.OnGroup(srv.flushGroup)
	for _, l := range cfg.Listeners {
		srv.listeners = append(srv.listeners, newListener(srv, l))
	}
	return srv, nil
}

// open reads what the server begins with.
func (srv *Server) open(ctx context.Context, reg prometheus.Registerer) (err error) {
	if srv.access == nil {
		own := make(map[string]auth.ListenerConfig)
		for _, l := range srv.cfg.Listeners {
			own[l.Name] = l.Auth
		}
		srv.auth, err = auth.New(srv.cfg.Auth, auth.Options{
			Listeners: own, Logger: srv.log, Audit: srv.audit, BanFile: srv.banFile, Registerer: reg, Now: srv.now,
		})
		if err != nil {
			return err
		}
	}
	if err := srv.restore(); err != nil {
		return err
	}
	srv.low, err = srv.openLowWater(ctx)
	return err
}

func (srv *Server) closeAuth() {
	if srv.auth != nil {
		srv.auth.Close()
	}
}

// Listen binds all listeners.
func (srv *Server) Listen() error {
	if srv.auth != nil && srv.auth.Open() && len(srv.listeners) > 0 {
		srv.log.Warn("everybody may connect, publish and subscribe", "hint", "set mqtt.auth.methods")
	}
	for i, l := range srv.listeners {
		if err := l.bind(); err != nil {
			for _, open := range srv.listeners[:i] {
				open.close()
			}
			return fmt.Errorf("mqtt: listener %s: %w", l.cfg.Name, err)
		}
		srv.log.Info("listening", "listener", l.cfg.Name, "type", l.cfg.Type, "address", l.ln.Addr().String())
	}
	return nil
}

// Addr returns where a listener is bound, nil before Listen.
func (srv *Server) Addr(name string) net.Addr {
	for _, l := range srv.listeners {
		if l.cfg.Name == name && l.ln != nil {
			return l.ln.Addr()
		}
	}
	return nil
}

// Run serves until ctx ends or Close is called, then disconnects the clients (0x8B) and writes the last checkpoint.
func (srv *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	srv.connMu.Lock()
	if srv.started || srv.closing {
		started := srv.started
		srv.connMu.Unlock()
		cancel()
		if !started {
			return ErrClosed
		}
		return errors.New("mqtt: run twice")
	}
	srv.started = true
	srv.stop = cancel
	srv.connMu.Unlock()
	defer close(srv.stopped)
	defer cancel()

	// The distributors and the writer outlive the connections: what those leave behind has to become durable.
	inner, stopInner := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	start := func(fn func(context.Context)) { wg.Go(func() { fn(inner) }) }
	start(srv.writer.run)
	start(srv.audit.Run)
	if srv.upstream != nil {
		start(srv.upstream.run)
	}
	if srv.auth != nil {
		start(func(ctx context.Context) { srv.auth.Watch(ctx, srv.rulesChanged) })
	}
	start(srv.watchCertificates)
	start(srv.checkpointer)
	start(srv.janitor)
	start(srv.clock.run)
	start(srv.watchTraffic)
	start(srv.runSys)
	for _, l := range srv.lanes.list {
		d := &distributor{srv: srv, lane: l, cache: newMatchCache(&srv.index)}
		start(d.run)
	}
	for range srv.cfg.CatchUpWorkers {
		start(srv.catchUp.worker)
	}
	for _, l := range srv.listeners {
		if l.ln != nil {
			wg.Go(l.run)
		}
	}

	<-ctx.Done()
	srv.shutdown()
	stopInner()
	wg.Wait()
	return nil
}

// accept takes a connection from a listener; false when the server is closing.
func (srv *Server) accept(c *conn) bool {
	srv.connMu.Lock()
	defer srv.connMu.Unlock()
	if srv.closing {
		return false
	}
	srv.conns[c] = struct{}{}
	srv.metrics.connections.WithLabelValues(c.lst.cfg.Name).Inc()
	return true
}

func (srv *Server) gone(c *conn) {
	srv.connMu.Lock()
	defer srv.connMu.Unlock()
	delete(srv.conns, c)
	c.leave()
	srv.metrics.connections.WithLabelValues(c.lst.cfg.Name).Dec()
}

// subscribed counts subscriptions.
func (srv *Server) subscribed(n int) {
	srv.subscriptions.Add(int64(n))
	srv.metrics.subscriptions.Add(float64(n))
}

// storedAck is a publish of QoS 1 that the present group has made durable.
type storedAck struct {
	c      *conn
	number uint64 // of its acknowledgement
}

const keptStored = 64 << 10 // of a larger group the memory is given back

// acknowledgeStored acknowledges the publishes in stored. It is called at the end of the group, and before another kind of answer, so that all
// answers leave in the order of the log. Only the log's commit goroutine calls it.
func (srv *Server) acknowledgeStored() {
	for list := srv.stored; len(list) > 0; {
		c, n := list[0].c, 1
		for n < len(list) && list[n].c == c {
			n++
		}
		c.acks.succeed(list[:n], c.acknowledge)
		list = list[n:]
	}
	if cap(srv.stored) > keptStored {
		srv.stored = nil
	}
	clear(srv.stored)
	srv.stored = srv.stored[:0]
}

// flushAfterGroup makes sure that c's output is flushed once the completions of the present group have run. Only the
// log's commit goroutine calls it.
func (srv *Server) flushAfterGroup(c *conn) {
	if !c.inGroup {
		c.inGroup = true
		srv.inGroup = append(srv.inGroup, c)
	}
}

func (srv *Server) flushGroup() {
	if len(srv.inGroup) == 0 {
		return
	}
	srv.acknowledgeStored()
	for _, c := range srv.inGroup {
		c.inGroup = false
	}
	flushAll(srv.inGroup)
	clear(srv.inGroup)
	srv.inGroup = srv.inGroup[:0]
}

// gap counts and tells what a reader could not be given any more.
func (srv *Server) gap(l *lane, who string, g *spool.Gap) {
	srv.metrics.gapRecords.Add(float64(g.To - g.From))
	srv.log.Warn("records are gone before they were delivered", "stream", l.stream, "partition", l.partition,
		"subscriber", who, "from", uint64(g.From), "to", uint64(g.To), "reason", g.Reason)
}

// Stats is a snapshot for the console and the demo.
type Stats struct {
	Connections   int
	Sessions      int
	Subscriptions int
	Retained      int
	Received      [3]uint64 // PUBLISH packets by QoS
	Sent          [3]uint64
	Acknowledged  [3]uint64 // deliveries that clients acknowledged; QoS 1 and 2
	Dropped       map[string]uint64
	Skipped       map[string]uint64 // records that sessions lost because they were too far behind, by limit
	Gaps          uint64            // records that were gone from the spool before a subscriber had read them
}

// Stats returns a snapshot.
func (srv *Server) Stats() Stats {
	st := srv.metrics.stats()
	srv.connMu.Lock()
	st.Connections = len(srv.conns)
	srv.connMu.Unlock()
	srv.mu.Lock()
	st.Sessions = len(srv.sessions)
	srv.mu.Unlock()
	st.Retained = srv.retained.len()
	return st
}
