package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/gateway/admin"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
)

// ErrStopIncomplete is wrapped by Run's error when parts did not stop before their deadlines. Nothing that was acknowledged is
// lost: the next start takes it from the journal.
var ErrStopIncomplete = errors.New("stop incomplete")

// Options are what the program wires.
type Options struct {
	Logger *slog.Logger // nil discards
	Build  Build
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

	mu    sync.Mutex
	id    string
	admin *admin.Server
	spool *spool.Spool // nil until its part has started, like the others
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
	}
	g.life = newLifecycle(g.log, g.cfg.Gateway.StopTimeout.Std(), g.parts(opts.Logger))
	g.reg.MustRegister(newHealthMetrics(g))
	return g, nil
}

// Run starts the parts in order, serves until ctx ends, and stops them in reverse, within gateway.stop_timeout. It is called
// once. Its error says which part could not start, or wraps ErrStopIncomplete.
func (g *Gateway) Run(ctx context.Context) error {
	if err := g.life.start(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
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

// Addr is the address that a listener took: of "admin", or of one of mqtt.listeners by its name. It is nil before that.
func (g *Gateway) Addr(listener string) net.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	if listener == "admin" && g.admin != nil {
		return g.admin.Addr()
	}
	return nil
}

// listening is one attribute with every address, so that who starts a gateway on free ports can learn them from its log.
func (g *Gateway) listening() slog.Attr {
	var addrs []any
	for _, name := range []string{"admin"} {
		if a := g.Addr(name); a != nil {
			addrs = append(addrs, slog.String(name, a.String()))
		}
	}
	return slog.Group("listeners", addrs...)
}

// parts are the parts in the order of their start; lifecycle.go has the reasons.
func (g *Gateway) parts(log *slog.Logger) []part {
	component := func(name string) *slog.Logger { return log.With("component", name) }
	return []part{
		g.adminPart(component("admin")),
		g.spoolPart(component("spool")),
	}
}

func (g *Gateway) adminPart(log *slog.Logger) part {
	server := admin.New(g.cfg.Admin, admin.Options{Logger: log, Gatherer: g.reg, Health: g.Health})
	return part{
		name: "admin",
		start: func(context.Context) error {
			g.mu.Lock()
			g.admin = server
			g.mu.Unlock()
			return server.Listen()
		},
		run:  server.Run,
		stop: server.Close,
		hint: "health and metrics are gone until a restart; messages are not affected",
	}
}

func (g *Gateway) spoolPart(log *slog.Logger) part {
	var s *spool.Spool
	return part{
		name: "spool",
		start: func(context.Context) error {
			if err := g.prepareDataDir(); err != nil {
				return err
			}
			opened, err := spool.Open(g.cfg.Spool, spool.Options{Logger: log, Registerer: g.reg})
			if err != nil {
				return err
			}
			s = opened
			g.mu.Lock()
			g.spool = s
			g.mu.Unlock()
			return nil
		},
		stop:   func(context.Context) error { return s.Close() },
		health: func() error { return s.Health() },
		needed: true,
	}
}

// prepareDataDir makes the directory and finds the gateway's ID in it. Others on the machine do not read what devices said.
func (g *Gateway) prepareDataDir() error {
	dir := g.cfg.Gateway.DataDir
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("gateway.data_dir: %w", err)
	}
	id := g.cfg.Gateway.ID
	if id == "" {
		made, err := identity(dir)
		if err != nil {
			return fmt.Errorf("gateway.id: %w", err)
		}
		id = made
	}
	g.mu.Lock()
	g.id = id
	g.mu.Unlock()
	return nil
}
