package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/gateway/api"
)

func newDownlink() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "downlink",
		Short: "List, show, pause and resume downlinks, the way from Kafka to MQTT",
		Long: `List, show, pause and resume the downlinks of a running gateway, which bring records of Kafka topics to MQTT.

A paused downlink reads nothing until it is resumed, restarts included, and then goes on where it was. Resume also lets partitions go on that
are held because records were gone before they were read, or because their topic was made anew (on_gap: hold).

The running gateway is asked on its admin listener (admin.address, or --admin), with the token of the file admin_token in
gateway.data_dir.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	pause := changeDownlink(&cobra.Command{Use: "pause DOWNLINK", Short: "Read nothing until the downlink is resumed"}, (*api.Client).PauseDownlink)
	resume := changeDownlink(&cobra.Command{Use: "resume DOWNLINK", Short: "Let a downlink go on, also behind gaps"}, (*api.Client).ResumeDownlink)
	cmd.AddCommand(newDownlinkLs(), newDownlinkShow(), pause, resume)
	return cmd
}

func newDownlinkLs() *cobra.Command {
	return newAskAll(&cobra.Command{Use: "ls", Short: "List downlinks, how they are and what they have brought"}, (*api.Client).Downlinks, printDownlinks)
}

func printDownlinks(w io.Writer, all api.Downlinks) error {
	t := table(w, "DOWNLINK\tSTATE\tSINCE\tUPSTREAM\tKAFKA TOPICS\tMQTT TOPIC\tPARTITIONS\tLAG\tRECORDS\tPOISON\tGAPS\tNOTE")
	for _, d := range all.Downlinks {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%s\n", d.Downlink, d.State, stamp(d.Since), d.Upstream, shortened(d.Topics, 40),
			d.Topic, d.Partitions, orDash(d.Lag), d.Records, total(d.Poison), total(d.Gaps), shortened(quoted(downlinkNote(d)), 100))
	}
	return t.Flush()
}

// orDash is a number, or - when it is not known.
func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

func total(byReason map[string]uint64) (n uint64) {
	for _, m := range byReason {
		n += m
	}
	return n
}

func downlinkNote(d downlink.Info) string {
	var parts []string
	for _, s := range []string{d.Reason, d.Where, d.Error, d.Hint} {
		if s != "" && s != string(d.State) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "; ")
}

func newDownlinkShow() *cobra.Command {
	return newAskOne(&cobra.Command{Use: "show DOWNLINK", Short: "Show a downlink with its partitions"}, (*api.Client).Downlink, printDownlink)
}

func printDownlink(w io.Writer, d downlink.Info) error {
	t := table(w, "DOWNLINK\t"+d.Downlink)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	since := ""
	if !d.Since.IsZero() {
		since = " since " + stamp(d.Since)
	}
	line("state", "%s%s", d.State, since)
	if n := downlinkNote(d); n != "" {
		line("note", "%s", quoted(n))
	}
	line("way", "%s of %s, to %s", d.Topics, d.Upstream, d.Topic)
	lag := "not known: nothing is read, or Kafka does not answer"
	if d.Lag != nil {
		lag = orDash(d.Lag) + " records"
	}
	line("lag", "%s", lag)
	line("published", "%d records, %s", d.Records, size(int64(d.Bytes)))
	line("left out", "%s", reasons(d.LeftOut))
	line("poison", "%s", reasons(d.Poison))
	line("gaps", "%s; offsets that were gone: %s", reasons(d.Gaps), reasons(d.GapOffsets))
	line("in memory", "%s", size(d.Buffered))
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w, "\nPARTITION\tSTATE\tSINCE\tPOSITION\tEND\tLAG\tQUEUED\tNOTE")
	for _, p := range d.PartitionList {
		var parts []string
		for _, s := range []string{p.Reason, p.Error, p.Hint} {
			if s != "" {
				parts = append(parts, s)
			}
		}
		end := "-"
		if p.End >= 0 {
			end = strconv.FormatInt(p.End, 10)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\n", p.Partition, p.State, stamp(p.Since), p.Position, end, orDash(p.Lag), p.Queued,
			shortened(quoted(strings.Join(parts, "; ")), 100))
	}
	return t.Flush()
}

// reasons lists counts that are not 0.
func reasons(by map[string]uint64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		if by[k] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, by[k]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func changeDownlink(cmd *cobra.Command, change func(*api.Client, context.Context, string) (downlink.Info, error)) *cobra.Command {
	return newAskOne(cmd, change, func(w io.Writer, d downlink.Info) error {
		_, err := fmt.Fprintf(w, "downlink %s: %s\n", d.Downlink, d.State)
		return err
	})
}
