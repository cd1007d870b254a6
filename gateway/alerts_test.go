package gateway

import (
	"bytes"
	"context"
	"os"
	"regexp"
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

// Every alert parses, names metrics that the gateway has, and links to a section of the runbook.
func TestAlertsNameWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("../configs/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file ruleFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	metrics, anchors := metricNames(t), runbookAnchors(t)
	name := regexp.MustCompile(`forebay_[a-z_]+`)
	seen := make(map[string]bool)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] {
				t.Errorf("alert %q has no name, or one that is taken", r.Alert)
			}
			seen[r.Alert] = true
			if _, err := metricsql.Parse(r.Expr); err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			used := name.FindAllString(r.Expr, -1)
			if len(used) == 0 {
				t.Errorf("%s: names no metric", r.Alert)
			}
			for _, m := range used {
				if !metrics[m] && !sometimes[m] {
					t.Errorf("%s: no metric %s", r.Alert, m)
				}
			}
			if r.For != "" {
				if _, err := time.ParseDuration(r.For); err != nil {
					t.Errorf("%s: for: %v", r.Alert, err)
				}
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: says nothing", r.Alert)
			}
			anchor, ok := strings.CutPrefix(r.Annotations["runbook"], "docs/OPERATIONS.md#")
			if !ok || !anchors[anchor] {
				t.Errorf("%s: no section %q in the runbook", r.Alert, r.Annotations["runbook"])
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d alerts", len(seen))
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
