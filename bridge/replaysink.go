package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// Replays are the ways of replays to Kafka. Each replay has a client of its own: its flights wait for nobody's, and nobody's for them,
// and it can be given up with what is in the air.
type Replays struct{ b *Bridge }

var _ replay.Sinks = Replays{}

// Replays makes ways for replays.
func (b *Bridge) Replays() Replays { return Replays{b} }

// replayName is the route of a replay to an upstream, in messages.
const replayName = "replay"

// Check implements replay.Sinks.
func (r Replays) Check(req replay.Request) (stream string, err error) {
	rc, err := r.route(req)
	if err != nil {
		return "", err
	}
	if _, err := newRoute(rc, r.b.gatewayID, nil); err != nil {
		return "", fmt.Errorf("replay: %w: %w", err, spool.ErrInvalid)
	}
	return rc.Stream, nil
}

// route is the configuration that a request asks for.
func (r Replays) route(req replay.Request) (RouteConfig, error) {
	b := r.b
	if req.Route != "" {
		var names []string
		for _, rc := range b.cfg.Routes {
			if rc = rc.WithDefaults(b.cfg.onlyUpstream()); rc.Name == req.Route {
				rc.Stream, rc.Upstream = cmp.Or(req.Stream, rc.Stream), b.route(rc.Name).upstream().Name()
				return rc, nil
			}
			names = append(names, rc.Name)
		}
		return RouteConfig{}, fmt.Errorf("replay: route %q: %w; %s", req.Route, ErrUnknownRoute, thereAre(names))
	}
	if _, ok := b.upstreamConfig(req.Upstream); !ok {
		var names []string
		for _, u := range b.upstreams {
			names = append(names, u.Name())
		}
		return RouteConfig{}, fmt.Errorf("replay: upstream %q: %w; %s", req.Upstream, ErrUnknownUpstream, thereAre(names))
	}
	rc := RouteConfig{Name: replayName, Downlinks: strings.HasPrefix(req.ClientID, downlink.ClientPrefix), Stream: cmp.Or(req.Stream, spool.DefaultStream), Upstream: req.Upstream, Topic: cmp.Or(req.Topic, "${topic}")}
	return rc.WithDefaults(req.Upstream), nil
}

// upstreamConfig is how an upstream is reached.
func (b *Bridge) upstreamConfig(name string) (kafka.Config, bool) {
	if b.embedded != nil && name == EmbeddedUpstream {
		return kafka.Config{Name: EmbeddedUpstream, Brokers: []string{b.embedded.Addr()}}, true
	}
	i := slices.IndexFunc(b.cfg.Upstreams, func(u kafka.Config) bool { return u.Name == name })
	if i < 0 {
		return kafka.Config{}, false
	}
	return b.cfg.Upstreams[i], true
}

// Open implements replay.Sinks.
func (r Replays) Open(req replay.Request, job string) (replay.Sink, error) {
	b := r.b
	rc, err := r.route(req)
	if err != nil {
		return nil, err
	}
	if rc.Upstream == EmbeddedUpstream && rc.CreateTopics == nil {
		rc.CreateTopics = &kafka.Create{Partitions: int32(b.cfg.Embedded.Partitions)}
	}
	// A mapping of its own: the counters of the route are those of live records.
	rt, err := newRoute(rc, b.gatewayID, b.forks)
	if err != nil {
		return nil, err
	}
	rt.dead = rc.Stream == b.cfg.deadLetters()
	s := &replaySink{
		live: b.route(req.Route), r: rt, now: b.now, job: []byte(job), dry: req.DryRun, topics: make(map[string]*kafka.Topic), scratch: make(map[int]*mapping.Scratch),
		changed: make(chan struct{}),
	}
	if s.dry {
		return s, nil
	}
	cfg, _ := b.upstreamConfig(rc.Upstream)
	if cfg.ClientID == "" {
		cfg.ClientID = "forebay/" + b.gatewayID + "/" + cfg.Name
	}
	cfg.ClientID += "/replay"
	if cfg.MaxBuffered > maxReplayBuffer {
		cfg.MaxBuffered = maxReplayBuffer
	}
	if s.client, err = kafka.New(cfg, kafka.Options{GatewayID: b.gatewayID, Logger: b.log.With("job", job), Dial: b.dial, NoRoute: req.Route == ""}); err != nil {
		return nil, err
	}
	s.client.Watch(s.wake)
	return s, nil
}

