package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/spool"
)

func newReplay() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Send a span of the past again: to a route, to Kafka, or to MQTT subscribers",
		Long: `Send a span of the past again: to a route with its mapping and condition as they are now, to an upstream, or to the MQTT
subscribers of the gateway. It reads what the spool has and what tiering has stored elsewhere, and moves no cursor of a route or a session.

  forebay replay --route telemetry --from -2h --to -1h
  forebay replay --route telemetry --from 2026-11-30T16:00:00Z --filter 'plant/7/#' --filter 'plant/8/#' --rate 2000/s
  forebay replay --upstream lake --topic 'again.${topic[1]}' --client press-12
  forebay replay --to-mqtt --prefix replay/ --from 0:17000 --to 0:18000

The gateway does it, also when this command has ended (ctrl-c, or --detach), and goes on with it after a restart. --from is inclusive and --to
is not: a time of reception (RFC 3339, now, or how long ago, such as -2h), an offset of each partition, or offsets of partitions (0:17,3:20; no
other partition is read then). Records whose time is over are not sent. Each record has its forebay.id as ever, and the header, or user
property, forebay.replay with the ID of the replay. docs/REPLAY.md has the rest.

The running gateway is asked on its admin listener (admin.address, or --admin), with the token of the file admin_token in
gateway.data_dir.

Exit codes: 0 done; 1 not done, or with records refused or gone before it came to them; 2 the command line is wrong.`,
		Args: onlyCommands,

		SuggestionsMinimumDistance: 2,
	}
	target, out := addRunning(cmd), addOutput(cmd)
	var r replay.Request
	f := cmd.Flags()
	f.StringVar(&r.Stream, "stream", "", "stream of the spool (default that of the route, or default)")
	f.StringVar(&r.From, "from", "", "first record: a time, -2h, an offset, or 0:17,3:20 (default the oldest)")
	f.StringVar(&r.To, "to", "", "where to end, exclusive (default now)")
	f.StringArrayVar(&r.Filters, "filter", nil, "only records whose MQTT topic matches this filter; may be given several times")
	f.StringVar(&r.ClientID, "client", "", "only records of this client ID")
	f.StringVar(&r.Route, "route", "", "send through this route")
	f.StringVar(&r.Upstream, "upstream", "", "send to this upstream, as they are")
	f.StringVar(&r.Topic, "topic", "", "Kafka topic with --upstream, may be with fields as in a route (default ${topic})")
	f.BoolVar(&r.ToMQTT, "to-mqtt", false, "publish to the MQTT subscribers of the gateway; no route gets it")
	f.StringVar(&r.Prefix, "prefix", "", "what comes before the topics with --to-mqtt, such as replay/")
	f.StringVar(&r.Rate, "rate", "", "records or bytes a second, 5000/s or 5MiB/s; 0 is no limit (default replay.records_per_second)")
	f.BoolVar(&r.DryRun, "dry-run", false, "only count, and show what would be sent")
	detach := f.Bool("detach", false, "do not wait for the end")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if r.Route == "" && r.Upstream == "" && !r.ToMQTT {
			if cmd.Flags().NFlag() == 0 {
				return cmd.Help()
			}
			return usage("say where to: --route, --upstream or --to-mqtt")
		}
		if err := r.Check(); err != nil {
			return usage("%s", strings.TrimSuffix(err.Error(), ": "+spool.ErrInvalid.Error()))
		}
		c, err := target.open()
		if err != nil {
			return err
		}
		s, err := c.StartReplay(contextOf(cmd), r)
		if err != nil {
			return hinted(c, err)
		}
		if *detach {
			return printReplay(cmd, out, s)
		}
		if s, err = follow(contextOf(cmd), c, s, newBar(cmd.ErrOrStderr())); err != nil {
			return err
		}
		if err := printReplay(cmd, out, s); err != nil {
			return err
		}
		return verdict(s)
	})
	cmd.AddCommand(newReplayLs(), newReplayOne("show", "Show a replay", (*api.Client).Replay), newReplayOne("cancel",
		"End a replay where it is; it can be resumed", (*api.Client).CancelReplay), newReplayOne("resume",
		"Have a replay go on that was cancelled or has failed", (*api.Client).ResumeReplay))
	return cmd
}

// verdict is the error of a replay that did not send all that was asked for.
func verdict(s replay.Status) error {
	switch {
	case s.State == replay.Failed:
		return fmt.Errorf("replay %s failed: %s\nwhat it has sent is sent; forebay replay resume %s goes on from there", s.ID, s.Error, s.ID)
	case s.State == replay.Cancelled:
		return fmt.Errorf("replay %s was cancelled; forebay replay resume %s goes on from where it was", s.ID, s.ID)
	case s.Lost > 0:
		return fmt.Errorf("%d offsets of the range were gone before the replay came to them", s.Lost)
	case s.Refused > 0 && !s.Request.DryRun:
		return fmt.Errorf("%d records were refused", s.Refused)
	}
	return nil
}

const (
	followEvery = 250 * time.Millisecond
	followLost  = time.Minute // without an answer: the gateway may be restarting
)

// follow shows how far a replay is until it ends.
func follow(ctx context.Context, c *api.Client, s replay.Status, b *bar) (replay.Status, error) {
	defer b.end()
	answered := time.Now()
	for s.State == replay.Running {
		b.progress(share(s), progressText(s))
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("replay %s goes on in the gateway: forebay replay show, or cancel, %s", s.ID, s.ID)
		case <-time.After(followEvery):
		}
		now, err := c.Replay(ctx, s.ID)
		switch {
		case err == nil:
			s, answered = now, time.Now()
		case errors.Is(err, context.Canceled):
		case time.Since(answered) > followLost:
			return s, hinted(c, fmt.Errorf("replay %s goes on when the gateway does: %w", s.ID, err))
		}
	}
	return s, nil
}

