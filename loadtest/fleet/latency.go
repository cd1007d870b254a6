package fleet

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latency collects times of one kind: all of them, and those since the last look, for a screen.
// A time counts from when the message was due, not from when it could be sent: a stall shows in full (no coordinated
// omission). Without a rate a message is due when the window lets it go.
type latency struct {
	mu     sync.Mutex
	total  *hdrhistogram.Histogram
	recent *hdrhistogram.Histogram
}

// Microseconds up to an hour with two digits after the first: 170 KB, exact to 1 %.
const (
	lowest  = 1
	highest = int64(time.Hour / time.Microsecond)
	digits  = 2
)

func newLatency() *latency {
	return &latency{total: hdrhistogram.New(lowest, highest, digits), recent: hdrhistogram.New(lowest, highest, digits)}
}

// Record adds one time.
func (l *latency) Record(d time.Duration) {
	us := min(max(d.Microseconds(), lowest), highest)
	l.mu.Lock()
	l.total.RecordValue(us)
	l.recent.RecordValue(us)
	l.mu.Unlock()
}

// Latency sums up a distribution. Times are in milliseconds, as people say them.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

func summary(h *hdrhistogram.Histogram) Latency {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	if h.TotalCount() == 0 {
		return Latency{}
	}
	return Latency{
		Count: h.TotalCount(),
		Mean:  float64(int64(h.Mean())) / 1000,
		P50:   ms(h.ValueAtQuantile(50)),
		P90:   ms(h.ValueAtQuantile(90)),
		P99:   ms(h.ValueAtQuantile(99)),
		P999:  ms(h.ValueAtQuantile(99.9)),
		Max:   ms(h.Max()),
	}
}

// Total is the distribution of everything so far.
func (l *latency) Total() Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	return summary(l.total)
}

// Recent is the distribution of what came since the last call.
func (l *latency) Recent() Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := summary(l.recent)
	l.recent.Reset()
	return s
}
