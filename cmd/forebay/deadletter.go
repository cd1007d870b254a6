package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
)

func newDeadLetter() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletter",
		Short: "List, show, redrive and purge records that Kafka would not take",
		Long: `List, show, redrive and purge records that Kafka would not take. They are in the stream bridge.dead_letter_stream, and stay until they
are redriven or purged.

The running gateway is asked on its admin listener (admin.address, or --admin), with the token of the file admin_token in
gateway.data_dir.

Exit codes: 0 done; 1 not done, or for redrive: some were refused again; 2 the command line is wrong.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newDeadLetterLs(), newDeadLetterShow(), newDeadLetterRedrive(), newDeadLetterPurge())
	return cmd
}

// running is the gateway that a command asks.
type running struct{ *spoolTarget }

func addRunning(cmd *cobra.Command) *running { return &running{addSpoolTarget(cmd)} }

func (t *running) open() (*api.Client, error) {
	cfg, err := t.config()
	if t.elsewhere() && errors.Is(err, fs.ErrNotExist) {
		cfg, err = config.DefaultConfig(), nil
	}
	if err != nil {
		return nil, err
	}
	return t.client(cfg)
}

// elsewhere reports whether the command line has all that it takes to ask a gateway of another machine, and names no configuration.
func (t *running) elsewhere() bool {
	return t.admin != "" && (t.token != "" || t.trust.CertFile != "") && t.flags.Path() == config.DefaultFile
}

// hinted adds to an error what can be done about it. A gateway that has answered is the right one, and says itself what is wrong.
func hinted(c *api.Client, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*api.Refusal](err); ok {
		return err
	}
	if hint := tlsHint(err); hint != "" {
		return fmt.Errorf("%w\n%s", err, hint)
	}
	return fmt.Errorf("%w\nis %s the admin address of a running gateway (--admin), and the token its own (--token-file)?", err, c.Address)
}

// tlsHint is what can be done about an error of TLS, "" when err is none.
func tlsHint(err error) string {
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case otherName:
		return "ask under a name or address that the gateway's certificate (admin.tls.cert_file) has"
	case unverified:
		return "name the CA that made the gateway's certificate (admin.tls.cert_file) with --admin-ca, or give the gateway's own configuration with --config"
	case op != nil && op.Op == "remote error":
		return "the gateway refuses this side of TLS: it may ask for a certificate of the client, --admin-cert and --admin-key"
	}
	return ""
}

// letterFilter is which dead letters a command is about.
type letterFilter struct {
	q            bridge.DeadLetterQuery
	since, until string
}

func addLetterFilter(cmd *cobra.Command) *letterFilter {
	f := &letterFilter{}
	cmd.Flags().StringVar(&f.q.Route, "route", "", "only those of this route")
	cmd.Flags().StringVar(&f.q.Reason, "reason", "", "only those refused for this reason, such as too_large")
	cmd.Flags().StringVar(&f.q.Filter, "filter", "", "only those whose MQTT topic matches this filter")
	cmd.Flags().StringVar(&f.q.ClientID, "client", "", "only those of this client ID")
	cmd.Flags().StringVar(&f.since, "since", "", "only those that became dead letters since then: a time, or how long ago, such as 90m")
	cmd.Flags().StringVar(&f.until, "until", "", "only those that became dead letters before then")
	return f
}

// query also takes the IDs that the command line gives; without one it is a single query by the filters.
func (f *letterFilter) queries(ids []string) (_ []bridge.DeadLetterQuery, err error) {
	now := time.Now()
	if f.q.Since, err = parseTime(f.since, now); err != nil {
		return nil, err
	}
	if f.q.Until, err = parseTime(f.until, now); err != nil {
		return nil, err
	}
	if f.q.Filter != "" {
		if err := spool.CheckFilter(f.q.Filter); err != nil {
			return nil, usage("--filter: %w", err)
		}
	}
	for _, id := range ids {
		if err := checkLetterID(id); err != nil {
			return nil, err
		}
	}
	if len(ids) == 0 {
		return []bridge.DeadLetterQuery{f.q}, nil
	}
	var out []bridge.DeadLetterQuery
	for _, id := range ids {
		q := f.q
		q.ID = id
		out = append(out, q)
	}
	return out, nil
}

func checkLetterID(id string) error {
	if err := bridge.CheckDeadLetterID(id); err != nil {
		return usage("%s", strings.TrimSuffix(err.Error(), ": "+spool.ErrInvalid.Error()))
	}
	return nil
}

func (f *letterFilter) empty() bool {
	q := f.q
	return q.Route == "" && q.Reason == "" && q.Filter == "" && q.ClientID == "" && f.since == "" && f.until == ""
}

// checkRoute tells a slip from a route that has no dead letters. It is for a filter that has found none: those of a route that is gone are
// found by its name.
func (f *letterFilter) checkRoute(ctx context.Context, c *api.Client) error {
	if f.q.Route == "" {
		return nil
	}
	routes, err := c.Routes(ctx)
	if err != nil {
		return hinted(c, err)
	}
	downlinks, err := c.Downlinks(ctx)
	if err != nil {
		return hinted(c, err)
	}
	var names []string
	for _, r := range routes.Routes {
		names = append(names, r.Route)
	}
	for _, d := range downlinks.Downlinks {
		names = append(names, d.Downlink)
	}
	if slices.Contains(names, f.q.Route) {
		return nil
	}
	return fmt.Errorf("there are no dead letters of a route or downlink %q, and no such one; there are: %s", f.q.Route, strings.Join(names, ", "))
}

func newDeadLetterLs() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List dead letters, the oldest first", Args: cobra.NoArgs}
	target, filter, out := addRunning(cmd), addLetterFilter(cmd), addOutput(cmd)
	limit := cmd.Flags().Int("limit", 100, "dead letters to list; -1 is all")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		c, err := target.open()
		if err != nil {
			return err
		}
		queries, err := filter.queries(nil)
		if err != nil {
			return err
		}
		q := queries[0]
		result := bridge.DeadLetterPage{Letters: []bridge.DeadLetter{}}
		for {
			if *limit >= 0 {
				if q.Limit = *limit - len(result.Letters); q.Limit <= 0 {
					result.Next = q.At
					break
				}
			}
			page, err := c.DeadLetters(contextOf(cmd), q)
			if err != nil {
				return hinted(c, err)
			}
			result.Letters = append(result.Letters, page.Letters...)
			if q.At = page.Next; q.At == "" {
				break
			}
		}
		if len(result.Letters) == 0 {
			if err := filter.checkRoute(contextOf(cmd), c); err != nil {
				return err
			}
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), result)
		}
		return printLetters(cmd.OutOrStdout(), result)
	})
	return cmd
}

func printLetters(w io.Writer, page bridge.DeadLetterPage) error {
	t := table(w, "ID\tAT\tROUTE\tREASON\tTOPIC\tCLIENT\tSIZE\tATTEMPTS\tKAFKA TOPIC\tERROR")
	for _, l := range page.Letters {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", l.ID, stamp(l.At), l.Route, l.Reason, quoted(l.Topic), quoted(l.ClientID),
			size(int64(l.Bytes)), l.Attempts, destination(l), shortened(quoted(l.Error), 80))
	}
	if page.Next != "" {
		fmt.Fprintln(t, "more: --limit -1 lists all")
	}
	return t.Flush()
}

// destination is where Kafka would not have it: there is no topic when the mapping already failed, and no partition when it was not
// decided yet.
func destination(l bridge.DeadLetter) string {
	switch {
	case l.KafkaTopic == "":
		return "-"
	case l.KafkaPartition < 0:
		return l.KafkaTopic
	}
	return fmt.Sprintf("%s/%d", l.KafkaTopic, l.KafkaPartition)
}

func shortened(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func newDeadLetterShow() *cobra.Command {
	cmd := newAskOne(&cobra.Command{Use: "show ID", Short: "Show a dead letter with its record"}, (*api.Client).DeadLetter, printLetter)
	ask := cmd.RunE
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if err := checkLetterID(args[0]); err != nil {
			return err
		}
		return ask(cmd, args)
	})
	return cmd
}

func printLetter(w io.Writer, l bridge.DeadLetter) error {
	t := table(w, fmt.Sprintf("DEAD LETTER\t%s", l.ID))
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("since", "%s", stamp(l.At))
	line("route", "%s to %s", l.Route, l.Upstream)
	line("kafka topic", "%s", destination(l))
	line("reason", "%s after %d attempts", l.Reason, l.Attempts)
	line("error", "%s", quoted(l.Error))
	if l.Hint != "" {
		line("hint", "%s", l.Hint)
	}
	line("record", "stream %s partition %d offset %d", l.Stream, l.Partition, l.Offset)
	line("received", "%s", l.ReceivedAt.UTC().Format(time.RFC3339Nano))
	line("topic", "%s", quoted(l.Topic))
	line("client", "%s", quoted(l.ClientID))
	if r := l.Record; r != nil {
		line("flags", "qos=%d retain=%t", r.QoS, r.Retain)
		if !r.Expires.IsZero() {
			line("expires", "%s", stamp(r.Expires))
		}
		if p := r.Properties; p != nil {
			for _, u := range p.User {
				line("property", "%s: %s", quoted(u[0]), quoted(u[1]))
			}
			if p.ContentType != "" {
				line("content type", "%s", quoted(p.ContentType))
			}
		}
		line("payload", "%s, %s: %s", size(int64(l.Bytes)), r.Encoding, shortened(quoted(r.Payload), 2000))
	}
	return t.Flush()
}

// letterWork is the JSON result of redrive and purge.
type letterWork struct {
	DryRun   bool                      `json:"dry_run"`
	Selected int                       `json:"selected"`
	Done     int                       `json:"done"`
	Failed   []bridge.DeadLetterFailed `json:"failed"`
}

const maxFailed = 1000 // that are remembered; the count goes on

func newDeadLetterRedrive() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redrive [ID...]",
		Short: "Send dead letters through their routes again",
		Long: `Send dead letters through their routes again: those of the IDs, or all that the filters select. They keep their time and their forebay.id,
