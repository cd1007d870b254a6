package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
)

// trialRecord is the PUBLISH that a route is tried with.
type trialRecord struct {
	topic, payload, file, client, user   string
	properties                           []string
	contentType, responseTopic, corrData string
	qos                                  uint8
	retain                               bool
	expiry                               time.Duration
}

func newRouteTest() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test --route ROUTE --topic TOPIC --payload TEXT",
		Short: "Show what a route would send of a message, without sending it",
		Long: `Show what a route would send of a message, without sending it: Kafka topic, key, partition, headers, timestamp and value, how the
conditions end, and why a message is left out or becomes a dead letter. It needs the configuration and no running gateway.

Exit codes: 0 it would be sent, or left out as the route says; 1 it would become a dead letter, or there is no such route; 2 the
command line is wrong.`,
		Args: cobra.NoArgs,
	}
	flags, out := config.AddFlags(cmd.Flags()), addOutput(cmd)
	var r trialRecord
	route := cmd.Flags().String("route", "", "name of the route; may be left out when there is one")
	cmd.Flags().StringVar(&r.topic, "topic", "", "MQTT topic of the message")
	cmd.Flags().StringVar(&r.payload, "payload", "", "payload of the message")
	cmd.Flags().StringVar(&r.file, "payload-file", "", "file with the payload; - is standard input")
	cmd.Flags().StringVar(&r.client, "client", "device-1", "client ID of the publisher")
	cmd.Flags().StringVar(&r.user, "user", "", "user name of the publisher")
	cmd.Flags().StringArrayVar(&r.properties, "property", nil, "user property, name=value; may be repeated")
	cmd.Flags().StringVar(&r.contentType, "content-type", "", "content type")
	cmd.Flags().StringVar(&r.responseTopic, "response-topic", "", "response topic")
	cmd.Flags().StringVar(&r.corrData, "correlation-data", "", "correlation data")
	cmd.Flags().Uint8Var(&r.qos, "qos", 1, "QoS")
	cmd.Flags().BoolVar(&r.retain, "retain", false, "RETAIN flag")
	cmd.Flags().DurationVar(&r.expiry, "expiry", 0, "message expiry interval, such as 60s")
	partitions := cmd.Flags().Int32("partitions", 0, "partitions of the Kafka topic: then the partition is shown that the key decides")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		now := time.Now()
		rec, err := r.record(cmd.InOrStdin(), now)
		if err != nil {
			return err
		}
		loaded, err := config.Load(flags)
		if err != nil {
			return faulty(err)
		}
		cfg := loaded.Config
		if *route == "" && len(cfg.Bridge.Routes) == 1 {
			*route = cfg.Bridge.Routes[0].Name
		}
		if *route == "" {
			return usage("which route? give --route")
		}
		gateway := cfg.Gateway.ID
		if gateway == "" {
			gateway = "gateway"
		}
		t, err := bridge.Try(cfg.Bridge, gateway, *route, rec, now)
		if err != nil {
			return err
		}
		if *partitions > 0 && t.Fate == bridge.Sent {
			p := int64(kafka.PartitionFor(t.ByKey, *partitions))
			if t.Partition != nil {
				p = *t.Partition % int64(*partitions)
			}
			t.Partition = &p
		}
		if out.json {
			err = writeJSON(cmd.OutOrStdout(), t)
		} else {
			err = printTrial(cmd.OutOrStdout(), t, streamNote(cfg, *route, rec.Topic))
		}
		if err == nil && t.Fate == bridge.DeadLettered {
			return &askedError{code: exitFailed} // the result has said it
		}
		return err
	})
	return cmd
}

