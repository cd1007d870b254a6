package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

func newSpool() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "spool",
		Short: "Look into the spool of a stopped or running gateway, verify and repair it",
		Long: `Look into the spool of a stopped or running gateway. Nothing but repair --yes and restore changes anything in it.

The directory is that of the configuration, or --dir. When no gateway runs on it, its files are read as the next start would find
them, the journal included; meanwhile no gateway can start on it. When one runs, it is asked on its admin listener (admin.address, or
--admin), with the token of the file admin_token in gateway.data_dir. verify reads the files in both cases.

Exit codes: 0 done, and for verify: nothing is damaged; 1 not done, or damage was found; 2 the command line is wrong.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newSpoolLs(), newSpoolInspect(), newSpoolVerify(), newSpoolDump(), newSpoolRepair(), newSpoolKeygen(), newSpoolBackup(), newSpoolRestore())
	return cmd
}

// spoolTarget is the spool that a command is about.
type spoolTarget struct {
	flags *config.Flags
	dir   string
	admin string
	token string
	trust api.Trust
}

func addSpoolTarget(cmd *cobra.Command) *spoolTarget {
	t := addSpoolDir(cmd)
	cmd.Flags().StringVar(&t.admin, "admin", "", "admin address of the running gateway (default admin.address)")
	cmd.Flags().StringVar(&t.token, "token-file", "", "file with its token (default admin_token in gateway.data_dir)")
	cmd.Flags().StringVar(&t.trust.CAFile, "admin-ca", "", "CAs of the admin listener's certificate (default: trust that of admin.tls.cert_file and no other)")
	cmd.Flags().StringVar(&t.trust.CertFile, "admin-cert", "", "client certificate, when the admin listener asks for one")
	cmd.Flags().StringVar(&t.trust.KeyFile, "admin-key", "", "its key")
	return t
}

// addSpoolDir is for commands that never ask a running gateway.
func addSpoolDir(cmd *cobra.Command) *spoolTarget {
	t := &spoolTarget{flags: config.AddFlags(cmd.Flags())}
	cmd.Flags().StringVar(&t.dir, "dir", "", "directory of the spool; without --config nothing else is read")
	return t
}

// config is the configuration that the command line names; with --dir alone, the defaults.
func (t *spoolTarget) config() (config.Config, error) {
	cfg := config.DefaultConfig()
	if t.dir == "" || t.flags.File != "" {
		loaded, err := config.Load(t.flags)
		if err != nil {
			if faults, ok := errors.AsType[config.Faults](err); ok {
				return cfg, told(t.flags.Path(), faults)
			}
			return cfg, fmt.Errorf("%w, or give --dir", err)
		}
		cfg = loaded.Config
	}
	if t.dir != "" {
		cfg.Spool.Dir = t.dir
		if t.flags.File == "" {
			cfg.Gateway.DataDir = filepath.Dir(filepath.Clean(t.dir))
		}
	}
	return cfg, nil
}

// keysConfig is the configuration for what needs nothing but the keys: without --config there are none.
func (t *spoolTarget) keysConfig() (config.Config, error) {
	if t.flags.File == "" {
		return config.DefaultConfig(), nil
	}
	return t.config()
}

// open is the spool, by its files or by asking who runs it.
func (t *spoolTarget) open() (_ spool.Inspector, closer func() error, err error) {
	cfg, err := t.config()
	if err != nil {
		return nil, nil, err
	}
	v, err := spool.OpenView(cfg.Spool, spool.Options{})
	switch {
	case err == nil:
		return v, v.Close, nil
	case errors.Is(err, spool.ErrInUse):
		c, cerr := t.client(cfg)
		if cerr != nil {
			return nil, nil, fmt.Errorf("%w\na gateway runs on it; %w", err, cerr)
		}
		return asked{c}, func() error { return nil }, nil
	}
	return nil, nil, err
}

func (t *spoolTarget) client(cfg config.Config) (*api.Client, error) {
	address := t.admin
	if address == "" {
		address = cfg.Admin.Address
	}
	if _, port, err := net.SplitHostPort(address); err != nil || port == "0" {
		return nil, fmt.Errorf("its admin address is not in the configuration (%s): give --admin host:port, as its log says", address)
	}
	dir, name := cfg.Gateway.DataDir, api.TokenFile
	if t.token != "" {
		dir, name = filepath.Split(t.token)
	}
	token, err := api.ReadToken(filepath.Join(dir, "."), name)
	if err != nil && (t.token != "" || t.trust.CertFile == "") { // a certificate may do without
		return nil, fmt.Errorf("the token of the gateway at %s cannot be read: %w: start the gateway once, or give --token-file", address, err)
	}
	c := &api.Client{Address: address, Token: token}
	if t.trust.Pinned = cfg.Admin.TLS.CertFile; cfg.Admin.Secure() || t.trust.CAFile != "" {
		c.TLS = true
		if c.HTTP, err = t.trust.HTTP(); err != nil {
			return nil, fmt.Errorf("its TLS: %w", err)
		}
	}
	return c, nil
}

// asked adds to errors what can be done about them.
type asked struct{ *api.Client }

func (a asked) List(ctx context.Context) (spool.Listing, error) {
	l, err := a.Client.List(ctx)
	if err != nil {
		err = fmt.Errorf("%w\na gateway runs on the directory; is %s its admin address (--admin), and the token its own (--token-file)?", err, a.Address)
	}
	return l, err
}

// parsePartition reads STREAM or STREAM/PARTITION; partition is -1 for all.
func parsePartition(arg string) (stream string, partition int, err error) {
	stream, num, has := strings.Cut(arg, "/")
	if !has {
		return stream, -1, nil
	}
	n, err := strconv.ParseUint(num, 10, 16)
	if err != nil {
		return "", 0, usage("%q is not STREAM or STREAM/PARTITION", arg)
	}
	return stream, int(n), nil
}

// usage is an error of the command line that cobra does not see.
func usage(format string, args ...any) error {
	return &askedError{err: fmt.Errorf(format, args...), code: exitUsage}
}

// parseTime reads a time: absolute, or a duration before now.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := unit.ParseDuration(strings.TrimPrefix(s, "-")); err == nil && d >= 0 { // 2h, 7d, and -2h as forebay replay has it
		return now.Add(-d.Std()), nil
	}
	if s == "now" {
		return now, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("%q is not a time: want 2026-01-31T12:00:00Z, 2026-01-31, how long ago, such as 90m, or now", s)
}