and get a header forebay.redrive with the time of the redrive. What Kafka takes is no dead letter any more; what it refuses again stays
one. They come behind records that were newer than they.`,
	}
	return letterCommand(cmd, "redriven", (*api.Client).Redrive)
}

func newDeadLetterPurge() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "purge [ID...]",
		Short: "Give up dead letters",
		Long: `Give up dead letters: those of the IDs, or all that the filters select. They are not listed any more, and go with the retention of their
stream. Without IDs and filters --all is asked for.`,
	}
	return letterCommand(cmd, "purged", (*api.Client).Purge)
}

func letterCommand(cmd *cobra.Command, verb string, page func(*api.Client, context.Context, bridge.DeadLetterQuery, bool) (bridge.DeadLetterWork, error)) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	target, filter, out := addRunning(cmd), addLetterFilter(cmd), addOutput(cmd)
	dry := cmd.Flags().Bool("dry-run", false, "only count them")
	all := cmd.Flags().Bool("all", false, "every dead letter")
	cmd.RunE = does(func(cmd *cobra.Command, ids []string) error {
		switch none := len(ids) == 0 && filter.empty(); {
		case none && !*all && !*dry:
			return usage("name dead letters by ID or by a filter, or give --all")
		case !none && *all:
			return usage("--all is no company for IDs and filters")
		}
		queries, err := filter.queries(ids)
		if err != nil {
			return err
		}
		c, err := target.open()
		if err != nil {
			return err
		}
		w, failed, err := workLetters(cmd, c, queries, *dry, page)
		if err == nil && w.Selected == 0 && len(ids) == 0 {
			if err := filter.checkRoute(contextOf(cmd), c); err != nil {
				return err
			}
		}
		switch {
		case w.Selected == 0 && (err != nil || len(ids) > 0): // the error says it; "0 of 0" is no result
		case out.json:
			if jerr := writeJSON(cmd.OutOrStdout(), w); jerr != nil {
				return jerr
			}
		default:
			printWork(cmd.OutOrStdout(), w, verb, failed)
		}
		switch {
		case err != nil:
			return hinted(c, err)
		case len(ids) > 0 && w.Selected < len(ids):
			return fmt.Errorf("%d of %d: %w", len(ids)-w.Selected, len(ids), bridge.ErrUnknownDeadLetter)
		case failed > 0:
			return fmt.Errorf("%d dead letters were refused again", failed)
		}
		return nil
	})
	return cmd
}

// workLetters goes through the pages of all queries.
func workLetters(cmd *cobra.Command, c *api.Client, queries []bridge.DeadLetterQuery, dry bool,
	page func(*api.Client, context.Context, bridge.DeadLetterQuery, bool) (bridge.DeadLetterWork, error),
) (w letterWork, failed int, err error) {
	w = letterWork{DryRun: dry, Failed: []bridge.DeadLetterFailed{}}
	b := newBar(cmd.ErrOrStderr())
	defer b.end()
	for _, q := range queries {
		for {
			p, err := page(c, contextOf(cmd), q, dry)
			w.Selected += p.Selected
			w.Done += p.Done
			failed += len(p.Failed)
			w.Failed = append(w.Failed, p.Failed[:min(len(p.Failed), maxFailed-min(len(w.Failed), maxFailed))]...)
			if err != nil {
				return w, failed, err
			}
			b.count(fmt.Sprintf("%d selected, %d done, %d refused again", w.Selected, w.Done, failed))
			if q.At = p.Next; q.At == "" {
				break
			}
		}
	}
	return w, failed, nil
}

func printWork(w io.Writer, done letterWork, verb string, failed int) {
	if done.DryRun {
		fmt.Fprintf(w, "%d dead letters would be %s\n", done.Selected, verb)
		return
	}
	fmt.Fprintf(w, "%d of %d dead letters %s\n", done.Done, done.Selected, verb)
	if failed == 0 {
		return
	}
	t := table(w, "\nID\tROUTE\tREASON\tERROR")
	for _, f := range done.Failed {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.ID, f.Route, f.Reason, shortened(strings.TrimSpace(quoted(f.Error)), 120))
	}
	t.Flush()
}
