package main

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// result is one round of one broker.
type result struct {
	Row       string  `json:"row"`
	Broker    string  `json:"broker"`
	Round     int     `json:"round"`
	Rate      float64 `json:"acknowledged_per_second"`
	Delivered float64 `json:"delivered_per_second"` // until the last has arrived
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	CPU       float64 `json:"cpu_us_per_message"`      // of the broker, until the last delivery
	Load      float64 `json:"load_cpu_us_per_message"` // of this program: what the broker makes the clients work
	RSS       float64 `json:"rss_mib"`
	Lost      uint64  `json:"lost"`  // deliveries that never came
	Again     uint64  `json:"again"` // deliveries that were doubled or out of order
	Window    int     `json:"window"`
}

// target is a broker that runs.
type target struct {
	addr   string
	speaks dialect
	secure bool
}

// round is a load on a broker.
type round struct {
	load
	to       target
	payloads [][]byte
	pubs     []*publisher
	subs     []*subscriber
	subWait  sync.WaitGroup
	errMu    sync.Mutex
	errs     []error
}

func (r *round) fail(err error) {
	r.errMu.Lock()
	defer r.errMu.Unlock()
	r.errs = append(r.errs, err)
}

// measure runs one round of l on a fresh b.
func measure(b broker, l load, payloads [][]byte) (result, error) {
	if b.own != nil {
		return b.own(l)
	}
	s, err := b.launch()
	if err != nil {
		return result{}, err
	}
	defer s.stop()
	r := &round{load: l, to: target{addr: s.addr, speaks: b.speaks}, payloads: payloads}
	defer r.hangUp()
	if err := r.subscribe(); err != nil {
		return result{}, err
	}
	runs, err := r.connect()
	if err != nil {
		return result{}, err
	}
	time.Sleep(200 * time.Millisecond) // what the connections cost is over
	cpuBefore, _ := s.usage()
	loadBefore := ownCPU()
	begin := time.Now()
	var wait sync.WaitGroup
	for _, run := range runs {
		wait.Go(run)
	}
	wait.Wait()
	took := time.Since(begin)
	last := r.drain()
	if last.IsZero() {
		last = begin.Add(took)
	}
	cpu, rss := s.usage()
	load := ownCPU() - loadBefore
	res := r.result(took, last.Sub(begin))
	res.Broker = b.name
	perMessage := 1e6 / max(1, res.Rate*took.Seconds())
	res.CPU, res.Load = (cpu-cpuBefore).Seconds()*perMessage, load.Seconds()*perMessage
	res.RSS = float64(rss) / (1 << 20)
	r.errMu.Lock()
	defer r.errMu.Unlock()
	return res, errors.Join(r.errs...)
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (r *round) subscribe() error {
	for i := range r.Subscribers {
		s := &subscriber{id: i, qos: byte(r.QoS)}
		reader, err := s.subscribe(r.to, r.Keep, r.Publishers)
		if err != nil {
			return err
		}
		r.subs = append(r.subs, s)
		r.subWait.Go(func() {
			if err := s.run(reader, r.to.speaks); err != nil {
				r.fail(fmt.Errorf("subscriber %d: %w", i, err))
			}
		})
	}
	return nil
}

// connect opens the publishers' connections and returns what makes them publish.
func (r *round) connect() (runs []func(), err error) {
	var conns []net.Conn
	defer func() {
		if err != nil {
			for _, c := range conns {
				c.Close()
			}
		}
	}()
	for i := range r.Publishers {
		p := &publisher{id: i, qos: byte(r.QoS), window: r.Window, payloads: r.payloads, rate: r.Rate / float64(r.Publishers)}
		if r.Ahead > 0 {
			p.gate = &gate{ahead: uint64(r.Ahead), subs: r.subs}
		}
		conn, reader, err := p.open(r.to)
		if err != nil {
			return nil, err
		}
		r.pubs, conns = append(r.pubs, p), append(conns, conn)
		runs = append(runs, func() {
			if err := p.run(conn, reader, r.Measure); err != nil {
				r.fail(fmt.Errorf("publisher %d: %w", i, err))
			}
		})
	}
	return runs, nil
}

const (
	drainStall = 5 * time.Second // without any delivery: what is missing does not come
	drainLimit = 2 * time.Minute
)

// drain waits until everything has arrived that was published, and returns when that was; zero without subscribers.
func (r *round) drain() (last time.Time) {
	if len(r.subs) == 0 {
		return last
	}
	var sent uint64
	for _, p := range r.pubs {
		sent += p.sent.Load()
	}
	due := sent * uint64(len(r.subs))
	stall := drainStall
	if r.QoS == 0 {
		stall = gateStall
	}
	last = time.Now()
	for before, end := uint64(0), last.Add(drainLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		now := r.received()
		if now != before {
			before, last = now, time.Now()
		}
		if now >= due || time.Since(last) > stall {
			break
		}
	}
	return last
}

func (r *round) received() (n uint64) {
	for _, s := range r.subs {
		n += s.received.Load()
	}
	return n
}

func (r *round) hangUp() {
	for _, s := range r.subs {
		s.conn.Close()
	}
	r.subWait.Wait()
}

func (r *round) result(took, delivered time.Duration) result {
	var done, sent uint64
	h := hdrhistogram.New(1, slowest, 3)
	for _, p := range r.pubs {
		done += p.done
		sent += p.sent.Load()
		h.Merge(p.latency)
	}
	received := r.received()
	res := result{
		Rate: float64(done) / took.Seconds(), Delivered: float64(received) / delivered.Seconds(),
		P50: float64(h.ValueAtQuantile(50)) / 1000, P99: float64(h.ValueAtQuantile(99)) / 1000,
		Window: r.pubs[0].window,
	}
	for _, s := range r.subs {
		res.Again += s.again.Load()
	}
	if first := received - res.Again; first < sent*uint64(len(r.subs)) {
		res.Lost = sent*uint64(len(r.subs)) - first
	}
	return res
}
