package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/gateway"
	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// ErrNotReconciled is returned when a message that was acknowledged was not found again, or another promise was broken.
var ErrNotReconciled = errors.New("demo: the totals do not reconcile")

// Options say what is shown.
type Options struct {
	Duration time.Duration // how long the devices publish; 0 is until ctx ends
	Outage   time.Duration // how long the upstream goes away half-way; 0 is not at all
	Devices  int
	Rate     float64 // messages a second of all devices
	Mix      fleet.Mix
	DataDir  string    // kept; empty is a temporary directory that is removed
	JSON     bool      // only the report, as JSON, when all is over
	Out      io.Writer // a terminal gets a picture that changes in place, anything else a line a second

	Logger *slog.Logger // of the gateway; nil discards
	Build  gateway.Build
}

// DefaultOptions are a fleet that a small machine carries with ease.
func DefaultOptions() Options {
	return Options{Devices: 50, Rate: 2000, Mix: fleet.Mix{5, 85, 10}, Out: os.Stdout}
}

const (
	outageAfter = 10 * time.Second // of publishing without an end; otherwise the outage is half-way
	startWait   = 30 * time.Second
	liveEvery   = 200 * time.Millisecond
	plainEvery  = time.Second
)

// demo is one show.
type demo struct {
	o        Options
	screen   *screen
	dir      string
	notes    []string // what the user should know, printed before and after the picture
	upstream *embedded.Upstream
	mqttAddr string
	disk     int64 // bytes of the spool when all was over
	gateway  *gateway.Gateway
	fleet    *fleet.Fleet
	outage   outage
}

// Run shows the whole way of messages until the time is over or ctx ends; then nothing more is published, what is under
// way arrives, and the totals are printed. An interrupt after the end of ctx gives up at once. Its error is
// ErrNotReconciled, or says what could not be started.
func Run(ctx context.Context, o Options) error {
	if o.Outage < 0 || o.Duration < 0 {
		return fmt.Errorf("demo: %v and %v: a time is negative", o.Duration, o.Outage)
	}
	if o.Duration > 0 && o.Outage >= o.Duration {
		return fmt.Errorf("demo: an outage of %v does not fit into %v", o.Outage, o.Duration)
	}
	if o.Devices < 1 || o.Rate <= 0 {
		return fmt.Errorf("demo: %d devices with %v messages a second have nothing to show", o.Devices, o.Rate)
	}
	d := &demo{o: o}
	if err := d.prepareDir(); err != nil {
		return err
	}
	if o.DataDir == "" {
		defer os.RemoveAll(d.dir)
	}
	report, spooled, err := d.run(ctx)
	if err != nil {
		return err
	}
	return d.conclude(report, spooled)
}

func (d *demo) prepareDir() error {
	if d.o.DataDir != "" {
		d.dir = d.o.DataDir
		return os.MkdirAll(d.dir, 0o750)
	}
	dir, err := os.MkdirTemp("", "forebay-demo-")
	d.dir = dir
	return err
}

// run starts everything, in the order in which the parts need each other, and stops it in reverse.
func (d *demo) run(ctx context.Context) (_ *fleet.Report, spooled int64, err error) {
	abort, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if d.upstream, err = embedded.Start(d.upstreamConfig(), embedded.Options{Logger: d.o.Logger}); err != nil {
		return nil, 0, err
	}
	defer d.upstream.Close()
	stop, err := d.startGateway(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if d.fleet, err = fleet.New(d.fleetConfig(), fleet.Options{Logger: d.o.Logger, Version: d.o.Build.Version}); err != nil {
		return nil, 0, err
	}
	defer d.stopOn(ctx, cancel)()
	defer d.show(ctx)()
	report, err := d.fleet.Run(abort)
	if err != nil {
		return nil, 0, err
	}
	d.disk = d.gateway.Stats().Spool.BytesOnDisk
	return report, d.spooled(), nil
}

// startGateway runs the gateway and waits until it serves. The returned function stops it.
func (d *demo) startGateway(ctx context.Context) (stop func() error, err error) {
	cfg := d.gatewayConfig()
	if d.gateway, err = gateway.New(cfg, gateway.Options{Logger: d.o.Logger, Build: d.o.Build}); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- d.gateway.Run(run) }()
	select {
	case err := <-ended:
		cancel()
		return nil, errors.Join(errors.New("demo: the gateway did not start"), err)
	case <-time.After(startWait):
		err = fmt.Errorf("demo: the gateway did not start within %v", startWait)
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.gateway.Ready():
		return func() error {
			cancel()
			return <-ended
		}, nil
	}
	cancel()
	return nil, errors.Join(err, <-ended)
}

