package gateway

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

//go:generate go test -count=1 -run TestMetricsReferenceIsCurrent . -update

var update = flag.Bool("update", false, "write docs/METRICS.md anew")

const metricsFile = "../docs/METRICS.md"

// metric is one of ours as the reference has it.
type metric struct {
	name, help, kind string
	labels           []string
}

// unit is what its values count: the last word of the name, where that is a unit.
func (m metric) unit() string {
	_, last, _ := cutLast(strings.TrimSuffix(m.name, "_total"), "_")
	switch last {
	case "seconds", "bytes", "ratio":
		return last
	}
	return ""
}

// part is the part of the gateway that it is about.
func (m metric) part() string {
	part, _, _ := strings.Cut(strings.TrimPrefix(m.name, "forebay_"), "_")
	return part
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

var described = regexp.MustCompile(`^Desc\{fqName: "(.*)", help: "(.*)", unit: "", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

var constant = regexp.MustCompile(`([a-z_]+)="`)

// later are gauges that have a series only when there is something to say: a sealed segment and a store that answers, or Kafka's ends.
var later = map[string]bool{
	"forebay_downlink_lag_records": true, "forebay_downlink_max_partition_lag_records": true,
	"forebay_tiering_behind_bytes": true, "forebay_tiering_behind_seconds": true, "forebay_tiering_behind_segments": true,
	"forebay_tiering_cold_bytes": true, "forebay_tiering_cold_segments": true, "forebay_tiering_cost_per_month": true,
	"forebay_tiering_growth_bytes_per_day": true, "forebay_tiering_local_full_seconds": true,
}

// ourMetrics are all metrics of a gateway that has everything: TLS, object storage, a stream whose publishers wait for Kafka, failover.
func ourMetrics(t *testing.T) []metric {
	t.Helper()
	c, dir := small(t), t.TempDir()
	ca := mqtttest.NewCA(t, "devices")
	cert, key := mqtttest.WritePair(t, dir, "gateway", ca.Issue("gateway"))
	secure := mqtt.ListenerConfig{Name: "tls", Type: mqtt.ListenerTLS, Address: "127.0.0.1:0"}
	secure.TLS.CertFile, secure.TLS.KeyFile = cert, key
	c.MQTT.Listeners = append(c.MQTT.Listeners, secure)
	c.Tiering.URL = "file://" + filepath.Join(dir, "store")
	c.Spool.Streams = append(c.Spool.Streams, spool.StreamConfig{Name: "sure", Filters: []string{"sure/#"}, Ack: spool.AckUpstream})
	c.Bridge.Upstreams = []kafka.Config{{Name: "away", Brokers: []string{"127.0.0.1:1"}}, {Name: "also", Brokers: []string{"127.0.0.1:1"}}}
	c.Bridge.Routes[0].Upstream = "embedded"
	sure := c.Bridge.Routes[0]
	sure.Name, sure.Stream, sure.Upstream, sure.Failover.To = "sure", "sure", "away", []string{"also"}
	c.Bridge.Routes = append(c.Bridge.Routes, sure)
	c.Bridge.Downlinks[0].Upstream = "embedded"
	g, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-g.Ready():
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return listMetrics(t, g.reg)
}

func listMetrics(t *testing.T, reg *prometheus.Registry) (list []metric) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]string)
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc, 10_000) // the registry is locked until all are read
	reg.Describe(descs)
	close(descs)
	seen := make(map[string]bool)
	for d := range descs {
		text := d.String()
		if !strings.Contains(text, `fqName: "forebay_`) {
			continue // of the Go runtime and the process
		}
		m := described.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("cannot read %s", text)
		}
		one := metric{name: m[1], help: strings.ReplaceAll(m[2], `\"`, `"`), kind: kinds[m[1]]}
		if seen[one.name] { // once for each value of a label that is constant
			continue
		}
		seen[one.name] = true
		for _, label := range constant.FindAllStringSubmatch(m[3], -1) {
			one.labels = append(one.labels, label[1])
		}
		if m[4] != "" {
			one.labels = append(one.labels, strings.Split(m[4], ",")...)
		}
		switch {
		case one.kind != "":
		case strings.HasSuffix(one.name, "_total"): // no series yet
			one.kind = strings.ToLower(dto.MetricType_COUNTER.String())
		case later[one.name]:
			one.kind = strings.ToLower(dto.MetricType_GAUGE.String())
		}
		list = append(list, one)
	}
	for name := range kinds {
		if strings.HasPrefix(name, "forebay_") && !seen[name] {
			t.Errorf("%s has values, and its collector does not describe it", name)
		}
	}
	slices.SortFunc(list, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return list
}

// The reference is what the registry says.
func TestMetricsReferenceIsCurrent(t *testing.T) {
	list := ourMetrics(t)
	want := metricsReference(list)
	if *update {
		if err := os.WriteFile(metricsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(metricsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/METRICS.md is not what the code says: run make generate")
	}
}

// Whoever reads a help text reads a sentence, and the name says what kind of metric it is.
func TestMetricsSayWhatTheyAre(t *testing.T) {
	for _, m := range ourMetrics(t) {
		if len(m.help) < 10 || !strings.HasSuffix(m.help, ".") || strings.ToUpper(m.help[:1]) != m.help[:1] {
			t.Errorf("%s: help %q is no sentence", m.name, m.help)
		}
		if m.kind == "" {
			t.Errorf("%s: it has no series here, so that its kind is not known: give it one, or list it as a later gauge", m.name)
		}
		if total := strings.HasSuffix(m.name, "_total"); total != (m.kind == "counter") {
			t.Errorf("%s is a %s", m.name, m.kind)
		}
	}
}

// What the pages and the alerts name is in the reference.
func TestPagesNameMetricsThatThereAre(t *testing.T) {
	list, err := os.ReadFile(metricsFile)
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatal(pages, err)
	}
	name := regexp.MustCompile(`\bforebay_[a-z]+_[a-z_]*[a-z]\b`)
	anchor := regexp.MustCompile(`#[a-z][^)\s]*`) // of a link: it has names with their punctuation left out
	for _, page := range append(pages, "../README.md", "../CHANGELOG.md", "../configs/alerts.yaml") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllString(anchor.ReplaceAllString(string(text), ""), -1) {
			for _, series := range []string{"_bucket", "_sum", "_count"} {
				if base, ok := strings.CutSuffix(m, series); ok && strings.Contains(string(list), "`"+base+"` | histogram") {
					m = base
				}
			}
			if !strings.Contains(string(list), "| `"+m+"` |") {
				t.Errorf("%s: no metric %s", page, m)
			}
		}
	}
}

func metricsReference(list []metric) string {
	var b strings.Builder
	b.WriteString(`# Metrics

Made by ` + "`make generate`" + ` from what the gateway registers; do not edit. ` + "`/metrics`" + ` of the admin listener has them. [OPERATIONS.md](OPERATIONS.md) says which of them
matter, and what to do. Labels have values that are known when the configuration is loaded: there is none by client, topic or address. Counters begin at
zero with the process. Beside these are those of the Go runtime (` + "`go_`" + `) and of the process (` + "`process_`" + `).
`)
	for i, m := range list {
		if i == 0 || list[i-1].part() != m.part() {
			fmt.Fprintf(&b, "\n## %s\n\n| name | type | unit | labels | what it is |\n|---|---|---|---|---|\n", m.part())
		}
		labels := make([]string, len(m.labels))
		for i, l := range m.labels {
			labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, m.unit(), strings.Join(labels, ", "), strings.ReplaceAll(m.help, "|", `\|`))
	}
	return b.String()
}