const maxReplayBuffer = 64 * unit.MiB // what a client may keep: pages bound it long before

// replaySink is the way of one replay to Kafka.
type replaySink struct {
	live   *route // that the replay goes through; nil when it goes to an upstream
	r      *route
	client *kafka.Client // nil for a dry run
	now    func() time.Time
	job    []byte
	dry    bool

	mu       sync.Mutex
	topics   map[string]*kafka.Topic
	scratch  map[int]*mapping.Scratch // by spool partition: Send is called once at a time for each
	changed  chan struct{}            // closed and made anew when the client or one of its topics has changed
	problem  *replay.Problem
	previews replay.Previews
}

var (
	_ replay.Sink      = (*replaySink)(nil)
	_ replay.Previewer = (*replaySink)(nil)
	_ replay.Placed    = (*replaySink)(nil)
)

// Upstream implements replay.Placed.
func (s *replaySink) Upstream() string { return s.r.cfg.Upstream }

// Close gives up what is in the air.
func (s *replaySink) Close() {
	if s.client != nil {
		s.client.Close()
	}
}

func (s *replaySink) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Problem implements replay.Sink.
func (s *replaySink) Problem() *replay.Problem {
	if s.client == nil {
		return nil
	}
	if st := s.client.Status(); !st.Down.IsZero() && st.ConnError != nil {
		reason, hint := kafka.ConnectionReason(st.ConnError)
		if s.live != nil {
			if now := s.live.upstream().Name(); now != s.Upstream() {
				hint = fmt.Sprintf("route %s is on upstream %s now: cancel the replay and resume it, and it goes there too", s.live.cfg.Name, now)
			}
		}
		return &replay.Problem{Reason: reason, Error: st.ConnError.Error(), Hint: hint, Since: st.Down}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// waits notes what hinders the replay; nil is nothing.
func (s *replaySink) waits(v *kafka.Verdict, topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case v == nil:
		s.problem = nil
	case s.problem == nil || s.problem.Reason != v.Reason:
		s.problem = &replay.Problem{Reason: v.Reason, Error: fmt.Sprintf("topic %s: %v", topic, v.Err), Hint: v.Hint, Since: s.now()}
	}
}

// Preview implements replay.Previewer.
func (s *replaySink) Preview() replay.Preview {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.previews.Preview()
}

// Send implements replay.Sink.
func (s *replaySink) Send(ctx context.Context, p *replay.Page) (replay.Tally, error) {
	f := replayFlights{s: s, page: p, lanes: make(map[replayPlace]*replayLane)}
	scratch := s.scratchOf(p.Partition)
	for i := range p.Records {
		if err := f.add(ctx, scratch, &p.Records[i]); err != nil {
			return f.t, err
		}
	}
	err := f.fly(ctx)
	return f.t, err
}

func (s *replaySink) scratchOf(partition int) *mapping.Scratch {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.scratch[partition]
	if sc == nil {
		sc = s.r.mapper.NewScratch(s.now)
		s.scratch[partition] = sc
	}
	return sc
}

// topic is a Kafka topic once its partitions are known.
func (s *replaySink) topic(ctx context.Context, name string) (*kafka.Topic, int32, error) {
	s.mu.Lock()
	t := s.topics[name]
	if t == nil {
		t = s.client.Topic(name, s.r.cfg.CreateTopics)
		s.topics[name] = t
	}
	s.mu.Unlock()
	for waited := false; ; waited = true {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		st := t.Status()
		if st.Partitions > 0 {
			if waited {
				s.waits(nil, name)
			}
			return t, st.Partitions, nil
		}
		if st.Fault != nil {
			s.waits(st.Fault, name)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}
