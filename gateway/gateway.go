package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/admin"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/backup"
)

// ErrStopIncomplete is wrapped by Run's error when parts did not stop before their deadlines. Nothing that was acknowledged is
// lost: the next start takes it from the journal.
var ErrStopIncomplete = errors.New("stop incomplete")

// Options are what the program wires.
type Options struct {
	Logger *slog.Logger // nil discards
	Build  Build

	// Load reads the configuration again, for Reload, as it was read for New. nil: Reload reads only the files that it names.
	Load func() (config.Config, error)
}

// Build names the running program.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// Gateway is a whole Forebay.
type Gateway struct {
	cfg     config.Config
	log     *slog.Logger
	build   Build
	reg     *prometheus.Registry
	life    *lifecycle
	created time.Time
	ready   chan struct{} // closed when every part has started

	mu     sync.Mutex
	id     string
	admin  *admin.Server // nil until its part has started, like the others
	spool  *spool.Spool
	bridge *bridge.Bridge
	mqtt   *mqtt.Server
	tier   *tiering.Tier // nil too when nothing is stored elsewhere
	replay *replay.Engine
	down   *downlink.Engine

	backups backup.Job

	load      func() (config.Config, error)
	reloading sync.Mutex
	inUse     config.Config // what runs: cfg, and what a reload has changed of it; guarded by reloading
	waiting   atomic.Int64  // keys that wait for a restart
}

// New prepares a gateway. It touches nothing before Run.
func New(cfg config.Config, opts Options) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{
		cfg:     cfg.Resolved(),
		log:     opts.Logger.With("component", "gateway"),
		build:   opts.Build,
		reg:     newRegistry(opts.Build),
		created: time.Now(),
		ready:   make(chan struct{}),
		load:    opts.Load,
	}
	g.inUse = g.cfg
	g.life = newLifecycle(g.log, g.cfg.Gateway.StopTimeout.Std(), g.parts(opts.Logger))
	g.reg.MustRegister(newHealthMetrics(g))
	return g, nil
}

// Run starts the parts in order, serves until ctx ends, and stops them in reverse, within gateway.stop_timeout. It is called
// once. Its error says which part could not start, or wraps ErrStopIncomplete.
func (g *Gateway) Run(ctx context.Context) error {
	if err := g.prepareDataDir(); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if err := g.life.start(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, ErrStopIncomplete) {
			return nil // told to stop while it started, and it has
		}
		return fmt.Errorf("gateway: %w", err)
	}
	close(g.ready)
	g.log.Info("serving", "id", g.ID(), "version", g.build.Version, "data_dir", g.cfg.Gateway.DataDir, g.listening())

	<-ctx.Done()
	g.log.Info("stopping", "timeout", g.cfg.Gateway.StopTimeout)
	began := time.Now()
	if err := g.life.stopAll(); err != nil {
		return fmt.Errorf("gateway: %w: %w", ErrStopIncomplete, err)
	}
	g.log.Info("stopped", "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// Ready is closed when every part has started.
func (g *Gateway) Ready() <-chan struct{} { return g.ready }

// ID is the gateway's ID; empty while it starts, when the configuration does not give one.
func (g *Gateway) ID() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.id
}

// Addr is the address, host:port, that a listener took: of "admin", of "embedded" (the Kafka broker inside the gateway), or of
// one of mqtt.listeners by its name. It is empty before that, and when there is no such listener.
func (g *Gateway) Addr(listener string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var addr net.Addr
	switch {
	case listener == adminListener && g.admin != nil:
		addr = g.admin.Addr()
	case listener == embeddedListener && g.bridge != nil && g.bridge.Embedded() != nil:
		return g.bridge.Embedded().Addr()
	case g.mqtt != nil:
		addr = g.mqtt.Addr(listener)
	}
	if addr == nil {
		return ""
	}
	return addr.String()
}

// The names of the listeners that the configuration does not name.
const (
	adminListener    = "admin"
	embeddedListener = bridge.EmbeddedUpstream
)

// listening is one attribute with every address, so that who starts a gateway on free ports can learn them from its log.
func (g *Gateway) listening() slog.Attr {
	names := []string{adminListener, embeddedListener}
	for _, l := range g.cfg.MQTT.Listeners {
		names = append(names, l.Name)
	}
	var addrs []any
	for _, name := range names {
		if a := g.Addr(name); a != "" {
			addrs = append(addrs, slog.String(name, a))
		}
	}
	return slog.Group("listeners", addrs...)
}

// Stats are the figures of the parts, of those that have started.
type Stats struct {
	Spool  spool.Stats
	MQTT   mqtt.Stats
	Routes []bridge.RouteStats
}

// Stats takes a snapshot.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	log, front, routes := g.spool, g.mqtt, g.bridge
	g.mu.Unlock()
	var s Stats
	if log != nil {
		s.Spool = log.Stats()
	}
	if front != nil {
		s.MQTT = front.Stats()
	}
	if routes != nil {
		s.Routes = routes.Stats()
	}
	return s
}
