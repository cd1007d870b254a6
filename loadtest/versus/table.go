package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// print shows the median of each broker and the median of its ratios to the first, taken round by round: what slows the
// machine down for a while slows both. Behind the table stand the row's targets.
func (r row) print(w io.Writer, all []result) {
	names := slices.Clone(r.brokers)
	for i, n := range names {
		names[i] = plainName(n)
	}
	fmt.Fprintf(w, "%s: %s; %v a round, %d rounds in turns, medians\n", r.name, r.load, r.load.Measure, len(all)/len(names))
	rate := func(r result) float64 { return r.Rate }
	if r.load.Ahead > 0 {
		rate = func(r result) float64 { return r.Delivered }
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  broker\tacked/s\tdelivered/s\tratio\tp50 ms\tp99 ms\tcpu us/msg\tload us/msg\trss MiB\tlost\tagain\t")
	base := of(all, names[0])
	for _, name := range names {
		rs := of(all, name)
		mid := func(f func(result) float64) float64 { return median(values(rs, f)) }
		note := ""
		if window := rs[0].Window; window != 0 && window < r.load.Window {
			note = fmt.Sprintf("takes only %d at once", window)
		}
		fmt.Fprintf(t, "  %s\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%s\n", name,
			mid(func(r result) float64 { return r.Rate }), mid(func(r result) float64 { return r.Delivered }),
			median(ratios(values(rs, rate), values(base, rate))),
			mid(func(r result) float64 { return r.P50 }), mid(func(r result) float64 { return r.P99 }),
			mid(func(r result) float64 { return r.CPU }), mid(func(r result) float64 { return r.Load }), mid(func(r result) float64 { return r.RSS }),
			mid(func(r result) float64 { return float64(r.Lost) }), mid(func(r result) float64 { return float64(r.Again) }), note)
	}
	t.Flush()
	for _, t := range r.targets {
		fmt.Fprintln(w, " ", t.judge(all))
	}
	fmt.Fprintln(w)
}

// judge says whether Forebay has reached a target.
func (t want) judge(all []result) string {
	ours := values(slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.Broker != "forebay" && r.Broker != "forebay-slow" }), t.value)
	if t.to == "" {
		got := median(ours)
		return fmt.Sprintf("%s: %.0f, at least %.0f: %s", t.of, got, t.least, verdict(got >= t.least))
	}
	theirs := values(of(all, t.to), t.value)
	if t.most > 0 {
		limit := t.most*median(theirs) + t.plus
		return fmt.Sprintf("%s: %.3f, at most %.2f x %s + %.1f = %.3f: %s", t.of, median(ours), t.most, t.to, t.plus, limit,
			verdict(median(ours) <= limit))
	}
	got := median(ratios(ours, theirs))
	return fmt.Sprintf("%s: %.2f x %s, at least %.2f: %s", t.of, got, t.to, t.least, verdict(got >= t.least))
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "missed"
}

// of returns the results of one broker in the order of the rounds.
func of(all []result, name string) []result {
	return slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.Broker != name })
}

func values(rs []result, f func(result) float64) []float64 {
	var v []float64
	for _, r := range rs {
		v = append(v, f(r))
	}
	return v
}

func ratios(a, b []float64) []float64 {
	var v []float64
	for i := range min(len(a), len(b)) {
		v = append(v, a[i]/b[i])
	}
	return v
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
