package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge"
)

func newRouteFailover() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "failover ROUTE --to UPSTREAM",
		Short: "Have a route go on with another one of its upstreams",
		Long: `Have a route go on with another one of its upstreams (its upstream and failover.to). What is in the air has ten seconds to be acknowledged;
the rest is sent to the other one. A route that was sent away from its first upstream stays there, restarts included, until it is sent
back, or until the upstream acknowledges nothing for failover.after.`,
		Args: cobra.ExactArgs(1),
	}
	target, out := addRunning(cmd), addOutput(cmd)
	to := cmd.Flags().String("to", "", "name of the upstream")
	_ = cmd.MarkFlagRequired("to")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		c, err := target.open()
		if err != nil {
			return err
		}
		r, err := c.Failover(contextOf(cmd), args[0], *to)
		if err != nil {
			return hinted(c, err)
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), r)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "route %s: on upstream %s, %s\n", r.Route, r.Upstream, r.State)
		return err
	})
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
