package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

func newTier() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tier",
		Short: "List, read and export what is in object storage",
		Long: `List, read and export what the gateway has put into object storage. The store is that of the configuration (tiering.url), or --store;
it is read directly, with the credentials of whoever calls. What is not there yet comes from the spool: of a stopped gateway from its
files, of a running one by asking it. With --cold-only the spool is not looked at, so that it works without the gateway's machine.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newTierLs(), newTierDump(), newTierExport(), newTierAdopt())
	return cmd
}

// tierTarget is the store that a command is about, and the spool that goes with it.
type tierTarget struct {
	*spoolTarget
	url         string
	credentials string
	coldOnly    bool
}

func addTierTarget(cmd *cobra.Command) *tierTarget {
	t := &tierTarget{spoolTarget: addSpoolTarget(cmd)}
	cmd.Flags().StringVar(&t.url, "store", "", "URL of the store (default tiering.url)")
	cmd.Flags().StringVar(&t.credentials, "credentials-file", "", "its credentials (default tiering.credentials_file)")
	cmd.Flags().BoolVar(&t.coldOnly, "cold-only", false, "do not look at the spool")
	return t
}

// openTier is everything that a look at cold records needs. local is nil with --cold-only.
func (t *tierTarget) openTier(ctx context.Context) (cfg config.Config, cold *tiering.Cold, local spool.Inspector, closer func() error, err error) {
	if cfg, err = t.tierConfig(); err != nil {
		return cfg, nil, nil, nil, err
	}
	var closers []func() error
	closer = func() error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	fail := func(err error) (config.Config, *tiering.Cold, spool.Inspector, func() error, error) {
		return cfg, nil, nil, nil, errors.Join(err, closer())
	}
	keys, err := spool.LoadKeys(cfg.Spool.Encryption)
	if err != nil {
		return fail(err)
	}
	st, err := store.Open(ctx, cfg.Tiering.URL, store.Options{CredentialsFile: cfg.Tiering.CredentialsFile})
	if err != nil {
		return fail(err)
	}
	closers = append(closers, st.Close)
	dir, err := os.MkdirTemp("", "forebay-tier-*") // not the running gateway's cache
	if err != nil {
		return fail(err)
	}
	closers = append(closers, func() error { return os.RemoveAll(dir) })
	cache, err := tiering.NewCache(dir, int64(cfg.Tiering.CacheSize), keys, int64(cfg.Tiering.Bandwidth))
	if err != nil {
		return fail(err)
	}
	closers = append(closers, cache.Close)
	if !t.coldOnly {
		in, c, err := t.open()
		if err != nil {
			return fail(fmt.Errorf("%w\nwith --cold-only the spool is left out", err))
		}
		local = in
		closers = append(closers, c)
	}
	return cfg, &tiering.Cold{Store: st, Cache: cache}, local, closer, nil
}

func (t *tierTarget) tierConfig() (config.Config, error) {
	cfg := config.DefaultConfig()
	if t.url == "" || t.flags.File != "" || t.dir != "" {
		var err error
		if cfg, err = t.config(); err != nil {
			return cfg, err
		}
	}
	if t.url != "" {
		cfg.Tiering.URL, cfg.Tiering.CredentialsFile = t.url, t.credentials
	}
	if t.credentials != "" {
		cfg.Tiering.CredentialsFile = t.credentials
	}
	if cfg.Tiering.URL == "" {
		return cfg, errors.New("there is no store: tiering.url is not set; give --store")
	}
	return cfg, store.CheckDir(cfg.Tiering.URL)
}

func newTierLs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls [STREAM...]",
		Short: "Show what is stored of each stream, how it grows and what it costs",
		Long: `Show what is stored of each stream, how it grows and what it costs. A running gateway is asked; with --cold-only, or --store, the
manifests in the store are read instead, and what is in the spool is not known.

