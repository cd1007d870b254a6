package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/gateway/demo"
	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

func newDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole way on this machine: devices, gateway, an embedded Kafka",
		Long: `Show the whole way on this machine: simulated devices publish in bursts, the gateway spools and acknowledges, a subscriber and a
Kafka consumer read. It ends with Ctrl-C or after --duration, and exits with 0 only when every acknowledged message was found again.
--outage takes Kafka away half-way, so that one sees the spool fill and drain.`,
		Args: cobra.NoArgs,
	}
	o, out := demo.DefaultOptions(), addOutput(cmd)
	mix := o.Mix.String()
	var logFile string
	fs := cmd.Flags()
	fs.DurationVar(&o.Duration, "duration", o.Duration, "how long the devices publish; 0 is until Ctrl-C")
	fs.DurationVar(&o.Outage, "outage", o.Outage, "how long Kafka goes away half-way; 0 is not at all")
	fs.IntVar(&o.Devices, "devices", o.Devices, "number of devices")
	fs.Float64Var(&o.Rate, "rate", o.Rate, "messages a second of all devices together")
	fs.StringVar(&mix, "qos", mix, "shares of the QoS levels")
	fs.StringVar(&o.DataDir, "data-dir", "", "directory to keep; a temporary one when left out")
	fs.StringVar(&logFile, "log-file", "", "file for the gateway's log")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) (err error) {
		if o.Mix, err = fleet.ParseMix(mix); err != nil {
			return &askedError{err: fmt.Errorf("--qos: %w", err), code: exitUsage}
		}
		var log io.Writer = io.Discard
		if logFile != "" {
			f, err := os.OpenFile(logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
			if err != nil {
				return err
			}
			defer f.Close()
			log = f
		}
		o.Logger = gateway.NewLogger(config.Log{Level: config.LevelInfo, Format: config.FormatText}, log)
		o.Out, o.JSON, o.Build = cmd.OutOrStdout(), out.json, build()
		// The second signal is the demo's own: it has a terminal to give back.
		ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer release()
		return demo.Run(ctx, o)
	})
	return cmd
}
