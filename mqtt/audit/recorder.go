package audit

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/spool"
)

// TopicPrefix is where the records of the stream are, followed by the name of the event.
const TopicPrefix = "$forebay/audit/"

const (
	queueLength = 1024             // events that wait for the stream, 400 bytes each
	patience    = 5 * time.Second  // for the stream to take one
	tellAfter   = 10 * time.Second // until missing events are told of, in one summary for each name and source
)

// Spool is what the recorder needs of the log; see spool.Spool.Append.
type Spool interface {
	Append(ctx context.Context, e spool.Entry) error
}

// Options are what the program wires.
type Options struct {
	Logger     *slog.Logger          // nil discards
	Spool      Spool                 // needed with Config.Stream
	Registerer prometheus.Registerer // nil is private
	Now        func() time.Time      // nil is time.Now
}

// Recorder takes events. Its methods may be called at the same time; a nil Recorder takes none.
type Recorder struct {
	cfg     Config
	log     *slog.Logger
	spool   Spool
	now     func() time.Time
	metrics *metrics
	queue   chan *Event

	mu     sync.Mutex
	storms map[string]*storm
}

// New makes a recorder. The log has its events at once, the stream while Run runs.
func New(cfg Config, o Options) (*Recorder, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	r := &Recorder{cfg: cfg, log: o.Logger, spool: o.Spool, now: o.Now, queue: make(chan *Event, queueLength), storms: map[string]*storm{}}
	for _, name := range Names {
		r.storms[name] = &storm{}
	}
	var err error
	r.metrics, err = newMetrics(o.Registerer)
	return r, err
}

// Record records an event. It never waits.
func (r *Recorder) Record(e Event) {
	if r == nil {
		return
	}
	e.Time = r.now().UTC()
	r.mu.Lock()
	s := r.storms[e.Name]
	if s == nil {
		r.mu.Unlock()
		panic("BUG: audit event " + e.Name + " is not in Names")
	}
	if !s.pass(e.Time, e.Remote, float64(r.cfg.Rate)) {
		s.missing.add(e.Time, e.Remote)
		r.mu.Unlock()
		r.metrics.missing.WithLabelValues(e.Name).Inc()
		return
	}
	r.mu.Unlock()
	r.keep(&e)
}

// keep writes an event where it belongs.
func (r *Recorder) keep(e *Event) {
	e.shorten()
	r.metrics.events.WithLabelValues(e.Name).Inc()
	if r.cfg.Log == LogAll || r.cfg.Log == LogImportant && e.Name != Connected && e.Name != Disconnected {
		r.log.LogAttrs(context.Background(), e.level(), "audit", e.attrs()...)
	}
	if r.cfg.Stream == "" {
		return
	}
	select {
	case r.queue <- e:
	default:
		r.metrics.lost.Inc()
	}
}

// Run writes the stream until ctx ends, and then what waits.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(tellAfter)
	defer tick.Stop()
	for {
		select {
		case e := <-r.queue:
			r.append(e)
		case <-tick.C:
			r.tellMissing()
		case <-ctx.Done():
			r.tellMissing()
			for {
				select {
				case e := <-r.queue:
					r.append(e)
				default:
					return
				}
			}
		}
	}
}

// tellMissing makes sure that what was not recorded is known: how many of what, and from where. The summaries pass every throttle.
func (r *Recorder) tellMissing() {
	var list []*Event
	now := r.now().UTC()
	r.mu.Lock()
	for _, name := range Names {
		list = append(list, r.storms[name].missing.take(now, name)...)
	}
	r.mu.Unlock()
	for _, e := range list {
		r.keep(e)
	}
}

// append puts an event into the stream, as a record that nobody has published.
func (r *Recorder) append(e *Event) {
	body, err := json.Marshal(e)
	if err != nil {
		panic("BUG: audit event " + e.Name + ": " + err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rec := &spool.Record{
		Topic: TopicPrefix + e.Name, Payload: body, ReceivedAt: e.Time.UnixNano(),
		Properties: &spool.Properties{HasPayloadFormat: true, PayloadFormat: 1, ContentType: "application/json"},
	}
	if err := r.spool.Append(ctx, spool.Entry{Record: rec, Stream: r.cfg.Stream}); err != nil {
		r.metrics.lost.Inc()
	}
}

// Close takes the metrics away.
func (r *Recorder) Close() { r.metrics.unregister() }