Growth is that of sealed segments over the last seven days. FULL IN is when the local limit is reached if nothing is removed. COST is per
month at tiering.price_per_gb_month: of what is stored now, and of what retention and max_size come to in the end (~ when it grows for ever). ? is
of a stream that has been looked at for less than an hour.`,
	}
	target, out := addTierTarget(cmd), addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		s, err := target.status(contextOf(cmd), args)
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), s)
		}
		return printTier(cmd.OutOrStdout(), s)
	})
	return cmd
}

// status asks the gateway, or reads the manifests.
func (t *tierTarget) status(ctx context.Context, streams []string) (tiering.Status, error) {
	if !t.coldOnly && t.url == "" {
		cfg, err := t.config()
		if err != nil {
			return tiering.Status{}, err
		}
		c, err := t.client(cfg)
		if err != nil {
			return tiering.Status{}, fmt.Errorf("%w\nwith --cold-only the store is read", err)
		}
		s, err := c.Tiering(ctx)
		if err != nil {
			return s, fmt.Errorf("%w\nwith --cold-only the store is read", err)
		}
		if len(streams) > 0 {
			names := make([]string, len(s.Streams))
			for i, l := range s.Streams {
				names[i] = l.Stream
			}
			for _, name := range streams {
				if err := oneOf(names, name, s.Store); err != nil {
					return s, fmt.Errorf("%w (tiering.streams says which are stored)", err)
				}
			}
			s.Streams = slices.DeleteFunc(s.Streams, func(l tiering.StreamStatus) bool { return !slices.Contains(streams, l.Stream) })
		}
		return s, nil
	}
	t.coldOnly = true
	cfg, cold, _, closer, err := t.openTier(ctx)
	if err != nil {
		return tiering.Status{}, err
	}
	s := tiering.Status{Store: cold.Store.String(), Streams: []tiering.StreamStatus{}}
	if o, err := manifest.ReadOwner(ctx, cold.Store); err == nil {
		s.Gateway = o.Gateway
	} else if !errors.Is(err, store.ErrNotExist) {
		return s, errors.Join(err, closer())
	}
	if len(streams) == 0 {
		if streams, err = storedStreams(ctx, cold.Store); err != nil {
			return s, errors.Join(err, closer())
		}
	}
	for _, name := range streams {
		if err := knownStream(ctx, cold.Store, nil, name); err != nil {
			return s, errors.Join(err, closer())
		}
	}
	for _, name := range streams {
		m, err := cold.Manifest(ctx, name)
		if err != nil {
			return s, errors.Join(err, closer())
		}
		s.Streams = append(s.Streams, tiering.StatusOf(m, cfg.Tiering))
	}
	return s, closer()
}

// storedStreams are the streams that have a manifest.
func storedStreams(ctx context.Context, st store.Store) (names []string, err error) {
	err = st.List(ctx, "", func(o store.Object) error {
		name, rest, _ := strings.Cut(o.Key, "/")
		if strings.HasPrefix(rest, "manifest/") && !slices.Contains(names, name) {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

func printTier(w io.Writer, s tiering.Status) error {
	fmt.Fprintf(w, "%s of gateway %s\n", s.Store, s.Gateway)
	if s.Problem != "" {
		fmt.Fprintf(w, "since %s: %s\n", stamp(s.Since), s.Problem)
	}
	if len(s.Streams) == 0 {
		_, err := fmt.Fprintln(w, "nothing is stored there")
		return err
	}
	t := table(w, "STREAM\tLOCAL\tSEGMENTS\tCOLD\tSEGMENTS\tOBJECTS\tFROM\tTO\tBEHIND\tPER DAY\tFULL IN\tCOST\tIN THE END\tNOTE")
	for _, l := range s.Streams {
		perDay, full, final := size(int64(l.BytesPerDay)), "-", "~"
		if !l.GrowthKnown {
			perDay, full, final = "?", "?", "?"
		}
		if l.LocalFullIn != nil {
			full = fmt.Sprintf("%.1fd", *l.LocalFullIn)
		}
		if l.CostFinal != nil {
			final = fmt.Sprintf("%.2f", *l.CostFinal)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%d\t%s\t%s\t%.2f\t%s\t%s\n", l.Stream, size(l.LocalBytes), l.LocalSegments, size(l.ColdBytes), l.ColdSegments,
			l.ColdObjects, stamp(l.ColdFrom), stamp(l.ColdTo), l.BehindSegments, perDay, full, l.CostNow, final, l.Problem)
	}
	return t.Flush()
}

func newTierDump() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump STREAM[/PARTITION]",
		Short: "Print stored records, from object storage and then the spool",
		Long: `Print stored records as forebay spool dump does: those in object storage first, then those of the spool. Only segments whose offsets,
