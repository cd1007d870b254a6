// Command loadtest is a fleet of MQTT devices that proves what became of its messages: every one is numbered, and a
// subscriber and a Kafka consumer look for each that was acknowledged. See package fleet for what it checks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// Exit codes.
const (
	reconciled = 0 // everything that was promised was found
	broken     = 1 // it was not, or the run could not be made
	usage      = 2
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const help = `loadtest: a fleet of MQTT devices that proves what became of its messages

  loadtest --mqtt 127.0.0.1:1883 --duration 10s
  loadtest --mqtt 127.0.0.1:1883 --kafka 127.0.0.1:9092 --topic telemetry --devices 200 --rate 5000 --duration 30s
  loadtest --mqtt ws://127.0.0.1:8083/mqtt --profile bursty --rate 2000 --qos 0:10,1:80,2:10 --count 100000

Each device publishes numbered messages. Subscribers read them over MQTT, a consumer reads them from Kafka, and at the
end every acknowledged message must have been found: none missing, QoS 2 not doubled, the order of each device kept.
Connections may break in the meantime, and the broker may be killed: devices keep their sessions and come back.
One Ctrl-C ends publishing and waits for what is under way; a second gives up.

Exit code: 0 reconciled, 1 not reconciled or not possible, 2 wrong usage.

Options:
`

// options are what the command line says.
type options struct {
	cfg     fleet.Config
	report  string
	verbose bool
	version bool
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (options, error) {
	var (
		o                         options
		qos, profile              string
		transport, kafka, topic   string
		subscribers, subscribeQoS int
	)
	fs := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, help)
		printOptions(stderr, fs)
	}
	c := &o.cfg
	fs.StringVar(&c.Broker, "mqtt", "", "`ADDRESS` of the broker: host:port, tcp://host:port or ws://host:port/path")
	fs.StringVar(&transport, "transport", "", "tcp or ws, for an ADDRESS without a scheme")
	fs.StringVar((*string)(&c.Protocol), "protocol", "5", "MQTT version of the devices: 5, 3.1.1 or both")
	fs.StringVar(&c.TopicPrefix, "prefix", "fleet", "first levels of the MQTT topics: PREFIX/RUN/DEVICE/telemetry")
	fs.IntVar(&c.Devices, "devices", 50, "how many devices publish")
	fs.Float64Var(&c.Rate, "rate", 0, "messages a second of all devices together; 0 is as fast as the windows allow")
	fs.StringVar(&profile, "profile", "steady", "steady, or bursty[:PERIOD[:ACTIVE]] as in bursty:2s:0.25: all devices publish in the first quarter of every 2 s")
	fs.StringVar(&qos, "qos", "1", "shares of the QoS levels, as in 0:10,1:80,2:10")
	fs.IntVar(&c.Payload, "payload", 256, "`BYTES` of a payload (JSON telemetry)")
	fs.IntVar(&c.Window, "window", 100, "how many messages of one device may be outstanding")
	fs.IntVar(&c.Count, "count", 0, "messages of all devices together; 0 is no limit")
	fs.DurationVar(&c.Duration, "duration", 0, "how long to publish; 10s unless --count is given")
	fs.DurationVar(&c.Drain, "drain", c.Drain, "how long to wait without any progress for what is under way (default 30s)")
	fs.IntVar(&subscribers, "subscribers", 1, "how many subscribers read everything over MQTT")
	fs.IntVar(&subscribeQoS, "subscribe-qos", 2, "QoS of their subscription")
	fs.StringVar(&kafka, "kafka", "", "seed `BROKERS` of Kafka, separated by commas; none is no Kafka check")
	fs.StringVar(&topic, "topic", "telemetry", "Kafka `TOPICS` to read, separated by commas")
	fs.StringVar(&c.IDHeader, "id-header", "forebay.id", "Kafka `HEADER` with the record's ID: tells a QoS 2 message that was taken twice, a fault, from a repeated delivery to Kafka")
	fs.BoolVar(&c.StrictKafka, "strict-kafka", false, "a double in Kafka is a fault: for routes that deliver exactly once")
	fs.BoolVar(&c.KeepSessions, "keep-sessions", false, "leave the sessions on the broker")
	fs.StringVar(&o.report, "report", "", "write the report as JSON to this `FILE`; - is standard output")
	fs.BoolVar(&o.verbose, "verbose", false, "log every failed connection and publish")
	fs.BoolVar(&o.version, "version", false, "print the version")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	none := c.Broker == "" // no default: what is started by mistake must not load a broker that somebody needs
	var err error
	if c.Mix, err = fleet.ParseMix(qos); err != nil {
		return o, err
	}
	if c.Profile, err = fleet.ParseProfile(profile); err != nil {
		return o, err
	}
	switch {
	case transport == "" || strings.Contains(c.Broker, "://"):
	case transport == "tcp" || transport == "ws":
		c.Broker = transport + "://" + c.Broker
	default:
		return o, fmt.Errorf("transport %q is not tcp or ws", transport)
	}
	if subscribeQoS < 0 || subscribeQoS > 2 {
		return o, fmt.Errorf("subscribe-qos %d is not 0, 1 or 2", subscribeQoS)
	}
	if none && !o.version {
		return o, errors.New("no broker: give --mqtt ADDRESS, such as --mqtt 127.0.0.1:1883")
	}
	c.Subscribers, c.SubscriberQoS = subscribers, uint8(subscribeQoS)
	if c.Kafka = list(kafka); len(c.Kafka) > 0 {
		c.KafkaTopic = list(topic)
	}
	if c.Count == 0 && c.Duration == 0 {
		c.Duration = defaultDuration
	}
	return o, nil
}

// list splits at commas.
func list(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// printOptions prints the options in the form in which people write them.
func printOptions(w io.Writer, fs *flag.FlagSet) {
	fs.VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  %-26s %s", strings.TrimSpace("--"+f.Name+" "+strings.ToUpper(name)), text)
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "0s" {
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
}

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr *os.File) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return reconciled
	}
	if err != nil {
		fmt.Fprintln(stderr, "loadtest:", err, "(see loadtest --help)")
		return usage
	}
	if o.version {
		fmt.Fprintln(stdout, version)
		return reconciled
	}
	opts := fleet.Options{Version: version}
	if o.verbose {
		opts.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	f, err := fleet.New(o.cfg, opts)
	if err != nil {
		fmt.Fprintln(stderr, "loadtest:", strings.ReplaceAll(err.Error(), "\n", "\nloadtest: "))
		return usage
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer stopOnSignal(f, cancel)()
	done := showProgress(stderr, f)
	r, err := f.Run(ctx)
	done()
	if r != nil {
		if err := writeReport(o.report, stdout, r); err != nil {
			fmt.Fprintln(stderr, "loadtest:", err)
			return broken
		}
		if o.report != "-" {
			fmt.Fprint(stdout, r.Text())
		}
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "loadtest:", err)
		return broken
	case !r.Verdict.Reconciled:
		return broken
	}
	return reconciled
}

// stopOnSignal ends publishing at the first signal and the whole run at the second.
func stopOnSignal(f *fleet.Fleet, abort func()) (undo func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-signals; ok {
			f.Stop()
		}
		if _, ok := <-signals; ok {
			abort()
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// writeReport writes r as JSON.
func writeReport(path string, stdout io.Writer, r *fleet.Report) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if path == "-" {
		_, err = stdout.Write(b)
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