// stopOn ends publishing when ctx ends, and everything at an interrupt after that.
func (d *demo) stopOn(ctx context.Context, abort func()) (undo func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			d.fleet.Stop()
		case <-over:
			return
		}
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		select {
		case <-again:
			abort()
		case <-over:
		}
	}()
	return func() { close(over) }
}

// show draws until the returned function is called, and takes the upstream away meanwhile.
func (d *demo) show(ctx context.Context) (end func()) {
	if d.o.JSON {
		d.screen = newScreen(io.Discard)
	} else {
		for _, n := range d.notes {
			fmt.Fprintln(d.o.Out, n)
		}
		d.screen = newScreen(d.o.Out)
	}
	every := plainEvery
	if d.screen.live() {
		every = liveEvery
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer d.screen.Close()
		defer d.outage.end(d.upstream)
		d.outage.length, d.outage.at = d.o.Outage, outageAfter
		if d.o.Duration > 0 {
			d.outage.at = (d.o.Duration - d.o.Outage) / 2
		}
		r := recorder{at: time.Now()}
		frames := time.NewTicker(every)
		defer frames.Stop()
		steps := time.NewTicker(50 * time.Millisecond)
		defer steps.Stop()
		for {
			select {
			case <-quit:
				return
			case <-steps.C:
				d.outage.step(d.fleet.Elapsed(), d.upstream)
			case now := <-frames.C:
				d.screen.Show(r.add(d.look(ctx), now))
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// look takes all numbers of one picture.
func (d *demo) look(ctx context.Context) view {
	v := view{fleet: d.fleet.Snapshot(), duration: d.o.Duration, devices: d.o.Devices, outage: d.outage.left(d.fleet.Elapsed())}
	v.phase, v.elapsed = v.fleet.Phase.String(), v.fleet.Elapsed
	v.shutdown = "Ctrl-C ends it"
	if ctx.Err() != nil {
		v.shutdown = "Ctrl-C gives up"
	}
	s := d.gateway.Stats()
	for _, stream := range s.Spool.Streams {
		v.spooled += int64(stream.Appended)
	}
	v.disk = s.Spool.BytesOnDisk
	v.upstreamUp = v.outage == 0
	for _, r := range s.Routes {
		v.lag += int64(r.Lag)
	}
	for _, p := range d.gateway.Health().Parts {
		if p.Problem != "" {
			v.problem = p.Name + ": " + p.Problem
		}
	}
	v.memory = goMemory()
	return v
}

// spooled is how many records the spool took in this run.
func (d *demo) spooled() int64 {
	var n int64
	for _, s := range d.gateway.Stats().Spool.Streams {
		n += int64(s.Appended)
	}
	return n
}

// conclude prints the totals and gives the verdict.
func (d *demo) conclude(r *fleet.Report, spooled int64) error {
	v := &r.Verdict
	if took := v.Acknowledged.Total(); spooled < took {
		v.Reconciled = false
		v.Faults = append(v.Faults, fmt.Sprintf("%d messages were acknowledged, and the spool took %d", took, spooled))
	}
	if d.o.JSON {
		e := json.NewEncoder(d.o.Out)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			return err
		}
	} else {
		io.WriteString(d.o.Out, totals(r, spooled, d.disk))
		if d.o.DataDir != "" {
			fmt.Fprintf(d.o.Out, "data kept in %s\n", d.dir)
		}
	}
	if !v.Reconciled {
		return ErrNotReconciled
	}
	return nil
}

// goMemory is what the whole program holds: gateway, embedded broker and devices.
func goMemory() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// outage takes the upstream away once.
type outage struct {
	at, length time.Duration
	begun      bool
	over       bool
}

// upstream is what can go away: the embedded broker.
type upstream interface {
	Suspend()
	Resume() error
}

// step begins or ends the outage when its time has come.
func (o *outage) step(now time.Duration, u upstream) {
	switch {
	case o.length == 0 || o.over || now < o.at:
	case !o.begun:
		o.begun = true
		u.Suspend()
	case now >= o.at+o.length:
		o.end(u)
	}
}

// end brings the upstream back. If its port was taken meanwhile it tries again with the next step, and says so by not
// being over.
func (o *outage) end(u upstream) {
	if o.begun && !o.over {
		o.over = u.Resume() == nil
	}
}

// left is the time until the upstream is back.
func (o *outage) left(now time.Duration) time.Duration {
	if !o.begun || o.over {
		return 0
	}
	return max(o.at+o.length-now, time.Millisecond)
}