times and topics can match are fetched, and checked.`,
		Args: cobra.ExactArgs(1),
	}
	target := addTierTarget(cmd)
	query, format := addQuery(cmd), ""
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text, json or ndjson")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if format != "text" && format != "json" && format != "ndjson" {
			return usage("invalid argument %q for --output: want text, json or ndjson", format)
		}
		q, err := query.of(args[0])
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		next, err := target.dump(contextOf(cmd), q, func(i spool.DumpItem) error {
			if format == "text" {
				return printItem(w, i)
			}
			return writeLine(w, i)
		})
		if next != nil && err == nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "forebay: --limit reached at %s/%d offset %d\n", q.Stream, next.Partition, next.Offset)
		}
		return err
	})
	return cmd
}

// dump goes over store and spool.
func (t *tierTarget) dump(ctx context.Context, q spool.DumpQuery, fn func(spool.DumpItem) error) (*spool.DumpPosition, error) {
	_, cold, local, closer, err := t.openTier(ctx)
	if err != nil {
		return nil, err
	}
	m, err := cold.Manifest(ctx, q.Stream)
	if err == nil && len(m.Segments) == 0 {
		if err = somethingStored(ctx, cold.Store); err == nil {
			err = knownStream(ctx, cold.Store, local, q.Stream)
		}
	}
	if err != nil {
		return nil, errors.Join(err, closer())
	}
	next, err := cold.Dump(ctx, m, local, q, fn)
	return next, errors.Join(err, closer())
}

// somethingStored is an error for a place without even the marker that a gateway makes as it begins: what is in the spool is not all then, and
// nobody would notice.
func somethingStored(ctx context.Context, st store.Store) error {
	if _, err := manifest.ReadOwner(ctx, st); !errors.Is(err, store.ErrNotExist) {
		return err
	}
	names, err := storedStreams(ctx, st)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: nothing was stored there: is its disk mounted, and tiering.url right? (forebay spool dump reads the spool alone)", st)
	}
	return err
}

// knownStream is nil when store or spool has the stream: the name of another one is not one without records. local is nil with --cold-only.
func knownStream(ctx context.Context, st store.Store, local spool.Inspector, name string) error {
	names, err := storedStreams(ctx, st)
	if err != nil {
		return err
	}
	if local != nil {
		l, err := local.List(ctx)
		if err != nil {
			return err
		}
		for _, s := range l.Streams {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	return oneOf(names, name, st.String())
}

// oneOf is nil when the store has the stream, and else says which it has.
func oneOf(names []string, name, store string) error {
	switch {
	case slices.Contains(names, name):
		return nil
	case len(names) == 0:
		return fmt.Errorf("stream %q: %s has no streams", name, store)
	}
	slices.Sort(names)
	return fmt.Errorf("stream %q: no such stream; there are %s", name, strings.Join(names, ", "))
}

func newTierAdopt() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Make the prefix that of this gateway, whoever had it before",
		Long: `Make the prefix that of this gateway, whoever had it before: after its machine was replaced and its data directory is lost, or after
the store was emptied on purpose, which a gateway takes for a disk that is not mounted. The other one must not run any more. It takes the data directory of the configuration, where this gateway has its instance. Without --yes it only says whose the prefix is.`,
		Args: cobra.NoArgs,
	}
	target := addTierTarget(cmd)
	yes := cmd.Flags().Bool("yes", false, "do it")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		target.coldOnly = true
		ctx := contextOf(cmd)
		cfg, cold, _, closer, err := target.openTier(ctx)
		if err != nil {
			return err
		}
		defer closer() // nothing was written that it could lose
		have, err := manifest.ReadOwner(ctx, cold.Store)
		switch {
		case errors.Is(err, store.ErrNotExist): // a new prefix, or one that was emptied on purpose
			hint := ""
			if !*yes {
				hint = "; a gateway that has stored there before waits for --yes"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is nobody's: the first gateway that stores there has it%s\n", cold.Store, hint)
		case err != nil && !*yes:
			return err
		case err == nil:
			fmt.Fprintf(cmd.OutOrStdout(), "%s is that of gateway %q since %s\n", cold.Store, have.Gateway, stamp(have.Since))
		}
		if !*yes {
			return nil
		}
		instance, err := tiering.Instance(ctx, gateway.TierDir(cfg.Gateway.DataDir))
		if err != nil {
			return err
		}
		id := cfg.Gateway.ID
		if id == "" {
			b, err := os.ReadFile(filepath.Join(cfg.Gateway.DataDir, "gateway_id"))
			if err == nil {
				id = strings.TrimSpace(string(b))
			}
		}
		if err := manifest.Adopt(ctx, cold.Store, manifest.Owner{Gateway: id, Instance: instance, Since: time.Now().UTC()}); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is now that of gateway %q in %s\n", cold.Store, id, cfg.Gateway.DataDir)
		return err
	})
	return cmd
}
