package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// ErrUnknownRoute means that the configuration has no route of that name.
var ErrUnknownRoute = errors.New("no such route")

// pauses are what an operator has paused of a route: all of it, or lanes. They last until they are resumed, whatever happens
// to the process, as state of the spool,
//
//	key    <route>, or <route>/<Kafka topic>/<Kafka partition>
//	value  1 <Unix time in nanoseconds since when>
//
// where 1 is the version.
type pauses struct {
	mu    sync.Mutex
	since time.Time            // of the whole route; zero when it is not paused
	lanes map[string]time.Time // by <Kafka topic>/<Kafka partition>
}

const (
	pausedSpace   = "bridge-paused"
	pausedVersion = "1"
)

func laneName(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }

// route reports whether the whole route is paused, and since when.
func (p *pauses) route() (since time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since, !p.since.IsZero()
}

func (p *pauses) lane(topic string, partition int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lanes) == 0 {
		return false
	}
	_, ok := p.lanes[laneName(topic, partition)]
	return ok
}

// names lists the paused lanes, and the time of the first.
func (p *pauses) names() (names []string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.lanes {
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return slices.Sorted(maps.Keys(p.lanes)), since
}

func (p *pauses) set(lane string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case lane == "":
		p.since = since
	case since.IsZero():
		delete(p.lanes, lane)
	default:
		if p.lanes == nil {
			p.lanes = make(map[string]time.Time)
		}
		p.lanes[lane] = since
	}
}

func (p *pauses) get(lane string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lane == "" {
		return p.since
	}
	return p.lanes[lane]
}

func (r *route) isPaused() bool {
	_, paused := r.pauses.route()
	return paused
}

// loadPauses takes up what was paused before. What belongs to no route any more is dropped with the first change.
func (b *Bridge) loadPauses() error {
	return b.source.Load(pausedSpace, func(key string, value []byte) error {
		version, ns, ok := strings.Cut(string(value), " ")
		at, err := strconv.ParseInt(ns, 10, 64)
		switch {
		case ok && version != pausedVersion:
			return fmt.Errorf("paused %q: %w", key, spool.ErrUnsupported)
		case !ok || err != nil:
			return fmt.Errorf("paused %q = %q is damaged", key, value)
		}
		name, lane, _ := strings.Cut(key, "/")
		if r := b.route(name); r != nil {
			r.pauses.set(lane, time.Unix(0, at))
		}
		return nil
	})
}

func (b *Bridge) route(name string) *route {
	for _, r := range b.routes {
		if r.cfg.Name == name {
			return r
		}
	}
	return nil
}

// Pause keeps a route, or one of its lanes (<Kafka topic>/<Kafka partition>), from sending until Resume, restarts included.
// What is in the air lands. The spool keeps the records; a paused lane does not hold the others. It returns when that is
// durable. Pausing what is paused is fine.
func (b *Bridge) Pause(ctx context.Context, route, lane string) error {
	return b.setPaused(ctx, route, lane, b.now())
}

// Resume ends a Pause. Resuming what is not paused is fine.
func (b *Bridge) Resume(ctx context.Context, route, lane string) error {
	return b.setPaused(ctx, route, lane, time.Time{})
}

func (b *Bridge) setPaused(ctx context.Context, name, lane string, since time.Time) error {
	r := b.route(name)
	if r == nil {
		return fmt.Errorf("%q: %w", name, ErrUnknownRoute)
	}
	key := name
	if lane != "" {
		topic, n, ok := strings.Cut(lane, "/")
		p, err := strconv.ParseInt(n, 10, 32)
		if !ok || topic == "" || err != nil || p < 0 {
			return fmt.Errorf("lane %q: want the Kafka topic and partition, such as telemetry/3: %w", lane, spool.ErrInvalid)
		}
		lane = laneName(topic, int32(p))
		key += "/" + lane
	}
	b.pausing.Lock()
	defer b.pausing.Unlock()
	if r.pauses.get(lane).IsZero() == since.IsZero() {
		return nil
	}
	change := spool.Change{Space: pausedSpace, Key: key}
	if !since.IsZero() {
		change.Value = fmt.Appendf(nil, "%s %d", pausedVersion, since.UnixNano())
	}
	done := make(durable, 1)
	if err := b.source.Append(ctx, spool.Entry{Changes: []spool.Change{change}, Done: done}); err != nil {
		return err
	}
	if err := done.wait(ctx); err != nil {
		return err
	}
	r.pauses.set(lane, since)
	what := "resumed"
	if !since.IsZero() {
		what = "paused"
	}
	b.log.Info("route or lane "+what, "route", name, "lane", lane)
	for _, f := range b.feeders() {
		if f.r == r {
			f.pausesChanged()
		}
	}
	return nil
}

// pausesChanged has f's lanes follow.
func (f *feeder) pausesChanged() {
	f.mu.Lock()
	now := time.Now()
	f.progress = now
	for _, l := range f.lanes {
		l.progress = now // a pause is no stall
		l.look()
		l.kick(now)
	}
	f.mu.Unlock()
	signal(f.wakeC)
	signal(f.catchC)
}

// look sees whether l is paused. A paused lane is detached, so that it does not hold the others.
func (l *lane) look() {
	l.paused = l.partition >= 0 && l.f.r.pauses.lane(l.out.topic.Name, l.partition)
	if l.paused && !l.detached {
		l.f.detachLocked(l, l.f.pos)
	}
}
