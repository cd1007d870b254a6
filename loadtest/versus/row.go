package main

import (
	"fmt"
	"path"
	"strings"
	"time"
)

// row is one line of loads of the comparison: who publishes what to whom, and what the ratios are to be.
type row struct {
	name    string
	load    load
	brokers []string // in turns; the first is what the others are compared to
	targets []want
}

// load is one setting of the comparison.
type load struct {
	Publishers  int           `json:"publishers"`
	Subscribers int           `json:"subscribers"`
	Keep        bool          `json:"persistent_sessions"` // of the subscribers
	QoS         int           `json:"qos"`
	Window      int           `json:"window"`
	Ahead       int           `json:"ahead,omitempty"` // messages that the one publisher may be ahead of the slowest subscriber; 0 is any number
	Payload     int           `json:"payload_bytes"`
	Rate        float64       `json:"rate_per_second,omitempty"` // of all publishers together; 0 is as fast as it goes
	Measure     time.Duration `json:"measure_ns"`
}

func (l load) String() string {
	kind := ""
	if l.Keep {
		kind = "persistent "
	}
	s := fmt.Sprintf("%d publishers, %d %ssubscribers, QoS %d, window %d, %d B", l.Publishers, l.Subscribers, kind, l.QoS, l.Window, l.Payload)
	if l.Ahead > 0 {
		s += fmt.Sprintf(", %d ahead of the slowest", l.Ahead)
	}
	if l.Rate > 0 {
		s += fmt.Sprintf(", %.0f/s offered", l.Rate)
	}
	return s
}

// want is a ratio that Forebay is to reach in a row.
type want struct {
	of    string // what is compared
	value func(result) float64
	to    string // the broker that it is compared to
	least float64
	most  float64
	plus  float64 // beside most times the other's value
}

func acked(least float64, to string) want {
	return want{of: "acked/s", value: func(r result) float64 { return r.Rate }, to: to, least: least}
}

func delivered(least float64, to string) want {
	return want{of: "delivered/s", value: func(r result) float64 { return r.Delivered }, to: to, least: least}
}

var everybody = []string{"mosquitto", "forebay", "nats", "mochi"}

// rows are all that can be named on the command line.
func rows() []row {
	var list []row
	for _, qos := range []int{1, 2} {
		for _, subs := range []int{0, 5} {
			for _, window := range []int{1, 100} {
				least := 0.8
				if window == 100 && subs == 0 {
					least = 0.6 // Mosquitto stores nothing then
				}
				list = append(list, row{
					name:    fmt.Sprintf("q%d-w%d-s%d", qos, window, subs),
					load:    load{Publishers: 50, Subscribers: subs, Keep: subs > 0, QoS: qos, Window: window, Payload: 200},
					brokers: everybody,
					targets: []want{acked(least, "mosquitto")},
				})
			}
		}
	}
	one := load{Publishers: 1, QoS: 1, Window: 1, Payload: 200}
	deep := one
	deep.Window = 1024
	list = append(
		list,
		row{
			name: "one-w1", load: one, brokers: []string{"disk", "mosquitto", "forebay", "nats", "mochi"},
			targets: []want{{of: "p50 ms", value: func(r result) float64 { return r.P50 }, to: "disk", most: 1.35, plus: 0.1}},
		},
		row{
			name: "one-w1024", load: deep, brokers: []string{"mosquitto", "spool", "forebay", "nats", "mochi"},
			targets: []want{acked(0.6, "spool"), acked(1, "mosquitto")},
		},
		row{
			name: "one-w1024-slow", load: deep, brokers: []string{"forebay-slow"},
			targets: []want{{of: "acked/s", value: func(r result) float64 { return r.Rate }, least: 10_000}},
		},
	)
	for _, subs := range []int{10, 100} {
		for _, kind := range []string{"q0", "q1", "q1-kept"} {
			l := load{Publishers: 1, Subscribers: subs, QoS: int(kind[1] - '0'), Window: 200, Ahead: 200, Keep: kind == "q1-kept", Payload: 200}
			list = append(list, row{
				name: fmt.Sprintf("fan%d-%s", subs, kind), load: l, brokers: everybody,
				targets: []want{delivered(1, "mosquitto"), delivered(2, "mochi")},
			})
		}
	}
	return list
}

// chooseRows returns the rows whose names match one of the patterns, as path.Match has them.
func chooseRows(patterns string) (chosen []row, held []idle, err error) {
	all := rows()
	for pattern := range strings.SplitSeq(patterns, ",") {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, nil, err
		}
		matches := func(name string) bool { ok, _ := path.Match(pattern, name); return ok }
		before := len(all) + len(idles) - len(chosen) - len(held)
		for _, r := range all {
			if matches(r.name) {
				chosen = append(chosen, r)
			}
		}
		for _, i := range idles {
			if matches(i.name) {
				held = append(held, i)
			}
		}
		if len(all)+len(idles)-len(chosen)-len(held) == before {
			return nil, nil, fmt.Errorf("no row is called %q", pattern)
		}
	}
	return chosen, held, nil
}
