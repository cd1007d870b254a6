package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway/api"
)

func newRoute() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "route",
		Short: "List, show, test, pause, resume, move and retire routes and lanes",
		Long: `List, show, test, pause, resume, move and retire routes and lanes of a running gateway. A lane is the way to one partition of a Kafka topic.

A paused route or lane sends nothing until it is resumed, restarts included; its records wait in the spool, and a paused lane does not hold
the others. The gateway's health says so.

The running gateway is asked on its admin listener (admin.address, or --admin), with the token of the file admin_token in
gateway.data_dir.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	pause := changeRoute(&cobra.Command{Use: "pause ROUTE", Short: "Send nothing of a route or a lane until it is resumed"}, (*api.Client).Pause)
	resume := changeRoute(&cobra.Command{Use: "resume ROUTE", Short: "Let a paused route or lane go on"}, (*api.Client).Resume)
	cmd.AddCommand(newRouteLs(), newRouteShow(), newRouteTest(), pause, resume, newRouteFailover(), newRouteRetire())
	return cmd
}

func newRouteLs() *cobra.Command {
	return newAskAll(&cobra.Command{Use: "ls", Short: "List routes, how they are and what they have delivered"}, (*api.Client).Routes, printRoutes)
}

func printRoutes(w io.Writer, routes api.Routes) error {
	t := table(w, "ROUTE\tSTATE\tSINCE\tSTREAM\tUPSTREAM\tTOPIC\tLAG\tOLDEST\tSENT\tDEAD\tLANES\tNOTE")
	for _, r := range routes.Routes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\t%d\t%s\t%s\n", r.Route, r.State, stamp(r.Since), r.Stream, r.Upstream, r.Topic,
			r.Lag, age(r.LagAge), r.Sent, r.DeadLettered, lanes(r), shortened(quoted(note(r)), 100))
	}
	for _, o := range routes.Orphans {
		fmt.Fprintf(t, "%s\torphaned\t\t%s\t\t\t%d\t\t\t\t\t%s\n", cmp.Or(o.Route, "(dead letters)"), o.Stream, o.Lag, o.Problem+"; "+o.Hint)
	}
	return t.Flush()
}

func age(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

// lanes counts them: all, and those that need a word.
func lanes(r bridge.RouteInfo) string {
	s := fmt.Sprint(r.Lanes)
	if r.Detached > 0 {
		s += fmt.Sprintf(", %d detached", r.Detached)
	}
	if r.Held > 0 {
		s += fmt.Sprintf(", %d held", r.Held)
	}
	return s
}

func note(r bridge.RouteInfo) string {
	var parts []string
	for _, s := range []string{r.Reason, r.Where, r.Error, r.Hint, r.Warning} {
		if s != "" && s != string(r.State) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "; ")
}

func newRouteShow() *cobra.Command {
	return newAskOne(&cobra.Command{Use: "show ROUTE", Short: "Show a route with its lanes"}, (*api.Client).Route, printRoute)
}

func printRoute(w io.Writer, r bridge.RouteInfo) error {
	t := table(w, "ROUTE\t"+r.Route)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	since := ""
	if !r.Since.IsZero() {
		since = " since " + stamp(r.Since)
	}
	line("state", "%s%s", r.State, since)
	if n := note(r); n != "" {
		line("note", "%s", quoted(n))
	}
	line("way", "stream %s, filters %s, to %s, topic %s", r.Stream, quoted(strings.Join(r.Filters, " ")), r.Upstream, r.Topic)
	if f := r.Failover; f != nil {
		line("upstreams", "%s", failoverText(r.Upstream, f))
	}
	line("lag", "%d records, the oldest %s old", r.Lag, age(r.LagAge))
	if bl := r.Backlog; bl != nil {
		line("backlog", "%d of these records are delivered beside newer ones, put aside %s; without them the oldest is %s old", bl.Lag, backlogTimes(bl), age(bl.LiveLagAge))
	}
	line("sent", "%d records, %s; %d sent again", r.Sent, size(int64(r.SentBytes)), r.Retried)
	line("left out", "%d not matched, %d expired, %d dead letters", r.Skipped, r.Expired, r.DeadLettered)
	line("in the air", "%d records; %s in memory", r.InFlight, size(r.Buffered))
	if len(r.PausedLanes) > 0 {
		line("paused", "%s", strings.Join(r.PausedLanes, " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w, "\nLANE\tSPOOL PARTITION\tSTATE\tSINCE\tOFFSET\tIN FLIGHT\tPENDING\tNOTE")
	for _, l := range r.LaneList {
		var parts []string
		for _, s := range []string{l.Reason, l.Error, l.Hint} {
			if s != "" {
				parts = append(parts, s)
			}
		}
		if l.Backlog {
			l.Lane += " (backlog)"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%d\t%d\t%s\n", l.Lane, l.Partition, l.State, stamp(l.Since), l.Offset, l.InFlight, l.Pending,
			shortened(quoted(strings.Join(parts, "; ")), 100))
	}
	return t.Flush()
}

// backlogTimes says when each was put aside.
func backlogTimes(s *bridge.BacklogState) string {
	var times []string
	for _, b := range s.Backlogs {
		times = append(times, stamp(b.Since))
	}
	return strings.Join(times, ", ")
}

func changeRoute(cmd *cobra.Command, change func(*api.Client, context.Context, string, string) (bridge.RouteInfo, error)) *cobra.Command {
	lane := cmd.Flags().String("lane", "", "only this lane: Kafka topic and partition, such as telemetry/3")
	return newAskOne(cmd, func(c *api.Client, ctx context.Context, name string) (bridge.RouteInfo, error) {
		return change(c, ctx, name, *lane)
	}, func(w io.Writer, r bridge.RouteInfo) error {
		_, err := fmt.Fprintf(w, "route %s: %s\n", r.Route, changedText(r, *lane))
		return err
	})
}

// changedText is the state of a route after a pause or the end of one. The route counts as paused as long as one of its lanes is, which
// says too little to who has just resumed the others.
func changedText(r bridge.RouteInfo, lane string) string {
	left := slices.DeleteFunc(slices.Clone(r.PausedLanes), func(l string) bool { return l == lane })
	if r.State != bridge.Paused || r.Where == "" || len(left) == 0 {
		return string(r.State)
	}
	return fmt.Sprintf("not paused, but %s is by itself: forebay route resume %s --lane %s", r.Where, r.Route, left[0])
}
