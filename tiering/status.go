package tiering

import (
	"time"

	"github.com/forebay-gateway/forebay/tiering/manifest"
)

// addManifest adds up what the store holds.
func (l *StreamStatus) addManifest(m *manifest.Manifest) {
	l.Generation, l.ColdSegments = m.Generation, len(m.Segments)
	for i := range m.Segments {
		seg := &m.Segments[i]
		l.ColdBytes += seg.Bytes
		l.ParquetBytes += seg.ParquetBytes
		l.ColdObjects += seg.Parts() + 1 + len(seg.Parquet)
		l.ColdRecords += seg.Records
		if !seg.MinTime.IsZero() && (l.ColdFrom.IsZero() || seg.MinTime.Before(l.ColdFrom)) {
			l.ColdFrom = seg.MinTime
		}
		l.ColdTo = later(l.ColdTo, seg.MaxTime)
	}
}

// StatusOf is what a manifest alone says of a stream: for a tool that looks at a store without its gateway.
func StatusOf(m *manifest.Manifest, cfg Config) StreamStatus {
	l := StreamStatus{Stream: m.Stream}
	l.addManifest(m)
	st := StreamConfig{}
	for _, sc := range cfg.Streams {
		if sc.Name == m.Stream {
			st = sc
		}
	}
	o := outlook{
		cold: l.ColdBytes, parquet: l.ParquetBytes, ownFree: -1, sharedFree: -1, retention: st.Retention.Std(), limit: int64(st.MaxSize), price: cfg.PricePerGBMonth,
	}
	if n := len(m.Segments); n > 0 { // up to the newest: what has come since is not known
		last := m.Segments[n-1].SealedAt
		var bytes int64
		for i := range m.Segments {
			if m.Segments[i].SealedAt.After(last.Add(-growthDays * 24 * time.Hour)) {
				bytes += m.Segments[i].Bytes
			}
		}
		o.growth = growthOf(bytes, last.Sub(m.Segments[0].Created))
	}
	l.Cost = o.cost()
	return l
}
