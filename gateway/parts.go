package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway/admin"
	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/spool"
)

// parts are the parts in the order of their start; lifecycle.go has the reasons.
func (g *Gateway) parts(log *slog.Logger) []part {
	component := func(name string) *slog.Logger { return log.With("component", name) }
	parts := []part{g.adminPart(component("admin")), g.spoolPart(component("spool"), component("tiering"))}
	if g.cfg.Tiering.Enabled() {
		parts = append(parts, g.tieringPart())
	}
	return append(parts,
		g.bridgePart(component("bridge")),
		g.mqttPart(component("mqtt"), component("audit")),
		g.replayPart(component("replay")),
		g.downlinkPart(),
	)
}

func (g *Gateway) adminPart(log *slog.Logger) part {
	var server *admin.Server
	return part{
		name: "admin",
		start: func(context.Context) error {
			token, err := g.makeToken()
			if err != nil {
				return err
			}
			server = admin.New(g.cfg.Admin, admin.Options{
				Logger: log, Gatherer: g.reg, Health: g.Health, Token: token, API: api.New(api.Options{
					Token: token, Spool: g.inspector, Bridge: g.routes, Front: g.front, Tier: g.tiers, Backup: g, Replay: g.replays,
					Downlinks: g.downlinks, Reload: g.Reload,
					Audit: func(e audit.Event) {
						if f := g.front(); f != nil {
							f.Audit(e)
						}
					},
				}),
			})
			g.put(func() { g.admin = server })
			return server.Listen()
		},
		run:    func() error { return server.Run() },
		stop:   func(ctx context.Context) error { return server.Close(ctx) },
		health: func() error { return server.Health() },

		hint: "health and metrics are gone until a restart; messages are not affected",
	}
}

// makeToken makes what tools show to be answered.
func (g *Gateway) makeToken() (string, error) {
	token, err := api.MakeToken(g.cfg.Gateway.DataDir)
	if err != nil {
		return "", fmt.Errorf("%s in gateway.data_dir: %w", api.TokenFile, err)
	}
	return token, nil
}

// inspector is the open spool for those who look into it.
func (g *Gateway) inspector() spool.Inspector {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spool == nil {
		return nil
	}
	return g.spool
}

// routes is the bridge for those who look into it.
func (g *Gateway) routes() *bridge.Bridge {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bridge
}

// front is the MQTT front for those who change something about it.
func (g *Gateway) front() *mqtt.Server {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mqtt
}

func (g *Gateway) spoolPart(log, tierLog *slog.Logger) part {
	var s *spool.Spool
	return part{
		name: "spool",
		start: func(ctx context.Context) error {
			opened, err := g.openSpool(ctx, log, tierLog)
			if err != nil {
				return err
			}
			s = opened
			g.put(func() { g.spool = s })
			return nil
		},
		stop: func(context.Context) error {
			g.backups.Close()
			return s.Close()
		},
		health: func() error { return s.Health() },
		worry:  func() error { return s.Worry() },
		needed: true,
	}
}

func (g *Gateway) bridgePart(log *slog.Logger) part {
	var b *bridge.Bridge
	p := part{
		name: "bridge",
		start: func(ctx context.Context) error {
			made, err := bridge.New(ctx, g.cfg.Bridge, bridge.Options{
				Log:        bridge.FromSpool(g.spool),
				GatewayID:  g.ID(),
				Forks:      g.spool.Forks(),
				Logger:     log,
				Registerer: g.reg,
				Now:        g.spool.Now,
				Await:      awaits(g.cfg.Spool),
			})
			if err != nil {
				return err
			}
			b = made
			g.put(func() { g.bridge = b })
			return nil
		},
		run:  func() error { return b.Run(context.Background()) }, // Close ends it, after what is in flight
		stop: func(ctx context.Context) error { return b.Close(ctx) },
		health: func() error {
			return errors.Join(upstreamsHealth(b.Upstreams()), routesHealth(b.Health()), orphansHealth(b.Orphans()))
		},
		hint: "nothing goes to Kafka until a restart; the spool keeps it",
	}
	if len(g.cfg.Bridge.Routes) == 0 {
		p.run = nil // a bridge without routes has nothing to do, and its Run returns
	}
	return p
}

func (g *Gateway) mqttPart(log, audit *slog.Logger) part {
	var s *mqtt.Server
	return part{
		name: "mqtt",
		start: func(ctx context.Context) error {
			made, err := mqtt.New(ctx, g.cfg.MQTT, mqtt.Options{
				Version:    g.build.Version,
				Log:        mqtt.SpoolLog(g.spool),
				Logger:     log,
				Audit:      audit,
				BanFile:    filepath.Join(g.cfg.Gateway.DataDir, "bans"),
				Registerer: g.reg,
				Now:        g.spool.Now,
				Own:        g.spool.OwnNow,
				Upstream:   ackUpstream{g.routes()},
				Acks:       ackRules(g.cfg.Spool),
			})
			if err != nil {
				return err
			}
			if err := made.Listen(); err != nil {
				return errors.Join(err, made.Close(ctx))
			}
			s = made
			g.put(func() { g.mqtt = s })
			return nil
		},
		run:  func() error { return s.Run(context.Background()) }, // Close ends it, after the clients have been told
		stop: func(ctx context.Context) error { return s.Close(ctx) },

		health: func() error { return s.Health() },

		hint: "devices cannot connect; restart the gateway",
	}
}

// put sets fields that Health, Addr and Stats read.
func (g *Gateway) put(set func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	set()
}

// prepareDataDir makes the directory and finds the gateway's ID in it. Others on the machine do not read what devices said. It
// comes before all parts: without a directory of its own a gateway is nothing, and a port that is in use says less about a second
// one on the same directory.
func (g *Gateway) prepareDataDir() error {
	dir := g.cfg.Gateway.DataDir
	if err := writable(dir); err != nil {
		return fmt.Errorf("gateway.data_dir: %w: it must be a directory, or a place for one, where the user that runs the gateway can write", err)
	}
	if err := spool.Free(g.cfg.Spool.Dir); err != nil {
		return fmt.Errorf("%w: another gateway runs on this directory: stop that one, or set another gateway.data_dir", err)
	}
	id := g.cfg.Gateway.ID
	if id == "" {
		made, err := identity(dir)
		if err != nil {
			return fmt.Errorf("gateway.id: %w", err)
		}
		id = made
	}
	g.put(func() { g.id = id })
	return nil
}

// writable makes a directory and sees whether files can be made in it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable.*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
