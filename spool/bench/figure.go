package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// figure is one measured value beside its target.
type figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Target float64 `json:"target,omitempty"`
	Most   bool    `json:"at_most,omitempty"` // the target is an upper limit
	OK     *bool   `json:"ok,omitempty"`      // nil: no target
	Noisy  bool    `json:"noisy,omitempty"`
	Detail string  `json:"detail,omitempty"`
}

func atLeast(name string, value, target float64, unit, detail string, noisy bool) figure {
	ok := value >= target
	return figure{Name: name, Value: value, Unit: unit, Target: target, OK: &ok, Detail: detail, Noisy: noisy}
}

func atMost(name string, value, target float64, unit, detail string, noisy bool) figure {
	ok := value <= target
	return figure{Name: name, Value: value, Unit: unit, Target: target, Most: true, OK: &ok, Detail: detail, Noisy: noisy}
}

func (f figure) String() string {
	verdict := ""
	if f.OK != nil {
		sign, word := ">=", "missed"
		if f.Most {
			sign = "<="
		}
		if *f.OK {
			word = "ok"
		}
		verdict = fmt.Sprintf("%s %-6s %s", sign, number(f.Target), word)
	}
	if f.Noisy {
		verdict += " (noisy)"
	}
	return strings.TrimRight(fmt.Sprintf("  %-52s %9s %-5s %-20s %s", f.Name, number(f.Value), f.Unit, verdict, f.Detail), " ")
}

func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// report collects the figures and prints each as soon as it is known.
type report struct {
	out     io.Writer // nil while only JSON is wanted
	Figures []figure  `json:"figures"`
	Tables  []table   `json:"tables"`
}

// table is what all subjects did under one load.
type table struct {
	Load string `json:"load"`
	Rows []row  `json:"rows"`
}

type row struct {
	Subject string  `json:"subject"`
	Rate    float64 `json:"records_per_second"` // medians over the rounds
	Ratio   float64 `json:"ratio"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	CPU     float64 `json:"cpu_us_per_record"` // of the whole process, producers included
}

func (r *report) section(format string, args ...any) {
	if r.out != nil {
		fmt.Fprintf(r.out, "\n"+format+"\n", args...)
	}
}

func (r *report) note(format string, args ...any) {
	if r.out != nil {
		fmt.Fprintf(r.out, "  "+format+"\n", args...)
	}
}

func (r *report) add(f figure) {
	r.Figures = append(r.Figures, f)
	if r.out != nil {
		fmt.Fprintln(r.out, f)
	}
}

func (r *report) table(t table) {
	r.Tables = append(r.Tables, t)
	if r.out == nil {
		return
	}
	fmt.Fprintf(r.out, "\n%s\n", t.Load)
	for _, w := range t.Rows {
		fmt.Fprintf(r.out, "  %-28s %9s /s   %5.2f x   p50 %8.3f ms   p99 %8.3f ms   CPU %7.2f us\n", w.Subject, number(w.Rate), w.Ratio, w.P50, w.P99, w.CPU)
	}
}

func (r *report) summary() {
	ok, missed := 0, []string(nil)
	for _, f := range r.Figures {
		switch {
		case f.OK == nil:
		case *f.OK:
			ok++
		default:
			missed = append(missed, f.Name)
		}
	}
	r.section("%d targets met, %d missed", ok, len(missed))
	for _, m := range missed {
		r.note("missed: %s", m)
	}
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// spread tells whether the rounds of the reference differ too much to be believed.
func spread(v []float64) bool { return len(v) > 1 && slices.Max(v) > 2*slices.Min(v) }

func ratios(a, b []float64) []float64 {
	q := make([]float64, min(len(a), len(b)))
	for i := range q {
		q[i] = a[i] / b[i]
	}
	return q
}
