package gateway

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/manifest"
)

func (g *Gateway) replayPart(log *slog.Logger) part {
	var e *replay.Engine
	return part{
		name: "replay",
		start: func(context.Context) error {
			made, err := replay.New(g.cfg.Replay, replay.Options{
				Log:        g.spool,
				Source:     past{g.spool, g.tiers()},
				Sinks:      g.bridge.Replays(),
				GatewayID:  g.ID(),
				Forks:      g.spool.Forks(),
				Logger:     log,
				Registerer: g.reg,
				Now:        g.spool.Now,
			})
			if err != nil {
				return err
			}
			e = made
			e.Begin()
			g.put(func() { g.replay = e })
			return nil
		},
		stop: func(ctx context.Context) error { return e.Close(ctx) },
	}
}

// replays are the replays for those who ask for them.
func (g *Gateway) replays() *replay.Engine {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.replay
}

// past is the log as a replay reads it: what the spool has, and before it what is stored elsewhere.
type past struct {
	spool *spool.Spool
	tier  *tiering.Tier // may be nil
}

var _ replay.Source = past{}

// stored is what the store holds of a stream; nil when it is not known or nothing.
func (p past) stored(stream string) *manifest.Manifest {
	if p.tier == nil {
		return nil
	}
	return p.tier.Cold().Known(stream)
}

// Bounds implements replay.Source.
func (p past) Bounds(stream string, partition int) (first, end spool.Offset) {
	first, end = p.spool.Bounds(stream, partition)
	if m := p.stored(stream); m != nil {
		for i := range m.Segments {
			if in, ok := m.Segments[i].Partition(partition); ok {
				return min(first, in.First), end
			}
		}
	}
	return first, end
}

// NewReader implements replay.Source.
func (p past) NewReader(stream string, partition int, from spool.Offset, m spool.Match) (replay.Reader, error) {
	if p.tier != nil {
		match := &m
		if len(m.Filters) == 0 && m.ClientID == "" {
			match = nil
		}
		r, err := p.tier.NewReader(stream, partition, from, match)
		if !errors.Is(err, tiering.ErrNotTiered) {
			if err != nil {
				return nil, err
			}
			return r, nil
		}
	}
	r, err := p.spool.NewReader(stream, partition, from)
	if err != nil {
		return nil, err
	}
	r.Match(m)
	return r, nil
}

// Outside implements replay.Source: the sealed segments whose records all are of another time.
func (p past) Outside(stream string, partition int, since, until time.Time) ([]replay.Range, error) {
	var out []replay.Range
	look := func(first, next spool.Offset, low, high time.Time) {
		if low.IsZero() || high.IsZero() {
			return // nothing is known
		}
		if !since.IsZero() && high.Before(since) || !until.IsZero() && !low.Before(until) {
			out = append(out, replay.Range{Partition: partition, From: first, To: next})
		}
	}
	sealed, err := p.spool.Sealed(stream)
	if err != nil {
		return nil, err
	}
	for i := range sealed {
		for _, in := range sealed[i].Partitions {
			if in.Partition == partition {
				look(in.First, in.Next, in.MinTime, in.MaxTime)
			}
		}
	}
	if m := p.stored(stream); m != nil {
		for i := range m.Segments {
			if in, ok := m.Segments[i].Partition(partition); ok {
				look(in.First, in.Next, in.MinTime, in.MaxTime)
			}
		}
	}
	return out, nil
}
