package main

import (
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

const (
	pacedRate    = 20_000
	pacedP99     = 2
	pacedDevice  = 1.3
	pacedTimes   = 2 // of -time: a second is one round of the materialiser
	settlingTime = 300 * time.Millisecond
)

type paced struct{ p50, p99, cpu, device float64 }

// measurePaced offers the same load to all: 20 000 records a second, whatever comes back. Latencies count from when a record
// was due, so that a log that holds up its producer does not look better for it.
func measurePaced(b *bench) error {
	b.section("paced, %d records/s", pacedRate)
	var chosen []kind
	for _, k := range kinds {
		if k.name != natsName && k.name != walName { // one cannot, the other writes what the reference writes
			chosen = append(chosen, k)
		}
	}
	got, err := pacedRounds(b, chosen, b.tempDir)
	if err != nil {
		return err
	}
	onDisk, err := pacedDeviceBytes(b, chosen)
	if err != nil {
		return err
	}
	for _, k := range chosen {
		b.note("%-28s p50 %.2f ms, p99 %.2f ms, CPU %.2f cores, %.1f MB/s to the device", k.name,
			median(got.column(k.name, p50)), median(got.column(k.name, p99)), median(got.column(k.name, cpu)), median(onDisk.column(k.name, device)))
	}
	base := chosen[min(1, len(chosen)-1)].name
	noisy := spread(got.column(base, p99))
	b.add(figure{Name: "paced: p50 / " + base, Value: got.ratio(base, p50), Unit: "x", Noisy: noisy})
	b.add(atMost("paced: p99 / "+base, got.ratio(base, p99), pacedP99, "x", "", noisy))
	b.add(figure{Name: "paced: CPU / " + base, Value: got.ratio(base, cpu), Unit: "x"})
	b.add(atMost("paced: device bytes / "+base, onDisk.ratio(base, device), pacedDevice, "x", "", spread(onDisk.column(base, device))))
	return nil
}

// pacedDeviceBytes runs the load again on a disk of its own where it can have one: the counters of the real disk count what
// everybody writes.
func pacedDeviceBytes(b *bench, chosen []kind) (pacedResults, error) {
	dir, done, err := b.tempDir()
	if err != nil {
		return nil, err
	}
	defer done()
	mnt, unmount, err := ownDisk(dir)
	if err != nil {
		b.note("device bytes are those of the whole machine: %v", err)
		return pacedRounds(b, chosen, b.tempDir)
	}
	own := &bench{dir: mnt, rounds: min(b.rounds, 3), time: b.time}
	r, err := pacedRounds(own, chosen, own.tempDir)
	if uerr := unmount(); err == nil {
		err = uerr
	}
	return r, err
}

type pacedResults map[string][]paced

func (r pacedResults) column(name string, of func(paced) float64) (v []float64) {
	for _, p := range r[name] {
		v = append(v, of(p))
	}
	return v
}

// ratio of ours to base.
func (r pacedResults) ratio(base string, of func(paced) float64) float64 {
	return median(ratios(r.column(oursName, of), r.column(base, of)))
}

func p50(p paced) float64    { return p.p50 }
func p99(p paced) float64    { return p.p99 }
func cpu(p paced) float64    { return p.cpu }
func device(p paced) float64 { return p.device }

func pacedRounds(b *bench, chosen []kind, tempDir func() (string, func(), error)) (pacedResults, error) {
	got := make(pacedResults)
	for range b.rounds {
		for _, k := range chosen {
			p, err := pacedOnce(b, k, tempDir)
			if err != nil {
				return nil, wrap(k.name, err)
			}
			got[k.name] = append(got[k.name], p)
		}
	}
	return got, nil
}

func pacedOnce(b *bench, k kind, tempDir func() (string, func(), error)) (p paced, err error) {
	dir, done, err := tempDir()
	if err != nil {
		return p, err
	}
	defer done()
	s, err := k.open(dir)
	if err != nil {
		return p, err
	}
	time.Sleep(settlingTime)
	before, err := deviceBytes(dir)
	if err != nil {
		return p, err
	}
	cpu := cpuTime()
	d := pacedTimes * b.time
	m := new(meter)
	m.on.Store(true)
	n := pace(s, m, pacedRate, d, nil)
	m.await(n)
	s.settle()
	time.Sleep(settlingTime)
	cpu = cpuTime() - cpu
	after, err := deviceBytes(dir)
	if err != nil {
		return p, err
	}
	if err := m.err(); err != nil {
		return p, err
	}
	p = paced{m.hist.quantile(0.5), m.hist.quantile(0.99), cpu.Seconds() / d.Seconds(), float64(after-before) / 1e6 / d.Seconds()}
	return p, s.close()
}

// await waits until n records are acknowledged.
func (m *meter) await(n int) {
	for began := time.Now(); m.acks.Load() < int64(n) && time.Since(began) < 30*time.Second; {
		time.Sleep(time.Millisecond)
	}
}

// due is the completion of a paced record.
type due struct {
	m  *meter
	at time.Time
}

func (d due) Durable(_ *spool.Record, err error) { d.m.ack(d.at, err) }

// pace appends rate records a second for d, or until stop is closed, and tells how many.
func pace(s subject, m *meter, rate int, d time.Duration, stop <-chan struct{}) (n int) {
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	dueAt := func() time.Time { return began.Add(time.Duration(n) * time.Second / time.Duration(rate)) }
	for time.Since(began) < d {
		select {
		case <-tick.C:
		case <-stop:
			return n
		}
		for at := dueAt(); at.Before(time.Now()); at = dueAt() {
			if err := s.append(record(n), due{m, at}); err != nil {
				m.ack(at, err)
				return n
			}
			n++
		}
	}
	return n
}
