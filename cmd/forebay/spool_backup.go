package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/backup"
	"github.com/forebay-gateway/forebay/tiering/store"
)

func newSpoolBackup() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup URL",
		Short: "Copy the whole spool into a directory or object storage, of a running gateway too",
		Long: `Copy the whole spool, with sessions, cursors and retained messages, into a directory (file:///path) or object storage, as it is at one
position of the journal: everything that was acknowledged before is in it. Segments that an earlier backup there has are not copied
again. A running gateway does it itself, with its own rights and credentials, and goes on meanwhile; of a stopped one the files are
taken over as its next start would. Everything that is stored is read back before the backup counts; with --verify so are the
segments of earlier backups that it counts on, and one that is damaged there is stored again.`,
		Args: cobra.ExactArgs(1),
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	credentials := cmd.Flags().String("credentials-file", "", "credentials of the store, on the gateway's machine")
	keep := cmd.Flags().Int("keep", 0, "afterwards remove all but so many of the newest backups; 0 keeps all")
	verify := cmd.Flags().Bool("verify", false, "read the segments back that earlier backups have stored")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if err := store.CheckURL(args[0]); err != nil {
			return usage("%w", err)
		}
		cfg, err := target.config()
		if err != nil {
			return err
		}
		if *keep < 0 {
			return usage("--keep %d: want 0 or more", *keep)
		}
		ctx := contextOf(cmd)
		r := api.BackupRequest{URL: args[0], CredentialsFile: *credentials, Keep: *keep, Verify: *verify}
		work := target.askForBackup
		if err := spool.Free(cfg.Spool.Dir); !errors.Is(err, spool.ErrInUse) {
			work = backupStopped
		}
		info, removed, err := work(ctx, cfg, r)
		for _, id := range removed {
			fmt.Fprintf(cmd.ErrOrStderr(), "forebay: backup %s removed\n", id)
		}
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), info)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "backup %s: %d segments, %s, of which %s are new\n", info.ID, len(info.Segments), size(info.Bytes()), size(info.Sent))
		return err
	})
	return cmd
}

// askForBackup has the running gateway make one, and waits for it.
func (t *spoolTarget) askForBackup(ctx context.Context, cfg config.Config, r api.BackupRequest) (info *backup.Info, removed []string, err error) {
	c, err := t.client(cfg)
	if err != nil {
		return nil, nil, err
	}
	st, err := c.StartBackup(ctx, r)
	for err == nil && st.Running {
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%w: the gateway goes on with the backup", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
		st, err = c.BackupStatus(ctx)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case st.Error != "":
		return st.Backup, st.Removed, fmt.Errorf("gateway: %s", st.Error)
	case st.Backup == nil:
		return nil, nil, errors.New("the gateway was restarted meanwhile: there is no backup")
	}
	return st.Backup, st.Removed, nil
}

// backupStopped opens the spool as a gateway would, so that the journal is in it too.
func backupStopped(ctx context.Context, cfg config.Config, r api.BackupRequest) (info *backup.Info, removed []string, err error) {
	if err := store.CheckParent(r.URL); err != nil {
		return nil, nil, err
	}
	v, err := spool.OpenView(cfg.Spool, spool.Options{}) // nothing is made where there is no spool
	if err != nil {
		return nil, nil, err
	}
	if err := v.Close(); err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, r.URL, store.Options{CredentialsFile: r.CredentialsFile})
	if err != nil {
		return nil, nil, err
	}
	cfg.Spool.MinFree = 0
	s, err := spool.Open(cfg.Spool, spool.Options{Keep: func(spool.SegmentID) spool.Keep { return spool.KeepAlways }})
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	info, removed, err = backup.CreateAndPrune(ctx, s, st, backup.Options{Gateway: cfg.Gateway.ID, Keep: r.Keep, Verify: r.Verify})
	return info, removed, errors.Join(err, s.Close(), st.Close())
}

func newSpoolRestore() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore URL",
		Short: "Make a spool of a backup, in an empty directory",
		Long: `Make a spool of a backup, in a directory that is empty or missing: that of the configuration, or --dir. Everything is checked against its
SHA-256, and the whole is verified, before the directory has its name. Offsets, cursors, sessions and retained messages are those of the
backup; a route goes on behind what it had delivered then, so that what it delivered later goes out again.

An encrypted spool needs the keys that it was encrypted with in the configuration. With --list the backups are shown; with --check all of
one is read and compared, and nothing is made.`,
		Args: cobra.ExactArgs(1),
	}
	target, out := addSpoolDir(cmd), addOutput(cmd)
	id := cmd.Flags().String("backup", "latest", "which one, as --list shows them")
	list := cmd.Flags().Bool("list", false, "show the backups and do nothing")
	check := cmd.Flags().Bool("check", false, "read all of the backup and compare it, and make nothing")
	credentials := cmd.Flags().String("credentials-file", "", "credentials of the store")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		ctx := contextOf(cmd)
		if err := store.CheckDir(args[0]); err != nil {
			return err
		}
		st, err := store.Open(ctx, args[0], store.Options{CredentialsFile: *credentials})
		if err != nil {
			return err
		}
		defer st.Close() // it was only read
		if *list {
			return listBackups(ctx, cmd.OutOrStdout(), st, out.json)
		}
		if *check {
			return checkBackup(ctx, cmd.OutOrStdout(), st, *id, out.json)
		}
		cfg, err := target.config()
		if err != nil {
			return err
		}
		info, err := backup.Read(ctx, st, *id)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := backup.Restore(ctx, st, info, cfg.Resolved().Spool, nil); err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), info)
		}
		took := time.Since(began)
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "backup %s of gateway %s, restored in %s: %d segments, %s, verified, in %s (%.0f MB/s)\n", info.ID, quoted(info.Gateway),
			cfg.Resolved().Spool.Dir, len(info.Segments), size(info.Bytes()), took.Round(time.Millisecond), float64(info.Bytes())/1e6/took.Seconds())
		return err
	})
	return cmd
}

// checkBackup tells all that is damaged.
func checkBackup(ctx context.Context, w io.Writer, st store.Store, id string, asJSON bool) error {
	info, err := backup.Read(ctx, st, id)
	if err != nil {
		return err
	}
	if err := info.Check(ctx, st); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, info)
	}
	_, err = fmt.Fprintf(w, "backup %s of gateway %s is whole: %d segments, %s\n", info.ID, quoted(info.Gateway), len(info.Segments), size(info.Bytes()))
	return err
}

func listBackups(ctx context.Context, w io.Writer, st store.Store, asJSON bool) error {
	ids, err := backup.IDs(ctx, st)
	if err != nil {
		return err
	}
	infos := []*backup.Info{}
	var damaged error // told behind the others: they are what the list is looked at for
	for _, id := range ids {
		info, err := backup.Read(ctx, st, id)
		switch {
		case errors.Is(err, backup.ErrDamaged), errors.Is(err, backup.ErrUnsupported):
			damaged = errors.Join(damaged, err)
		case errors.Is(err, backup.ErrNone): // removed meanwhile
		case err != nil:
			return err
		default:
			infos = append(infos, info)
		}
	}
	if asJSON {
		return errors.Join(writeJSON(w, infos), damaged)
	}
	t := table(w, "BACKUP\tTIME\tGATEWAY\tSEGMENTS\tSIZE\tNEW")
	for _, i := range infos {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", i.ID, stamp(i.Time), quoted(i.Gateway), len(i.Segments), size(i.Bytes()), size(i.Sent))
	}
	return errors.Join(t.Flush(), damaged)
}
