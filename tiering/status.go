package tiering

import (
	"github.com/forebay-gateway/forebay/tiering/manifest"
)

// addManifest adds up what the store holds.
func (l *StreamStatus) addManifest(m *manifest.Manifest) {
	l.Generation, l.ColdSegments = m.Generation, len(m.Segments)
	for i := range m.Segments {
		seg := &m.Segments[i]
		l.ColdBytes += seg.Bytes
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
	perDay := 0.0
	if n := len(m.Segments); n > 0 {
		if span := m.Segments[n-1].SealedAt.Sub(m.Segments[0].Created); span > 0 {
			perDay = float64(l.ColdBytes) / (span.Hours() / 24)
		}
	}
	l.Cost = costOf(perDay, l.ColdBytes, 0, st.Retention.Std(), int64(st.MaxSize), cfg.PricePerGBMonth)
	l.LocalFullIn = nil
	return l
}
