package main

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// load says who appends: so many producers that each wait for their acknowledgement, or one that has so many outstanding.
type load struct {
	name        string
	producers   int
	outstanding int // when it is more than 1 there is one producer
	target      float64
}

var loads = []load{
	{"1 waiting producer", 1, 1, 0.95},
	{"10 waiting producers", 10, 1, 0.95},
	{"100 waiting producers", 100, 1, 0.95},
	{"1000 waiting producers", 1000, 1, 0.70},
	{"1024 outstanding from one", 1, 1024, 0.80},
	{"8192 outstanding from one", 1, 8192, 0.30},
}

// meter counts acknowledgements. ack is called by one goroutine at a time: the subject's.
type meter struct {
	on   atomic.Bool
	acks atomic.Int64
	fail atomic.Pointer[error]
	hist histogram
}

func (m *meter) ack(start time.Time, err error) {
	if err != nil {
		m.fail.CompareAndSwap(nil, &err)
	}
	m.acks.Add(1)
	if !start.IsZero() && m.on.Load() {
		m.hist.add(time.Since(start))
	}
}

func (m *meter) err() error {
	if e := m.fail.Load(); e != nil {
		return *e
	}
	return nil
}

// slot is the completion of one outstanding record.
type slot struct {
	m     *meter
	start time.Time
	free  chan *slot
}

func (s *slot) Durable(_ *spool.Record, err error) {
	s.m.ack(s.start, err)
	s.free <- s
}

const sampled = 8 // of so many pipelined records one is timed: the clock is not what is measured

// measured is what one subject did in one round.
type measured struct{ rate, p50, p99, cpu float64 }

// run lets the load work on s: a quarter of d to warm up, then d that counts.
func (l load) run(s subject, d time.Duration) (measured, error) {
	m := new(meter)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for p := range l.producers {
		wg.Go(func() { l.produce(s, m, p, &stop) })
	}
	time.Sleep(d / 4)
	m.on.Store(true)
	began, first, cpu := time.Now(), m.acks.Load(), cpuTime()
	time.Sleep(d)
	last, took := m.acks.Load(), time.Since(began)
	cpu = cpuTime() - cpu
	m.on.Store(false)
	stop.Store(true)
	wg.Wait()
	s.settle()
	return measured{
		rate: float64(last-first) / took.Seconds(),
		p50:  m.hist.quantile(0.50), p99: m.hist.quantile(0.99),
		cpu: float64(cpu) / 1e3 / float64(max(1, last-first)),
	}, wrap(l.name, m.err())
}

func (l load) produce(s subject, m *meter, p int, stop *atomic.Bool) {
	free := make(chan *slot, l.outstanding)
	for range l.outstanding {
		free <- &slot{m: m, free: free}
	}
	for n := p; !stop.Load(); n += l.producers {
		o := <-free
		o.start = time.Time{}
		if l.outstanding == 1 || (n/l.producers)%sampled == 0 {
			o.start = time.Now()
		}
		if err := s.append(record(n), o); err != nil {
			m.ack(o.start, err)
			return
		}
	}
	for range l.outstanding {
		<-free
	}
}

// measureLoads runs every load on every subject in turns.
func measureLoads(b *bench) error {
	for _, l := range loads {
		if err := measureLoad(b, l); err != nil {
			return err
		}
	}
	return nil
}

func measureLoad(b *bench, l load) error {
	rates, cpu := make(map[string][]float64), make(map[string][]float64)
	p50, p99 := make(map[string][]float64), make(map[string][]float64)
	for range b.rounds {
		for _, k := range kinds {
			m, err := runOnce(b, k, l)
			if err != nil {
				return wrap(k.name, err)
			}
			rates[k.name] = append(rates[k.name], m.rate)
			p50[k.name] = append(p50[k.name], m.p50)
			p99[k.name] = append(p99[k.name], m.p99)
			cpu[k.name] = append(cpu[k.name], m.cpu)
		}
	}
	t := table{Load: l.name}
	for _, k := range kinds {
		t.Rows = append(t.Rows, row{
			k.name, median(rates[k.name]), median(ratios(rates[k.name], rates[plainName])), median(p50[k.name]), median(p99[k.name]),
			median(cpu[k.name]),
		})
	}
	b.table(t)
	ours := rates[oursName]
	detail := ""
	if len(rates[bboltName]) > 0 {
		detail = fmt.Sprintf("%.2f x bbolt", median(ratios(ours, rates[bboltName])))
	}
	b.add(atLeast(l.name+" / "+plainName, median(ratios(ours, rates[plainName])), l.target, "x", detail, spread(rates[plainName])))
	return nil
}

// runOnce gives each subject a new directory: nothing is left of the round before.
func runOnce(b *bench, k kind, l load) (m measured, err error) {
	dir, done, err := b.tempDir()
	if err != nil {
		return m, err
	}
	defer done()
	s, err := k.open(dir)
	if err != nil {
		return m, err
	}
	if m, err = l.run(s, b.time); err != nil {
		return m, err
	}
	return m, s.close()
}

// histogram counts durations in buckets that grow by 2 %.
type histogram struct {
	n       int
	buckets [1200]int
	worst   time.Duration
}

const bucketGrowth = 1.02

func (h *histogram) add(d time.Duration) {
	i := int(math.Log(max(1, float64(d)/1e3)) / math.Log(bucketGrowth)) // from 1 us
	h.buckets[min(i, len(h.buckets)-1)]++
	h.n++
	h.worst = max(h.worst, d)
}

// quantile is in milliseconds.
func (h *histogram) quantile(q float64) float64 {
	left := int(q * float64(h.n))
	for i, n := range h.buckets {
		if left -= n; left < 0 {
			return math.Pow(bucketGrowth, float64(i)+0.5) / 1e3
		}
	}
	return float64(h.worst) / 1e6
}
