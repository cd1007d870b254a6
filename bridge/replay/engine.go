package replay

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// Options are what the program wires. Log, Source and Sinks are needed; nil otherwise means: no log, a private registry, the system
// clock.
type Options struct {
	Log        Log
	Source     Source
	Sinks      Sinks
	GatewayID  string
	Forks      []spool.Fork // of the spool
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time // the clock of Record.ReceivedAt
}

// Engine has all jobs. Its methods may be called at the same time.
type Engine struct {
	cfg        Config
	source     Log
	reads      Source
	sinks      Sinks
	gatewayID  string
	forks      []spool.Fork
	log        *slog.Logger
	registerer prometheus.Registerer
	now        func() time.Time
	counts     counts

	mu      sync.Mutex
	jobs    map[string]*job
	closing bool
	running sync.WaitGroup
}

const (
	partitionsAtOnce = 8                // of a job: each has up to three pages in memory
	graceful         = 3 * time.Second  // for what is on its way when a job is cancelled
	writeTimeout     = 10 * time.Second // of a job's definition
	maxEnded         = 100              // jobs that are listed after their end, the newest
	lookEvery        = time.Second      // whether a job waits for something
)

// New takes up the jobs that there are. None goes on before Begin.
func New(cfg Config, o Options) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	e := &Engine{
		cfg: cfg, source: o.Log, reads: o.Source, sinks: o.Sinks, gatewayID: o.GatewayID, forks: o.Forks, log: o.Logger, registerer: o.Registerer, now: o.Now,
		jobs: make(map[string]*job),
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.registerer == nil {
		e.registerer = prometheus.NewRegistry()
	}
	if e.now == nil {
		e.now = time.Now
	}
	err := e.source.Load(space, func(key string, value []byte) error {
		if err := load(e.jobs, key, value); err != nil { // nobody is kept from serving by what is known about an old replay
			e.log.Warn("replay cannot be taken up", "err", err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return e, e.registerer.Register(collector{e})
}

// Begin has the jobs go on that ran when the last run of the gateway ended.
func (e *Engine) Begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.jobs {
		if j.state() != Running || e.closing {
			continue
		}
		if err := e.launchLocked(j); err != nil {
			j.end(Failed, err, e.now())
			e.log.Error("replay cannot go on", "job", j.def.ID, "err", err)
			e.save(j)
			continue
		}
		e.log.Info("replay goes on", "job", j.def.ID, "target", j.def.Request.Target(), "upstream", j.status(e.now()).Upstream)
	}
}

// Close ends the reading, and waits for what is on its way until ctx ends. Jobs that run go on after the next start.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	first := !e.closing
	e.closing = true
	var open []*job
	for _, j := range e.jobs {
		if j.done != nil {
			open = append(open, j)
		}
	}
	e.mu.Unlock()
	if !first {
		e.running.Wait()
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, graceful)
	defer cancel()
	for _, j := range open {
		j.soft()
	}
	for _, j := range open {
		select {
		case <-j.done:
		case <-ctx.Done():
		}
		j.hard()
	}
	e.running.Wait()
	e.registerer.Unregister(collector{e})
	return nil
}

// Start makes a job and returns when it is durable. It runs on whoever has asked has gone.
func (e *Engine) Start(ctx context.Context, r Request) (Status, error) {
	j, err := e.make(r)
	if err != nil {
		return Status{}, err
	}
	e.mu.Lock()
	if err := e.roomLocked(); err != nil {
		e.mu.Unlock()
		return Status{}, err
	}
	e.jobs[j.def.ID] = j
	old := e.endedLocked()
	e.mu.Unlock()
	if err := e.write(ctx, j); err != nil {
		e.mu.Lock()
		delete(e.jobs, j.def.ID)
		e.mu.Unlock()
		e.forget([]*job{j}) // it may still get to the disk: who was told that it failed does not want it after a restart
		return Status{}, err
	}
	e.forget(old)
	e.mu.Lock()
	if e.closing {
		delete(e.jobs, j.def.ID)
		e.mu.Unlock()
		e.forget([]*job{j}) // as above
		return Status{}, ErrClosed
	}
	defer e.mu.Unlock()
	if err := e.launchLocked(j); err != nil {
		j.end(Failed, err, e.now())
		e.save(j)
		return j.status(e.now()), err
	}
	d := &j.def
	e.log.Info("replay started", "job", d.ID, "target", d.Request.Target(), "upstream", j.status(e.now()).Upstream, "stream", d.Request.Stream, "dry_run", d.Request.DryRun,
		"offsets", j.status(e.now()).Offsets)
	return j.status(e.now()), nil
}

// make settles what a request means.
func (e *Engine) make(r Request) (*job, error) {
	stream, err := e.check(r)
	if err != nil {
		return nil, err
	}
	r.Stream = cmp.Or(r.Stream, stream, spool.DefaultStream)
	if err := r.validate(); err != nil {
		return nil, err
	}
	if r.ToMQTT && r.Stream == e.cfg.Stream {
		return nil, invalid("stream %s is what to-mqtt publishes into", r.Stream)
	}
	partitions := 0
	var names []string
	for _, s := range e.source.Streams() {
		names = append(names, s.Name)
		if s.Name == r.Stream {
			partitions = s.Partitions
		}
	}
	if partitions == 0 {
		return nil, fmt.Errorf("replay: stream %q: %w; there are %s", r.Stream, spool.ErrUnknownStream, strings.Join(names, ", "))
	}
	now := e.now()
	from, err := parseBound("from", r.From, now)
	if err != nil {
		return nil, err
	}
	to, err := parseBound("to", r.To, now)
	if err != nil {
		return nil, err
	}
	if _, err := parseRate(r.Rate, e.cfg.RecordsPerSecond); err != nil {
		return nil, err
	}
	got, err := resolve(from, to, partitions, func(p int) (first, end spool.Offset) { return e.reads.Bounds(r.Stream, p) })
	if err != nil {
		return nil, err
	}
	return newJob(definition{
		Version: stateVersion, ID: strings.ToLower(rand.Text()[:10]), Created: now, Request: r, State: Running,
		Since: got.since, Until: got.until, Ranges: got.ranges,
	}), nil
}

// check looks at where to. The stream is the target's own.
func (e *Engine) check(r Request) (string, error) {
	if !r.ToMQTT {
		probe := r
		probe.Stream = cmp.Or(r.Stream, spool.DefaultStream)
		if err := probe.validate(); err != nil {
			return "", err
		}
		return e.sinks.Check(r)
	}
	if e.cfg.Stream == "" {
		return "", invalid("to-mqtt needs a stream of its own: set replay.stream, for example to replay, and restart the gateway")
	}
	return "", nil
}

func (e *Engine) open(j *job) (Sink, error) {
	r := j.def.Request
	if !r.ToMQTT {
		return e.sinks.Open(r, j.def.ID)
	}
	if _, err := e.check(r); err != nil {
		return nil, err
	}
	return &Local{
		Log: e.source, Stream: e.cfg.Stream, Prefix: r.Prefix, Who: mapping.Identity{Gateway: e.gatewayID, Stream: r.Stream, Forks: e.forks}, Job: j.def.ID, DryRun: r.DryRun,
	}, nil
}

func (e *Engine) roomLocked() error {
	if e.closing {
		return ErrClosed
	}
	n := 0
	for _, j := range e.jobs {
		if j.state() == Running {
			n++
		}
	}
	if n >= e.cfg.MaxJobs {
		return fmt.Errorf("%w (%d): wait, or cancel one", ErrBusy, e.cfg.MaxJobs)
	}
	return nil
}

// Cancel ends a job where it is, and waits for what is on its way, for a moment.
func (e *Engine) Cancel(ctx context.Context, id string) (Status, error) {
	e.mu.Lock()
	j := e.jobs[id]
	e.mu.Unlock()
	if j == nil {
		return Status{}, fmt.Errorf("%q: %w", id, ErrUnknown)
	}
	j.mu.Lock()
	soft, hard, done := j.soft, j.hard, j.done
	if j.def.State != Running || done == nil {
		state := j.def.State
		j.mu.Unlock()
		return Status{}, &stateError{id, string(state) + ", and there is nothing to cancel"}
	}
	j.ending = Cancelled
	j.mu.Unlock()
	soft()
	grace := time.NewTimer(graceful)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	case <-ctx.Done():
	}
	hard()
	select {
	case <-done:
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
	return j.status(e.now()), nil
}

// Resume has a job go on that was cancelled or has failed, from where it was.
func (e *Engine) Resume(ctx context.Context, id string) (Status, error) {
	e.mu.Lock()
	j := e.jobs[id]
	if j == nil {
		e.mu.Unlock()
		return Status{}, fmt.Errorf("%q: %w", id, ErrUnknown)
	}
	if s := j.state(); s != Cancelled && s != Failed || j.def.Request.DryRun {
		e.mu.Unlock()
		what := string(s) + ", and there is nothing to resume"
		if j.def.Request.DryRun {
			what = "a dry run, which is not resumed: start another one"
		}
		return Status{}, &stateError{id, what}
	}
	if err := e.roomLocked(); err != nil {
		e.mu.Unlock()
		return Status{}, err
	}
	before := j.reopen()
	err := e.launchLocked(j)
	if err != nil {
		j.mu.Lock()
		j.def.State, j.def.Error, j.def.Ended = before.State, before.Error, before.Ended
		j.mu.Unlock()
	}
	e.mu.Unlock()
	if err != nil {
		return Status{}, err
	}
	if err := e.write(ctx, j); err != nil {
		return j.status(e.now()), err
	}
	e.log.Info("replay resumed", "job", id, "upstream", j.status(e.now()).Upstream)
	return j.status(e.now()), nil
}

// List returns all jobs, the newest first.
func (e *Engine) List() []Status {
	e.mu.Lock()
	jobs := make([]*job, 0, len(e.jobs))
	for _, j := range e.jobs {
		jobs = append(jobs, j)
	}
	e.mu.Unlock()
	out := make([]Status, len(jobs))
	for i, j := range jobs {
		out[i] = j.status(e.now())
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID)) })
	return out
}