// record is the record that the spool would have of the message.
func (r *trialRecord) record(stdin io.Reader, now time.Time) (*spool.Record, error) {
	if r.topic == "" || strings.ContainsAny(r.topic, "+#\x00") {
		return nil, usage("--topic %q: want an MQTT topic name, without wildcards", r.topic)
	}
	if r.qos > 2 {
		return nil, usage("--qos %d: want 0, 1 or 2", r.qos)
	}
	rec := &spool.Record{
		Topic: r.topic, ClientID: r.client, UserName: r.user, Payload: []byte(r.payload), QoS: r.qos, Retain: r.retain, ReceivedAt: now.UnixNano(),
	}
	if r.expiry > 0 {
		rec.ExpiresAt = now.Add(r.expiry).UnixNano()
	}
	p := spool.Properties{ContentType: r.contentType, ResponseTopic: r.responseTopic}
	if r.corrData != "" {
		p.CorrelationData = []byte(r.corrData)
	}
	for _, kv := range r.properties {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, usage("--property %q is not name=value", kv)
		}
		p.User = append(p.User, spool.UserProperty{Name: name, Value: value})
	}
	rec.Properties = &p
	if r.file == "" {
		return rec, nil
	}
	if r.payload != "" {
		return nil, usage("--payload and --payload-file are two payloads")
	}
	var err error
	if r.file == "-" {
		rec.Payload, err = io.ReadAll(stdin)
	} else {
		rec.Payload, err = os.ReadFile(r.file)
	}
	return rec, err
}

// streamNote says when the route never sees the topic, since the spool puts it into another stream than the route reads.
func streamNote(cfg config.Config, route, topic string) string {
	stream := spool.DefaultStream
	for _, s := range cfg.Spool.Streams {
		if slices.ContainsFunc(s.Filters, func(f string) bool { return spool.MatchFilter(f, topic) }) {
			stream = s.Name
			break
		}
	}
	for _, r := range cfg.Bridge.Routes {
		if r = r.WithDefaults(""); r.Name == route && r.Stream != stream && r.Stream != cfg.Bridge.DeadLetterStream {
			return fmt.Sprintf("the spool puts this topic into stream %s, and the route reads %s: it never gets it", stream, r.Stream)
		}
	}
	return ""
}

func printTrial(w io.Writer, t bridge.Trial, note string) error {
	tab := table(w, "ROUTE\t"+t.Route)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(tab, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	fate := map[bridge.Fate]string{
		bridge.Sent: "sent to " + t.Upstream, bridge.NotMatched: "not sent: no filter of the route matches", bridge.LeftOut: "not sent: " + t.Reason,
		bridge.DeadLettered: "a dead letter: " + t.Reason,
	}[t.Fate]
	line("result", "%s", fate)
	if note != "" {
		line("note", "%s", note)
	}
	if t.Fate == bridge.Sent && t.Reason != "" {
		line("fault", "%s", t.Reason)
	}
	for _, s := range [][2]string{{"error", t.Error}, {"hint", t.Hint}} {
		if s[1] != "" {
			line(s[0], "%s", quoted(s[1]))
		}
	}
	for _, c := range t.Conditions {
		result := strconv.FormatBool(c.Holds)
		if c.Error != "" {
			result = "error: " + c.Error
		}
		line(c.Key, "%s: %s", quoted(c.Text), quoted(result))
	}
	if t.Fate == bridge.Sent {
		printSent(line, t)
	}
	for _, reason := range slices.Sorted(maps.Keys(t.Faults)) {
		line("counted", "%s", reason)
	}
	return tab.Flush()
}

func printSent(line func(string, string, ...any), t bridge.Trial) {
	line("topic", "%s", t.Topic)
	switch {
	case t.Key == nil:
		line("key", "(none)")
	default:
		line("key", "%s", shown(*t.Key))
	}
	if t.Partition != nil {
		line("partition", "%d", *t.Partition)
	} else {
		line("partition", "by %s", quoted(t.ByKey))
	}
	line("timestamp", "%s", t.Timestamp.Format(time.RFC3339Nano))
	for _, h := range t.Headers {
		line("header", "%s: %s", quoted(h.Name), shown(h.TrialText))
	}
	if t.Value == nil {
		line("value", "(none: a tombstone)")
		return
	}
	line("value", "%s", shown(*t.Value))
}

func shown(t bridge.TrialText) string {
	if t.Base64 != "" {
		return "base64 " + t.Base64
	}
	return quoted(t.Text)
}
