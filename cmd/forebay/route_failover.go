package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway/api"
)

func newRouteFailover() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "failover ROUTE --to UPSTREAM",
		Short: "Have a route go on with another one of its upstreams",
		Long: `Have a route go on with another one of its upstreams (its upstream and failover.to). What is in the air has ten seconds to be acknowledged;
the rest is sent to the other one. A route that was sent away from its first upstream stays there, restarts included, until it is sent
back, or until the upstream acknowledges nothing for failover.after.`,
	}
	to := cmd.Flags().String("to", "", "name of the upstream")
	newAskOne(cmd, func(c *api.Client, ctx context.Context, name string) (bridge.RouteInfo, error) {
		return c.Failover(ctx, name, *to)
	}, func(w io.Writer, r bridge.RouteInfo) error {
		_, err := fmt.Fprintf(w, "route %s: on upstream %s, %s\n", r.Route, r.Upstream, r.State)
		return err
	})
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *to == "" {
			return usage("want %s, and there is no --to: forebay route show %s lists the upstreams", strings.TrimSuffix(cmd.UseLine(), " [flags]"), args[0])
		}
		return ask(cmd, args)
	}
	return cmd
}

// failoverText says where a route with failover is, and why.
func failoverText(active string, f *bridge.FailoverState) string {
	names := make([]string, len(f.Upstreams))
	for i, name := range f.Upstreams {
		if names[i] = name; f.Hindered[name] != "" {
			names[i] += " (not usable now: " + f.Hindered[name] + ")"
		}
	}
	s := strings.Join(names, ", then ")
	if !f.Since.IsZero() {
		s += fmt.Sprintf("; on %s since %s, by %s: %s", active, stamp(f.Since), f.By, f.Reason)
	}
	return s
}
