package bridge

import (
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// rate holds a route to so many bytes and records a second, over all its feeders. What is too much waits in the spool.
//
// Records are counted when they are given to their lane, and not when they are sent: what waited behind that would fill the
// lanes, and a lane that is full looks like one that stalls.
type rate struct {
	mu      sync.Mutex
	bytes   meter
	records meter
}

// meter is one limit: until when what was taken is paid for.
type meter struct {
	perSecond float64 // 0 is no limit
	paid      time.Time
}

const (
	rateBurst = 100 * time.Millisecond // worth of records that may go at once: a flight, and little for a link's queues
	rateRest  = rateBurst / 4          // who waits gathers this much, so that it does not wake for each record
)

// newRate returns nil, which limits nothing, when there is no limit.
func newRate(bytes unit.Rate, records int) *rate {
	if bytes == 0 && records == 0 {
		return nil
	}
	return &rate{bytes: meter{perSecond: float64(bytes)}, records: meter{perSecond: float64(records)}}
}

// take pays for a record of so many bytes, or says how long to wait before asking again.
func (r *rate) take(now time.Time, bytes int) (wait time.Duration) {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ahead := max(r.bytes.ahead(now), r.records.ahead(now)); ahead > 0 {
		return ahead + rateRest
	}
	r.bytes.pay(now, bytes)
	r.records.pay(now, 1)
	return 0
}

// ahead is how long to wait until something may be taken.
func (r *rate) ahead(now time.Time) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.bytes.ahead(now), r.records.ahead(now))
}

func (m *meter) ahead(now time.Time) time.Duration { return m.paid.Sub(now) }

func (m *meter) pay(now time.Time, n int) {
	if m.perSecond == 0 {
		return
	}
	if full := now.Add(-rateBurst); m.paid.Before(full) {
		m.paid = full
	}
	m.paid = m.paid.Add(time.Duration(float64(n) / m.perSecond * float64(time.Second)))
}

// wireSize is what a record takes on its way, before compression: payload, key, and headers, about.
func wireSize(rec *spool.Record) int {
	n := len(rec.Payload) + len(rec.Topic) + 2*len(rec.ClientID) + 130
	if p := rec.Properties; p != nil {
		n += len(p.ContentType) + len(p.ResponseTopic) + len(p.CorrelationData)
		for _, u := range p.User {
			n += len(u.Name) + len(u.Value) + 2
		}
	}
	return n
}
