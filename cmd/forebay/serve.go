package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway"
	"github.com/forebay-gateway/forebay/gateway/config"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway until SIGTERM or SIGINT",
		Long: `Run the gateway until SIGTERM or SIGINT, and stop it in order: devices are told, what is in flight to Kafka is waited for,
the spool is closed. A second signal ends it at once; nothing that was acknowledged is lost by that.

SIGHUP reads passwords, rules, bans, certificates, keys, CAs and revocation lists again, which also happens by itself a few
seconds after they have changed, and the configuration: downlinks change at once, and the log names the keys that wait for a
restart. What has a fault stays as it was, and the log says why.

Values come from the file, then the environment (FOREBAY_SPOOL_MAX_SIZE sets spool.max_size), then flags; the later wins.
The line "serving" of the log has the addresses of all listeners, also when the configuration asks for free ports.

Exit codes: 0 stopped in order; 1 not started; 2 the command line or the configuration is wrong; 3 a part did not stop before its
deadline; 130 or 143 ended by a second signal.`,
		Args: cobra.NoArgs,
	}
	flags := config.AddFlags(cmd.Flags())
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		hangups := make(chan os.Signal, 1) // before all else: unheard, SIGHUP ends a process
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		loaded, err := config.Load(flags)
		if err != nil {
			return faulty(err)
		}
		log := gateway.NewLogger(loaded.Config.Log, cmd.ErrOrStderr())
		for _, w := range loaded.Config.Warnings() {
			log.Warn("configuration", "warning", w)
		}
		ctx, release := untilSignal(cmd.Context(), log)
		defer release()
		again := func() (config.Config, error) {
			l, err := config.Load(flags)
			if err != nil {
				return config.Config{}, err
			}
			return l.Config, nil
		}
		return logged(log, serve(ctx, loaded.Config, again, hangups, log))
	})
	return cmd
}

func serve(ctx context.Context, cfg config.Config, again func() (config.Config, error), hangups <-chan os.Signal, log *slog.Logger) error {
	g, err := gateway.New(cfg, gateway.Options{Logger: log, Build: build(), Load: again})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go reloadAt(hangups, g.Ready(), ended, log, func() { _, _ = g.Reload(ctx) }) // the log has what came of it
	return g.Run(ctx)
}

// reloadAt calls reload for each SIGHUP until ended is closed. There is nothing to reload before the gateway is ready, and what it reads
// then is as new as the signal: those that come earlier are one reload as soon as it is.
func reloadAt(hangups <-chan os.Signal, ready, ended <-chan struct{}, log *slog.Logger, reload func()) {
	early := hangups
	var late <-chan os.Signal
	pending := false
	for {
		select {
		case <-early:
			if !pending {
				log.Info("signal, reloading when the gateway has started", "signal", syscall.SIGHUP.String())
			}
			pending = true
		case <-ready:
			ready, early, late = nil, nil, hangups
			if pending {
				reload()
			}
		case <-late:
			reload()
		case <-ended:
			return
		}
	}
}

// logged puts the last error where the others are: whoever reads the log as JSON reads nothing else.
func logged(log *slog.Logger, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gateway.ErrStopIncomplete):
		log.Error("stopped, not in order", "err", err)
		return &askedError{code: exitStopIncomplete}
	default:
		if hint := startHint(err); hint != "" {
			log = log.With("hint", hint)
		}
		log.Error("not started", "err", err)
		return &askedError{code: exitFailed}
	}
}

// startHint is the next step when a file or directory is not what the start needs, "" when it is about something else.
func startHint(err error) string {
	at, ok := errors.AsType[*fs.PathError](err)
	switch {
	case !ok:
	case errors.Is(at, fs.ErrPermission):
		return fmt.Sprintf("user %d, who runs this gateway, may not use %s: give data_dir to that user (chown -R), or start as its owner", os.Geteuid(), at.Path)
	case errors.Is(at, syscall.ENOTDIR):
		return "a file lies in the place of a directory: put back what was there, or move it away"
	case errors.Is(at, syscall.EISDIR):
		return at.Path + " is a directory in the place of a file: put back what was there, or move it away"
	case errors.Is(at, syscall.EROFS):
		return "the file system of " + at.Path + " is mounted read-only: see dmesg, then mount it for writing"
	}
	return ""
}

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. The second ends the process: whoever sends it has
// waited long enough, and the spool is made for that.
func untilSignal(parent context.Context, log *slog.Logger) (ctx context.Context, release func()) {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case s := <-signals:
				if !first {
					log.Warn("second signal, ending at once", "signal", s.String())
					os.Exit(exitSignal + int(s.(syscall.Signal)))
				}
				log.Info("signal, stopping in order; another one ends at once", "signal", s.String())
				cancel()
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
