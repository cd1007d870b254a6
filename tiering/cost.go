package tiering

import (
	"math"
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
	ColdBytes      int64     `json:"cold_bytes"` // of segments
	ParquetBytes   int64     `json:"parquet_bytes"`
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

// Cost is how a stream grows and where that ends. Bytes are of segments; costs are of Parquet files too, and not of manifests, which
// are below a thousandth of it.
type Cost struct {
	GrowthKnown     bool     `json:"growth_known"`                // it was looked at for an hour; else what follows from growth is null or 0
	BytesPerDay     float64  `json:"bytes_per_day"`               // of sealed segments, over the last days
	LocalFullIn     *float64 `json:"local_full_in_days"`          // until a local limit is reached if nothing is removed, and all streams go on like this; null: never
	ColdFinal       *float64 `json:"cold_final_bytes"`            // in the store when retention and max_size hold the balance; null: it grows for ever
	CostNow         float64  `json:"cost_per_month"`              // of what is stored
	CostFinal       *float64 `json:"cost_per_month_final"`        // of ColdFinal
	CostInOneYear   float64  `json:"cost_per_month_in_one_year"`  // when it goes on like this
	PricePerGBMonth float64  `json:"price_per_gb_month,omitzero"` // that this was computed with
}

// outlook is what a cost is computed of.
type outlook struct {
	growth        *float64 // bytes a day; nil is not known
	all           float64  // of all streams together, at least growth
	cold, parquet int64
	ownFree       int64 // that the stream's own limit leaves; below 0 it has none
	sharedFree    int64 // that the limits of all streams leave; below 0 is not known
	retention     time.Duration
	limit         int64 // both of the store; 0 is none
	price         float64
}

func (o outlook) cost() Cost {
	factor := 1.0 // what a byte of segments costs with its share of Parquet
	if o.cold > 0 {
		factor += float64(o.parquet) / float64(o.cold)
	}
	money := func(bytes float64) float64 { return bytes * factor / 1e9 * o.price }
	c := Cost{PricePerGBMonth: o.price, CostNow: money(float64(o.cold))}
	if c.CostInOneYear = c.CostNow; o.growth == nil {
		return c
	}
	c.GrowthKnown, c.BytesPerDay = true, *o.growth
	c.LocalFullIn = sooner(daysUntil(o.ownFree, c.BytesPerDay), daysUntil(o.sharedFree, max(o.all, c.BytesPerDay)))
	held := c.BytesPerDay * o.retention.Hours() / 24 // by retention
	year := float64(o.cold) + 365*c.BytesPerDay
	if o.retention > 0 && o.retention < 365*24*time.Hour {
		year = min(year, held)
	}
	if o.limit > 0 {
		year = min(year, float64(o.limit))
	}
	c.CostInOneYear = money(year)
	final := math.Inf(1)
	switch {
	case o.retention > 0:
		final = held
	case c.BytesPerDay == 0:
		final = float64(o.cold)
	}
	if o.limit > 0 {
		final = min(final, float64(o.limit))
	}
	if !math.IsInf(final, 1) {
		cost := money(final)
		c.ColdFinal, c.CostFinal = &final, &cost
	}
	return c
}

// daysUntil is when free bytes are used up; nil is never.
func daysUntil(free int64, perDay float64) *float64 {
	if free < 0 || perDay <= 0 {
		return nil
	}
	days := float64(free) / perDay
	return &days
}

func sooner(a, b *float64) *float64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

const (
	growthDays = 7         // over which growth is counted
	growthMin  = time.Hour // a younger stream's is not known
)

// growth keeps nothing but what the manifests do not have.
type growth struct {
	mu   sync.Mutex
	rate map[string]*float64
	all  float64
}

// note computes how many bytes a day each stream makes: what was sealed in the last days, stored or not, over the time that there is
// something of it. All are counted, those that are not stored too: they fill the same disk.
func (g *growth) note(t *Tier) {
	rates, all := map[string]*float64{}, 0.0
	for _, have := range t.spool.Stats().Streams {
		if r := t.perDay(have.Name); r != nil {
			rates[have.Name], all = r, all+*r
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rate, g.all = rates, all
}

// of is a stream's growth, nil when it is not known, and that of all together.
func (g *growth) of(stream string) (perDay *float64, all float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rate[stream], g.all
}

// perDay is a stream's growth, nil when it is not known.
func (t *Tier) perDay(name string) *float64 {
	now, _ := t.spool.Clock() // what segments are sealed by
	var bytes int64
	first := now
	count := func(created, sealed time.Time, n int64) {
		if created.Before(first) {
			first = created
		}
		if sealed.After(now.Add(-growthDays * 24 * time.Hour)) {
			bytes += n
		}
	}
	st := t.byName[name]
	if st != nil {
		if m := st.m.Load(); m != nil {
			for i := range m.Segments {
				count(m.Segments[i].Created, m.Segments[i].SealedAt, m.Segments[i].Bytes)
			}
		}
	}
	list, err := t.spool.Sealed(name)
	if err != nil {
		return nil
	}
	for _, se := range list {
		if st == nil || !st.stored(se.ID()) {
			count(se.Created, se.SealedAt, se.Bytes)
		}
	}
	return growthOf(bytes, now.Sub(first))
}

func growthOf(bytes int64, span time.Duration) *float64 {
	if span < growthMin {
		return nil
	}
	perDay := float64(bytes) / (min(span, growthDays*24*time.Hour).Hours() / 24)
	return &perDay
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
	o := outlook{ownFree: -1, sharedFree: max(min(stats.MaxSize-stats.BytesOnDisk, stats.DiskFree-stats.MinFree), 0)}
	for _, have := range stats.Streams {
		if have.Name == st.name {
			l.LocalBytes, l.LocalSegments, l.NotStored = have.Bytes, have.Segments, have.Dropped[spool.GapNotStored]
		}
	}
	if used, limit := t.spool.StreamSize(st.name); limit > 0 {
		o.ownFree = max(limit-used, 0)
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
	o.growth, o.all = t.growth.of(st.name)
	o.cold, o.parquet = l.ColdBytes, l.ParquetBytes
	o.retention, o.limit, o.price = st.cfg.Retention.Std(), int64(st.cfg.MaxSize), t.cfg.PricePerGBMonth
	l.Cost = o.cost()
	return l
}
