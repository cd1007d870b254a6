package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brief is a demo that is over soon.
func brief(out *bytes.Buffer) Options {
	o := DefaultOptions()
	o.Devices, o.Rate, o.Duration, o.Out = 10, 500, 2*time.Second, out
	return o
}

func TestDemoReconcilesThroughAnOutage(t *testing.T) {
	var out bytes.Buffer
	o := brief(&out)
	o.Duration, o.Outage = 3*time.Second, time.Second
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, want := range []string{"publishing", "upstream down", "upstream up", "reconciled: every acknowledged message"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, &out)
		}
	}
}

func TestDemoStopsWhenItsContextEnds(t *testing.T) {
	var out bytes.Buffer
	o := brief(&out)
	o.Duration, o.JSON, o.DataDir = 0, true, t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := Run(ctx, o); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	var r fleet.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || !r.Verdict.Reconciled || r.Verdict.Acknowledged.Total() == 0 {
		t.Errorf("%v: %+v", err, r.Verdict)
	}
}

func TestOutageMustFitIntoTheDuration(t *testing.T) {
	o := DefaultOptions()
	o.Duration, o.Outage = time.Second, time.Second
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("error %v", err)
	}
}
