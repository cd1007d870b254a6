package tiering

import (
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Status is what a tier holds, how it grows, and what that costs.
type Status struct {
	Store     string         `json:"store"`
	Gateway   string         `json:"gateway"`
	Paused    bool           `json:"paused"`
	Problem   string         `json:"problem,omitempty"`
	Since     time.Time      `json:"since,omitzero"` // of the problem
	CacheUsed int64          `json:"cache_bytes"`
	Streams   []StreamStatus `json:"streams"`
}

// StreamStatus is one stream.
type StreamStatus struct {
	Stream         string    `json:"stream"`
	Generation     uint64    `json:"generation"` // of its manifest, 0 before there is one
	LocalBytes     int64     `json:"local_bytes"`
	LocalSegments  int       `json:"local_segments"`
	ColdBytes      int64     `json:"cold_bytes"`
	ColdSegments   int       `json:"cold_segments"`
	ColdObjects    int       `json:"cold_objects"`
	ColdRecords    uint64    `json:"cold_records"`
	ColdFrom       time.Time `json:"cold_from,omitzero"` // receive time of the oldest record
	ColdTo         time.Time `json:"cold_to,omitzero"`
	BehindSegments int       `json:"behind_segments"` // sealed and not stored
	BehindBytes    int64     `json:"behind_bytes"`
	BehindSince    time.Time `json:"behind_since,omitzero"` // when the oldest of them was sealed
	NotStored      uint64    `json:"not_stored_records"`    // lost by a size limit since the start
	Problem        string    `json:"problem,omitempty"`
	Cost
}

// Cost is how a stream grows and where that ends.
type Cost struct {
	BytesPerDay     float64  `json:"bytes_per_day"`               // of sealed segments, over the last days
	LocalFullIn     *float64 `json:"local_full_in_days"`          // until the local limit is reached if nothing is removed; null: never
	ColdFinal       *float64 `json:"cold_final_bytes"`            // in the store when retention and max_size hold the balance; null: it grows for ever
	CostNow         float64  `json:"cost_per_month"`              // of what is stored
	CostFinal       *float64 `json:"cost_per_month_final"`        // of ColdFinal
	CostInOneYear   float64  `json:"cost_per_month_in_one_year"`  // when it goes on like this
	PricePerGBMonth float64  `json:"price_per_gb_month,omitzero"` // that this was computed with
}

// costOf computes. retention and limit are those of the store, 0 is none; localFree is what the local limit leaves.
func costOf(perDay float64, cold, localFree int64, retention time.Duration, limit int64, price float64) Cost {
	const gb = 1e9
	c := Cost{BytesPerDay: perDay, PricePerGBMonth: price, CostNow: float64(cold) / gb * price}
	if perDay > 0 {
		days := float64(max(localFree, 0)) / perDay
		c.LocalFullIn = &days
	}
	final, bounded := 0.0, false
	if retention > 0 {
		final, bounded = perDay*retention.Hours()/24, true
	}
	if limit > 0 && (!bounded || float64(limit) < final) {
		final, bounded = float64(limit), true
	}
	year := float64(cold) + 365*perDay
	if bounded {
		cost := final / gb * price
		c.ColdFinal, c.CostFinal = &final, &cost
		year = min(year, max(final, float64(cold)))
		if retention > 0 && retention < 365*24*time.Hour {
			year = min(year, final)
		}
	}
	c.CostInOneYear = year / gb * price
	return c
}

const growthDays = 7 // over which growth is counted

// growth keeps nothing but what the manifests do not have.
type growth struct {
	mu   sync.Mutex
	rate map[string]float64
}

// note computes how many bytes a day each stream makes: what was sealed in the last days, stored or not, over the time since the
// oldest of it.
func (g *growth) note(t *Tier) {
	rates := map[string]float64{}
	for _, st := range t.streams {
		rates[st.name] = t.perDay(st)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rate = rates
}

func (g *growth) of(stream string) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rate[stream]
}

func (t *Tier) perDay(st *tiered) float64 {
	now, _ := t.spool.Clock() // what segments are sealed by
	since := now.Add(-growthDays * 24 * time.Hour)
	var bytes int64
	first := now
	count := func(created, sealed time.Time, n int64) {
		if sealed.After(since) {
			bytes += n
			if created.Before(first) {
				first = created
			}
		}
	}
	if m := st.m.Load(); m != nil {
		for i := range m.Segments {
			count(m.Segments[i].Created, m.Segments[i].SealedAt, m.Segments[i].Bytes)
		}
	}
	list, err := t.spool.Sealed(st.name)
	if err != nil {
		return 0
	}
	for _, se := range list {
		if !st.stored(se.ID()) {
			count(se.Created, se.SealedAt, se.Bytes)
		}
	}
	span := max(now.Sub(first), time.Minute)
	return float64(bytes) / (span.Hours() / 24)
}

// Status takes a snapshot. It asks the store nothing.
func (t *Tier) Status() Status {
	s := Status{Store: t.store.String(), Gateway: t.owner.Gateway, Paused: t.paused.Load(), CacheUsed: t.cache.Used(), Streams: []StreamStatus{}}
	t.mu.Lock()
	if t.problem != nil {
		s.Problem, s.Since = problem("store", t.problem).Error(), t.since.UTC()
	}
	t.mu.Unlock()
	if t.spool == nil {
		return s
	}
	stats := t.spool.Stats()
	for _, st := range t.streams {
		s.Streams = append(s.Streams, t.statusOf(st, &stats))
	}
	return s
}

func (t *Tier) statusOf(st *tiered, stats *spool.Stats) StreamStatus {
	l := StreamStatus{Stream: st.name}
	free := stats.MaxSize - stats.BytesOnDisk
	for _, have := range stats.Streams {
		if have.Name == st.name {
			l.LocalBytes, l.LocalSegments, l.NotStored = have.Bytes, have.Segments, have.Dropped[spool.GapNotStored]
		}
	}
	if used, limit := t.spool.StreamSize(st.name); limit > 0 {
		free = min(free, limit-used)
	}
	st.mu.Lock()
	l.BehindSegments, l.BehindBytes, l.BehindSince = st.behind, st.bytes, st.oldest
	if st.problem != nil {
		l.Problem = problem("stream "+st.name, st.problem).Error()
	}
	st.mu.Unlock()
	if m := st.m.Load(); m != nil {
		l.addManifest(m)
	}
	l.Cost = costOf(t.growth.of(st.name), l.ColdBytes, free, st.cfg.Retention.Std(), int64(st.cfg.MaxSize), t.cfg.PricePerGBMonth)
	return l
}