func share(s replay.Status) float64 {
	if s.Offsets == 0 {
		return 1
	}
	return float64(s.Passed) / float64(s.Offsets)
}

func progressText(s replay.Status) string {
	text := fmt.Sprintf("%d sent, %.0f/s", s.Sent, s.RecordsPerSecond)
	if s.Problem != nil {
		text += ", waits: " + s.Problem.Reason
	}
	return text
}

func printReplay(cmd *cobra.Command, out *output, s replay.Status) error {
	if out.json {
		return writeJSON(cmd.OutOrStdout(), s)
	}
	return showReplay(cmd.OutOrStdout(), s)
}

func showReplay(w io.Writer, s replay.Status) error {
	t := table(w, fmt.Sprintf("REPLAY\t%s", s.ID))
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	state := string(s.State)
	if s.Request.DryRun {
		state += " (dry run: nothing is sent)"
	}
	line("state", "%s", state)
	if s.Error != "" {
		line("error", "%s", s.Error)
	}
	if p := s.Problem; p != nil {
		line("waits", "%s since %s: %s", p.Reason, stamp(p.Since), p.Error)
		if p.Hint != "" {
			line("hint", "%s", p.Hint)
		}
	}
	line("from", "%s", rangeText(s))
	to := s.Target
	if s.Request.Route != "" && s.Upstream != "" {
		to += ", upstream " + s.Upstream
	}
	line("to", "%s", to)
	sent := "sent"
	if s.Request.DryRun {
		sent = "would be sent"
	}
	line(sent, "%d records, %s; %.0f/s", s.Sent, size(int64(s.Bytes)), s.RecordsPerSecond)
	line("left out", "%d by the route, %d whose time is over", s.LeftOut, s.Expired)
	line("refused", "%d", s.Refused)
	line("passed", "%d of %d offsets (%.1f%%)", s.Passed, s.Offsets, 100*share(s))
	if s.Lost > 0 {
		line("gone", "%d offsets, in %d gaps", s.Lost, len(s.Gaps))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return showReplayDetails(w, s)
}

func rangeText(s replay.Status) string {
	text := "stream " + s.Request.Stream
	if !s.Since.IsZero() {
		text += ", from " + s.Since.UTC().Format(time.RFC3339Nano)
	} else if s.Request.From != "" {
		text += ", from offset " + s.Request.From
	}
	if !s.Until.IsZero() {
		text += ", to " + s.Until.UTC().Format(time.RFC3339Nano)
	} else if s.Request.To != "" {
		text += ", to offset " + s.Request.To
	}
	for _, f := range s.Request.Filters {
		text += ", " + quoted(f)
	}
	if s.Request.ClientID != "" {
		text += ", client " + quoted(s.Request.ClientID)
	}
	return text
}

func showReplayDetails(w io.Writer, s replay.Status) error {
	if len(s.Gaps) > 0 {
		t := table(w, "\nGONE\tPARTITION\tFROM\tTO\tREASON")
		for i, g := range s.Gaps {
			if i == maxReplayLines {
				fmt.Fprintf(t, "\t... %d more: --output json\n", len(s.Gaps)-i)
				break
			}
			fmt.Fprintf(t, "\t%d\t%d\t%d\t%s\n", g.Partition, g.From, g.To, g.Reason)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(s.Refusals) > 0 {
		t := table(w, "\nREFUSED\tPARTITION\tOFFSET\tTOPIC\tREASON\tERROR")
		for _, r := range s.Refusals {
			fmt.Fprintf(t, "\t%d\t%d\t%s\t%s\t%s\n", r.Partition, r.Offset, quoted(r.Topic), r.Reason, shortened(quoted(r.Error), 80))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if s.Preview == nil {
		return nil
	}
	t := table(w, "\nWOULD GO TO\tRECORDS\tSIZE")
	for _, d := range s.Preview.Destinations {
		fmt.Fprintf(t, "%s\t%d\t%s\n", quoted(d.Topic), d.Records, size(int64(d.Bytes)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w, "\nSAMPLE\tRECEIVED\tMQTT TOPIC\tCLIENT\tTO\tKEY\tHEADERS")
	for _, x := range s.Preview.Samples {
		fmt.Fprintf(t, "%d:%d\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Partition, x.Offset, x.ReceivedAt.Format(time.RFC3339Nano), quoted(x.MQTTTopic),
			quoted(x.ClientID), quoted(x.Topic), quoted(x.Key), shortened(strings.Join(x.Headers, " "), 120))
	}
	return t.Flush()
}

const maxReplayLines = 20

func newReplayLs() *cobra.Command {
	return newAskAll(&cobra.Command{Use: "ls", Short: "List the replays that run, and those that have ended lately"}, (*api.Client).Replays, printReplays)
}

func printReplays(w io.Writer, l api.Replays) error {
	t := table(w, "ID\tSTATE\tSTREAM\tTO\tPASSED\tSENT\tRATE\tGONE\tCREATED\tWAITS FOR")
	for _, s := range l.Replays {
		waits := "-"
		if s.Problem != nil {
			waits = s.Problem.Reason
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.0f%%\t%d\t%.0f/s\t%d\t%s\t%s\n", s.ID, s.State, s.Request.Stream, s.Target, 100*share(s), s.Sent,
			s.RecordsPerSecond, s.Lost, stamp(s.Created), waits)
	}
	return t.Flush()
}

// newReplayOne is a command about one replay.
func newReplayOne(name, short string, ask func(*api.Client, context.Context, string) (replay.Status, error)) *cobra.Command {
	return newAskOne(&cobra.Command{Use: name + " ID", Short: short}, ask, showReplay)
}
