package gateway

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/VictoriaMetrics/metricsql"
	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v3"
)

// ruleFile is what Prometheus takes, as far as it is used.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Record      string            `yaml:"record"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

// sometimes are the series that a gateway without TLS, or without tiering, does not have.
var sometimes = map[string]bool{
	"forebay_mqtt_upstream_ack_fallbacks_total": true, "forebay_mqtt_certificate_not_after_seconds": true, "forebay_tiering_up": true, "forebay_tiering_damaged_reads_total": true,
}

// Every rule parses and names metrics that the gateway has, or that a rule records; every alert links to a section of the runbook.
func TestAlertsNameWhatThereIs(t *testing.T) {
	metrics, anchors := metricNames(t), runbookAnchors(t)
	seen := make(map[string]bool)
	f := func(path string, atLeast int) {
		t.Helper()
		file, recorded, alerts := readRules(t, path), make(map[string]bool), 0
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				recorded[r.Record] = true
			}
		}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				name := r.Alert + r.Record
				if (r.Alert == "") == (r.Record == "") || seen[name] {
					t.Errorf("rule %q is to be an alert or a record, and of its own", name)
				}
				seen[name] = true
				checkExpr(t, name, r.Expr, metrics, recorded)
				if r.Alert == "" {
					continue
				}
				alerts++
				if r.For != "" {
					if _, err := time.ParseDuration(r.For); err != nil {
						t.Errorf("%s: for: %v", name, err)
					}
				}
				if s := r.Labels["severity"]; s != "page" && s != "ticket" {
					t.Errorf("%s: severity %q", name, s)
				}
				if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
					t.Errorf("%s: says nothing", name)
				}
				anchor, ok := strings.CutPrefix(r.Annotations["runbook"], "docs/OPERATIONS.md#")
				if !ok || !anchors[anchor] {
					t.Errorf("%s: no section %q in the runbook", name, r.Annotations["runbook"])
				}
			}
		}
		if alerts < atLeast {
			t.Errorf("%s: %d alerts", path, alerts)
		}
	}
	f("../configs/alerts.yaml", 20)
	f("../configs/slo.yaml", 16)
}

func readRules(t *testing.T, path string) (file ruleFile) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	return file
}

var (
	nameInExpr     = regexp.MustCompile(`forebay_[a-z_]+`)
	recordedInExpr = regexp.MustCompile(`forebay:[a-z_:0-9]+`)
	boundInExpr    = regexp.MustCompile(`(forebay_[a-z_]+_bucket)\{[^}]*le="([^"]+)"`)
)

// checkExpr reports what an expression names and nobody has; a bound of a histogram is "NAME_bucket LE" in metrics.
func checkExpr(t *testing.T, rule, expr string, metrics, recorded map[string]bool) {
	t.Helper()
	if _, err := metricsql.Parse(expr); err != nil {
		t.Errorf("%s: %v", rule, err)
	}
	used, records := nameInExpr.FindAllString(expr, -1), recordedInExpr.FindAllString(expr, -1)
	if len(used)+len(records) == 0 {
		t.Errorf("%s: names no metric", rule)
	}
	for _, m := range used {
		if !metrics[m] && !sometimes[m] {
			t.Errorf("%s: no metric %s", rule, m)
		}
	}
	for _, m := range records {
		if !recorded[m] {
			t.Errorf("%s: nothing records %s", rule, m)
		}
	}
	for _, m := range boundInExpr.FindAllStringSubmatch(expr, -1) {
		if !metrics[m[1]+" "+m[2]] {
			t.Errorf("%s: %s has no bound %s", rule, m[1], m[2])
		}
	}
}

// metricNames are those of a running gateway, with the series of its histograms.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	g, err := New(small(t), Options{})
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
	families, err := g.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, f := range families {
		names[f.GetName()] = true
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				names[f.GetName()+part] = true
			}
			for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
				names[f.GetName()+"_bucket "+strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)] = true
			}
		}
	}
	return names
}

// runbookAnchors are the headings' anchors as Git hosts make them: lower case, punctuation left out, spaces as hyphens.
func runbookAnchors(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	anchors := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		anchors[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(heading))] = true
	}
	return anchors
}
