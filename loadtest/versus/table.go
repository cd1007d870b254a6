package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

// printTable shows the median of each broker and the median of its ratios to the first, taken round by round: what slows
// the machine down for a while slows both.
func printTable(chosen []broker, l load, all []result) {
	fmt.Printf("%d publishers, %d subscribers, QoS %d, window %d, %d B, %v a round, %d rounds in turns, medians\n\n",
		l.Publishers, l.Subscribers, l.QoS, l.Window, l.Payload, l.Measure, len(all)/len(chosen))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "broker\tacked/s\tratio\tdelivered/s\tp50 ms\tp99 ms\tcpu us/msg\trss MiB\tacknowledgement")
	base := rounds(all, chosen[0].name)
	for _, b := range chosen {
		rs := rounds(all, b.name)
		var ratios []float64
		for i := range rs {
			ratios = append(ratios, rs[i].Rate/base[i].Rate)
		}
		of := func(f func(result) float64) float64 {
			var v []float64
			for _, r := range rs {
				v = append(v, f(r))
			}
			return median(v)
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0f\t%.2f\t%.2f\t%.1f\t%.0f\t%s\n", b.name,
			of(func(r result) float64 { return r.Rate }), median(ratios), of(func(r result) float64 { return r.Delivered }),
			of(func(r result) float64 { return r.P50 }), of(func(r result) float64 { return r.P99 }),
			of(func(r result) float64 { return r.CPU }), of(func(r result) float64 { return r.RSS }), b.about)
	}
	w.Flush()
}

// rounds returns the results of one broker in the order of the rounds.
func rounds(all []result, name string) []result {
	return slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.Broker != name })
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
