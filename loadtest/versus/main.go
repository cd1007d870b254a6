package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
		os.Exit(1)
	}
}

// binaries are the programs under test that this module does not hold.
type binaries struct {
	forebay, peers, spool string
}

func run() error {
	var l load
	var bin binaries
	names := flag.String("rows", "*", "rows to run, patterns with commas between; -list shows them")
	list := flag.Bool("list", false, "print the rows and end")
	brokers := flag.String("brokers", "", "brokers in turns instead of the row's, the first is what the others are compared to; name@host:port is one that runs already, name=path another build of the gateway")
	rounds := flag.Int("rounds", 5, "rounds of each broker")
	asJSON := flag.Bool("json", false, "print every round as JSON")
	flag.StringVar(&bin.forebay, "forebay", "bin/forebay", "the gateway's binary")
	flag.StringVar(&bin.peers, "peers", "bin/peers", "the binary of loadtest/versus/peers")
	flag.StringVar(&bin.spool, "spool", "bin/spoolbench", "the binary of spool/bench")
	flag.IntVar(&l.Payload, "payload", 0, "payload bytes instead of the row's")
	flag.IntVar(&l.Window, "window", 0, "messages of one publisher that may be outstanding, instead of the row's")
	flag.IntVar(&l.Publishers, "publishers", 0, "publishing connections instead of the row's")
	flag.IntVar(&l.Subscribers, "subscribers", 0, "subscribing connections instead of the row's")
	flag.Float64Var(&l.Rate, "rate", 0, "messages a second of all publishers together, 0 is as fast as it goes")
	flag.DurationVar(&l.Measure, "measure", 3*time.Second, "length of one round")
	flag.Parse()

	chosen, held, err := chooseRows(*names)
	if err != nil {
		return err
	}
	if *list {
		for _, r := range chosen {
			fmt.Printf("%-16s %s: %s\n", r.name, r.load, strings.Join(r.brokers, ", "))
		}
		for _, i := range held {
			fmt.Printf("%-16s %d idle connections\n", i.name, i.count)
		}
		return nil
	}
	var all []result
	for _, r := range chosen {
		r.load = r.load.with(l)
		if *brokers != "" {
			r.brokers, r.targets = strings.Split(*brokers, ","), nil
		}
		results, err := r.run(bin, *rounds)
		if err != nil {
			return err
		}
		all = append(all, results...)
		if !*asJSON {
			r.print(os.Stdout, results)
		}
	}
	for _, i := range held {
		by := []string{i.broker}
		if *brokers != "" {
			by = strings.Split(*brokers, ",")
		}
		if err := i.run(os.Stdout, bin, by); err != nil {
			return err
		}
	}
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	return nil
}

// with is l with what o says instead.
func (l load) with(o load) load {
	if o.Payload != 0 {
		l.Payload = o.Payload
	}
	if o.Window != 0 {
		l.Window = o.Window
	}
	if o.Publishers != 0 {
		l.Publishers = o.Publishers
	}
	if o.Subscribers != 0 {
		l.Subscribers = o.Subscribers
	}
	l.Rate, l.Measure = o.Rate, o.Measure
	return l
}

// run lets the row's brokers take turns.
func (r row) run(bin binaries, rounds int) ([]result, error) {
	payloads, err := telemetry(r.load.Payload)
	if err != nil {
		return nil, err
	}
	var chosen []broker
	for _, name := range r.brokers {
		b, err := choose(name, bin)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, b)
	}
	var all []result
	for n := range rounds {
		for _, b := range chosen {
			res, err := measure(b, r.load, payloads)
			if err != nil {
				return nil, fmt.Errorf("%s: %s, round %d: %w", r.name, b.name, n+1, err)
			}
			res.Row, res.Round = r.name, n+1
			all = append(all, res)
		}
	}
	return all, nil
}
