package gateway

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/backup"
	"github.com/forebay-gateway/forebay/tiering/export"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// openSpool opens the spool, with a tier before it when there is one: retention asks the tier from its first round on.
func (g *Gateway) openSpool(ctx context.Context, log, tierLog *slog.Logger) (*spool.Spool, error) {
	o := spool.Options{Logger: log, Registerer: g.reg}
	if !g.cfg.Tiering.Enabled() {
		return spool.Open(g.cfg.Spool, o)
	}
	keys, err := spool.LoadKeys(g.cfg.Spool.Encryption)
	if err != nil {
		return nil, err
	}
	tier, err := tiering.New(ctx, g.cfg.Tiering, tiering.Options{
		Dir: TierDir(g.cfg.Gateway.DataDir), GatewayID: g.ID(), Keys: keys, Logger: tierLog, Registerer: g.reg, Parquet: export.SegmentParquet,
	})
	if err != nil {
		return nil, err
	}
	o.Keep = tier.Keep
	s, err := spool.Open(g.cfg.Spool, o)
	if err != nil {
		return nil, errors.Join(err, tier.Close(ctx))
	}
	tier.Attach(s)
	g.put(func() { g.tier = tier })
	return s, nil
}

// TierDir is where a tier keeps what it has to remember.
func TierDir(dataDir string) string { return filepath.Join(dataDir, "tier") }

func (g *Gateway) tieringPart() part {
	return part{
		name:   "tiering",
		start:  func(context.Context) error { return nil }, // it has started with the spool
		run:    func() error { return g.tiers().Run(context.Background()) },
		stop:   func(ctx context.Context) error { return g.tiers().Close(ctx) },
		health: func() error { return g.tiers().Health() },
		hint:   "segments are not stored until a restart; the spool keeps them",
	}
}

// tiers is the tier for those who look into it; nil when there is none.
func (g *Gateway) tiers() *tiering.Tier {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tier
}

// StartBackup implements api.Backup. An empty file of credentials is that of the tier when the backup goes to the same kind of store.
func (g *Gateway) StartBackup(r api.BackupRequest) error {
	g.mu.Lock()
	s := g.spool
	g.mu.Unlock()
	if s == nil {
		return spool.ErrClosed
	}
	return g.backups.Start(s, r.URL, store.Options{CredentialsFile: r.CredentialsFile}, backup.Options{
		Gateway: g.ID(), Scratch: g.cfg.Gateway.DataDir, Keep: r.Keep, Verify: r.Verify,
	})
}

// BackupStatus implements api.Backup.
func (g *Gateway) BackupStatus() backup.Status { return g.backups.Status() }
