package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
)

func newRouteRetire() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retire ROUTE --yes",
		Short: "Give up what the spool keeps for a route that the configuration does not have any more",
		Long: `Give up what the spool keeps for a route that the configuration does not have any more.

A route that was renamed or taken out leaves its position behind, and the spool keeps every record that it has not delivered, until it
is full. This forgets the position: records that no other route or session waits for are removed as retention says. It cannot be undone;
give a route the old name again to have them delivered instead. Without --yes nothing is changed, and what would be given up is said.

The running gateway is asked; when none runs, it is done in the files, which needs the configuration that serve has.`,
		Args: cobra.ExactArgs(1),
	}
	target, out := addRunning(cmd), addOutput(cmd)
	yes := cmd.Flags().Bool("yes", false, "do it")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		cfg, err := target.config()
		if err != nil {
			return err
		}
		retire := retireStopped
		if !*yes {
			retire = lookStopped
		}
		o, err := retire(contextOf(cmd), target, cfg, args[0], cmd.ErrOrStderr())
		if errors.Is(err, spool.ErrInUse) {
			o, err = retireRunning(contextOf(cmd), target, cfg, args[0], *yes)
		}
		switch {
		case err != nil:
			return err
		case !*yes:
			return usage("route %s: %d records of stream %s, %s on disk, would be given up; nothing is changed without --yes", o.Route, o.Lag, o.Stream, size(o.Bytes))
		case out.json:
			return writeJSON(cmd.OutOrStdout(), o)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "route %s is retired: %d records of stream %s are given up\n", o.Route, o.Lag, o.Stream)
		return err
	})
	return cmd
}

func retireRunning(ctx context.Context, target *running, cfg config.Config, route string, yes bool) (bridge.Orphan, error) {
	c, err := target.client(cfg)
	if err != nil {
		return bridge.Orphan{}, err
	}
	if yes {
		o, err := c.Retire(ctx, route)
		return o, hinted(c, err)
	}
	all, err := c.Routes(ctx)
	if err != nil {
		return bridge.Orphan{}, hinted(c, err)
	}
	return orphan(all.Orphans, route)
}

func orphan(orphans []bridge.Orphan, route string) (bridge.Orphan, error) {
	i := slices.IndexFunc(orphans, func(o bridge.Orphan) bool { return o.Route == route })
	if i < 0 {
		return bridge.Orphan{}, fmt.Errorf("route %s: nothing is kept for a route of that name that the configuration does not have: see forebay route ls", route)
	}
	return orphans[i], nil
}

// lookStopped says what the spool of a stopped gateway keeps for a route.
func lookStopped(ctx context.Context, _ *running, cfg config.Config, route string, _ io.Writer) (_ bridge.Orphan, err error) {
	v, err := spool.OpenView(cfg.Spool, spool.Options{})
	if err != nil {
		return bridge.Orphan{}, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	l, err := v.List(ctx)
	if err != nil {
		return bridge.Orphan{}, err
	}
	var cursors []spool.CursorInfo
	for _, c := range l.Cursors {
		cursors = append(cursors, spool.CursorInfo{Name: c.Name, Stream: c.Stream, Protect: c.Protect, Positions: c.Positions, Lag: c.Lag})
	}
	return orphan(bridge.Orphaned(cfg.Bridge, cursors), route)
}

// retireStopped opens the spool as serve would.
func retireStopped(ctx context.Context, target *running, cfg config.Config, route string, w io.Writer) (_ bridge.Orphan, err error) {
	if target.flags.File == "" && target.dir != "" {
		return bridge.Orphan{}, usage("--yes needs the configuration that serve has: give --config")
	}
	// Not before the look: opening a directory that is not there would make one.
	if _, err := lookStopped(ctx, target, cfg, route, w); err != nil {
		return bridge.Orphan{}, err
	}
	s, err := spool.Open(cfg.Spool, spool.Options{Logger: gateway.NewLogger(cfg.Log, w)})
	if err != nil {
		return bridge.Orphan{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return bridge.Retire(ctx, cfg.Bridge, bridge.FromSpool(s), route)
}