// Show returns one job.
func (e *Engine) Show(id string) (Status, error) {
	e.mu.Lock()
	j := e.jobs[id]
	e.mu.Unlock()
	if j == nil {
		return Status{}, fmt.Errorf("%q: %w", id, ErrUnknown)
	}
	return j.status(e.now()), nil
}

// endedLocked takes jobs out of the list that have ended long ago.
func (e *Engine) endedLocked() (old []*job) {
	var ended []*job
	for _, j := range e.jobs {
		if j.state() != Running {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(a, b *job) int { return b.def.Ended.Compare(a.def.Ended) })
	for i, j := range ended {
		if i >= maxEnded || e.now().Sub(j.def.Ended) > e.cfg.Keep.Std() {
			delete(e.jobs, j.def.ID)
			old = append(old, j)
		}
	}
	return old
}

func (e *Engine) forget(old []*job) {
	for _, j := range old {
		if err := e.source.Append(context.Background(), spool.Entry{Changes: j.forget()}); err != nil && !errors.Is(err, spool.ErrClosed) {
			e.log.Warn("replay cannot be forgotten", "job", j.def.ID, "err", err)
		}
	}
}

// write has the definition of a job written, and waits for it. A dry run is nothing to remember.
func (e *Engine) write(ctx context.Context, j *job) error {
	if j.def.Request.DryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	j.mu.Lock()
	c := j.def.change()
	j.mu.Unlock()
	done := make(durable, 1)
	if err := e.source.Append(ctx, spool.Entry{Changes: []spool.Change{c}, Done: done}); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return done.wait(ctx)
}

func (e *Engine) save(j *job) {
	if err := e.write(context.Background(), j); err != nil {
		e.log.Warn("replay: its state is not written; after a restart it goes on as before", "job", j.def.ID, "err", err)
	}
}
