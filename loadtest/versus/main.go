package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// load is one setting of the comparison.
type load struct {
	Publishers  int           `json:"publishers"`
	Subscribers int           `json:"subscribers"`
	QoS         int           `json:"qos"`
	Window      int           `json:"window"`
	Payload     int           `json:"payload_bytes"`
	Rate        float64       `json:"rate_per_second"` // of all publishers together; 0 is as fast as it goes
	Measure     time.Duration `json:"measure_ns"`
}

// result is one round of one broker.
type result struct {
	Broker    string  `json:"broker"`
	Round     int     `json:"round"`
	Rate      float64 `json:"acknowledged_per_second"`
	Delivered float64 `json:"delivered_per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	CPU       float64 `json:"cpu_us_per_message"`
	RSS       float64 `json:"rss_mib"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
		os.Exit(1)
	}
}

func run() error {
	var l load
	names := flag.String("brokers", "mosquitto,forebay", "brokers in turns, the first is what the others are compared to; name@host:port is one that runs already")
	forebay := flag.String("forebay", "bin/forebay", "the gateway's binary")
	rounds := flag.Int("rounds", 5, "rounds of each broker")
	asJSON := flag.Bool("json", false, "print every round as JSON")
	flag.IntVar(&l.Publishers, "publishers", 50, "publishing connections")
	flag.IntVar(&l.Subscribers, "subscribers", 0, "subscribing connections with persistent sessions")
	flag.IntVar(&l.QoS, "qos", 1, "QoS 1 or 2")
	flag.IntVar(&l.Window, "window", 1, "messages of one publisher that may be outstanding")
	flag.IntVar(&l.Payload, "payload", 200, "payload bytes")
	flag.Float64Var(&l.Rate, "rate", 0, "messages a second of all publishers together, 0 is as fast as it goes")
	flag.DurationVar(&l.Measure, "measure", 5*time.Second, "length of one round")
	flag.Parse()
	if l.QoS != 1 && l.QoS != 2 {
		return fmt.Errorf("qos %d: only 1 and 2 are acknowledged", l.QoS)
	}

	var chosen []broker
	for name := range strings.SplitSeq(*names, ",") {
		b, err := choose(name, *forebay)
		if err != nil {
			return err
		}
		chosen = append(chosen, b)
	}
	var all []result
	for round := range *rounds {
		for _, b := range chosen {
			r, err := measure(b, l)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", b.name, round+1, err)
			}
			r.Round = round + 1
			all = append(all, r)
		}
	}
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"load": l, "results": all})
	}
	printTable(chosen, l, all)
	return nil
}

// measure runs one round of l on a fresh b.
func measure(b broker, l load) (result, error) {
	s, err := b.launch()
	if err != nil {
		return result{}, err
	}
	defer s.stop()

	subs := make([]*subscriber, l.Subscribers)
	var subWait sync.WaitGroup
	for i := range subs {
		subs[i] = &subscriber{id: i, qos: byte(l.QoS)}
		r, err := subs[i].subscribe(s.addr, true)
		if err != nil {
			return result{}, err
		}
		subWait.Go(func() { _ = subs[i].run(r) })
	}

	payload := slices.Repeat([]byte("telemetry "), l.Payload/10+1)[:l.Payload]
	pubs := make([]*publisher, l.Publishers)
	errs := make([]error, l.Publishers)
	start := make(chan struct{})
	var wait sync.WaitGroup
	for i := range pubs {
		pubs[i] = &publisher{id: i, qos: byte(l.QoS), window: l.Window, payload: payload, rate: l.Rate / float64(l.Publishers)}
		wait.Go(func() { errs[i] = pubs[i].run(s.addr, start, l.Measure) })
	}
	time.Sleep(300 * time.Millisecond) // all connections stand before the clock starts
	cpuBefore, _ := s.usage()
	begin := time.Now()
	close(start)
	wait.Wait()
	took := time.Since(begin).Seconds()
	cpu, rss := s.usage()

	var total uint64
	h := hdrhistogram.New(1, 60_000_000, 3)
	for _, p := range pubs {
		total += p.done
		if p.latency != nil {
			h.Merge(p.latency)
		}
	}
	var received uint64
	for _, sub := range subs {
		received += sub.received.Load()
		sub.conn.Close()
	}
	subWait.Wait()
	return result{
		Broker: b.name, Rate: float64(total) / took, Delivered: float64(received) / took,
		P50: float64(h.ValueAtQuantile(50)) / 1000, P99: float64(h.ValueAtQuantile(99)) / 1000,
		CPU: (cpu - cpuBefore).Seconds() * 1e6 / float64(max(total, 1)), RSS: float64(rss) / (1 << 20),
	}, errors.Join(errs...)
}
