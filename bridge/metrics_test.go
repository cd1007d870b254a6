package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/twmb/franz-go/pkg/kfake"
)

func TestMetricsAreThereFromTheStartAndGoWithTheBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.cluster.Close()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(collector{r.b})
		value := func(name, label string) float64 {
			t.Helper()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						if f.GetName() == name && l.GetValue() == label {
							return m.GetCounter().GetValue() + m.GetGauge().GetValue()
						}
					}
				}
			}
			t.Fatalf("no series %s of %s", name, label)
			return 0
		}
		if v := value("forebay_bridge_sent_records_total", "all"); v != 0 {
			t.Errorf("sent %v at the start", v)
		}
		value("forebay_bridge_errors_total", "poison")
		r.publish(oneTopic("a"), 2, 50)
		r.drained(time.Minute)
		if v := value("forebay_bridge_sent_records_total", "all"); v != 100 {
			t.Errorf("sent %v, want 100", v)
		}
		if value("forebay_bridge_upstream_up", "main") != 1 || value("forebay_bridge_lag_records", "all") != 0 || value("forebay_bridge_stuck", "all") != 0 {
			t.Error("want up, no lag, not stuck")
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
		r.stop()
	})
}
