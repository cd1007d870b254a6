package downlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// Front is where publishes enter MQTT.
type Front interface {
	// Publish appends a publish of the gateway itself, e.Record, with e.Changes in the same group of the log. It blocks as an append to
	// the log does, keeps the order of its calls, and tells e.Done when it is accepted. An error that wraps ErrRefused means that this
	// record can never be published; spool.ErrFull that there is no room now.
	Publish(ctx context.Context, e spool.Entry) error
}

// Log is what an Engine needs of the spool.
type Log interface {
	Append(ctx context.Context, e spool.Entry) error
	Load(space string, fn func(key string, value []byte) error) error
}

// The errors of an Engine.
var (
	ErrRefused = errors.New("cannot be published")     // see Front
	ErrUnknown = errors.New("no such downlink")        // Info, Pause and Resume
	ErrClosed  = errors.New("the downlinks are ended") // Run
)

// Letter is a record of which no publish can be made.
type Letter struct {
	Downlink, Upstream string
	Record             *kafka.Incoming
	Reason, Hint       string
	Err                error
	Cut                bool // without its value, which is too large for the spool
}

// Options are what the program wires. Logger, Registerer and Now may be nil.
type Options struct {
	Log         Log
	Front       Front
	Upstream    func(name string) *kafka.Client
	GatewayID   string
	DeadLetters string                                // stream; empty when there is none
	Bury        func(l Letter) (*spool.Record, error) // makes the record for it
	Logger      *slog.Logger
	Registerer  prometheus.Registerer
	Now         func() time.Time
}

// Engine runs downlinks.
type Engine struct {
	o Options

	applying sync.RWMutex // Apply, against those who change one downlink; before mu

	mu      sync.Mutex
	links   []*downlink // in the order of the configuration; never changed in place
	ctx     context.Context
	running sync.WaitGroup
	closed  chan struct{} // closed by Close
	closing bool
}

// New makes an engine for entries that are valid and have their defaults. Nothing is read before Run.
func New(cfgs []Config, o Options) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Engine{o: o, closed: make(chan struct{})}
	links, err := e.open(cfgs)
	if err != nil {
		return nil, fmt.Errorf("downlink: %w", err)
	}
	e.links = links
	if err := o.Registerer.Register(collector{e}); err != nil {
		return nil, fmt.Errorf("downlink: %w", err)
	}
	return e, nil
}

// open makes downlinks with the positions that the log has.
func (e *Engine) open(cfgs []Config) (links []*downlink, err error) {
	for _, cfg := range cfgs {
		d, err := newDownlink(e, cfg)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cfg.Name, err)
		}
		links = append(links, d)
	}
	return links, e.load(links)
}

// Run reads until ctx ends or the engine is closed.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.mu.Lock()
	if e.closing || e.ctx != nil {
		e.mu.Unlock()
		return ErrClosed
	}
	e.ctx = ctx
	for _, d := range e.links {
		e.startLocked(d)
	}
	e.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-e.closed:
	}
	cancel()
	e.running.Wait()
	return nil
}

func (e *Engine) startLocked(d *downlink) {
	ctx, cancel := context.WithCancel(e.ctx)
	d.stop, d.ended = cancel, make(chan struct{})
	e.running.Go(func() {
		defer close(d.ended)
		d.run(ctx)
	})
}

// Close ends the reading. What is read and not in the log is read again by the next run. It may be called twice, and before Run.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	again := e.closing
	e.closing = true
	if !again {
		close(e.closed)
	}
	e.mu.Unlock()
	done := make(chan struct{})
	go func() { e.running.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("downlink: close: %w", ctx.Err())
	}
	if !again {
		e.o.Registerer.Unregister(collector{e})
	}
	return nil
}

// Apply makes the engine's downlinks those of cfgs, which are valid and have their defaults: what is new begins, what is gone ends, what has
// changed begins anew at its position, and the others go on undisturbed. After an error that is not ErrClosed all are as they were.
func (e *Engine) Apply(ctx context.Context, cfgs []Config) error {
	e.applying.Lock()
	defer e.applying.Unlock()
	e.mu.Lock()
	old := e.links
	closed := e.closing || e.ctx == nil
	e.mu.Unlock()
	if closed {
		return ErrClosed
	}
	keeps := func(cfg Config) func(*downlink) bool { return func(d *downlink) bool { return same(d.cfg, cfg) } }
	var links, fresh, ending []*downlink
	for _, cfg := range cfgs { // before anything is ended
		if i := slices.IndexFunc(old, keeps(cfg)); i >= 0 {
			links = append(links, old[i])
			continue
		}
		d, err := newDownlink(e, cfg)
		if err != nil {
			return fmt.Errorf("downlink: %s: %w", cfg.Name, err)
		}
		links, fresh = append(links, d), append(fresh, d)
	}
	if err := e.load(fresh); err != nil { // what cannot be read now could not be then
		return fmt.Errorf("downlink: %w", err)
	}
	for _, d := range old {
		if !slices.Contains(links, d) {
			d.stop()
			ending = append(ending, d)
		}
	}
	for _, d := range ending {
		<-d.ended
		d.log.Info("downlink ended")
	}
	err := e.settled(ctx, ending)
	if err == nil {
		err = e.load(fresh) // where those of the same names have ended
	}
	if err != nil {
		return e.goOn(ending, fmt.Errorf("downlink: %w", err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return ErrClosed
	}
	for _, d := range fresh {
		e.startLocked(d)
		d.log.Info("downlink began")
	}
	e.links = links
	return nil
}

// settled returns when everything that downlinks which have ended gave to the log is durable: positions that are read before would be those of
// earlier records. Entries become durable in their order; the last one says again what the downlink had looked for.
func (e *Engine) settled(ctx context.Context, ended []*downlink) error {
	var changes []spool.Change
	for _, d := range ended {
		if d.known.Version == 0 {
			continue // it has read nothing
		}
		value, err := json.Marshal(d.known)
		if err != nil {
			return err
		}
		changes = append(changes, spool.Change{Space: positionSpace, Key: d.cfg.Name, Value: value})
	}
	if len(changes) == 0 {
		return nil
	}
	return e.commit(ctx, changes...)
}

// goOn has downlinks begin again that were to end.
func (e *Engine) goOn(links []*downlink, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return ErrClosed
	}
	for _, d := range links {
		e.startLocked(d)
	}
	return err
}

// Redrive publishes a record through a downlink, as one that has no position, and returns when it is durable.
func (e *Engine) Redrive(ctx context.Context, name string, rec *kafka.Incoming) error {
	d, err := e.link(name)
	if err != nil {
		return err
	}
	d.mu.Lock()
	paused := !d.pausedSince.IsZero()
	d.mu.Unlock()
	switch {
	case paused:
		return fmt.Errorf("downlink %s is paused: forebay downlink resume %s", name, name)
	case d.cfg.OwnRecords == OwnDrop && mapping.Identified(rec, e.o.GatewayID):
		return errors.New("it went up from this gateway, and own_records is drop now")
	case rec.Value == nil && d.cfg.NullValue == NullDrop:
		return errors.New("its value is null, and null_value is drop now")
	}
	now := e.o.Now()
	pub, err := d.mapper.Publish(d.mapper.NewScratch(), rec, now)
	switch {
	case err != nil:
		return err
	case pub.Expired:
		return errors.New("its time is over")
	}
	pub.Record.ClientID, pub.Record.ReceivedAt = ClientPrefix+name+"/"+kafka.Partition{Topic: rec.Topic, N: rec.Partition}.String(), now.UnixNano()
	done := make(durable, 1)
	if err := e.o.Front.Publish(ctx, spool.Entry{Record: pub.Record, Done: done}); err != nil {
		return err
	}
	return done.wait(ctx)
}

func (e *Engine) linkLocked(name string) *downlink {
	for _, d := range e.links {
		if d.cfg.Name == name {
			return d
		}
	}
	return nil
}

func (e *Engine) link(name string) (*downlink, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.linkLocked(name); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("%q: %w", name, ErrUnknown)
}

func (e *Engine) all() []*downlink {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.links)
}

// durable receives what became of an entry. It has room for it.
type durable chan error

// Durable implements spool.Completion.
func (d durable) Durable(rec *spool.Record, err error) {
	if err == nil && rec != nil && rec.Offset == spool.NoOffset {
		err = spool.ErrFull // when_full: drop_new
	}
	d <- err
}

func (d durable) wait(ctx context.Context) error {
	select {
	case err := <-d:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commit appends changes and returns when they are durable.
func (e *Engine) commit(ctx context.Context, changes ...spool.Change) error {
	done := make(durable, 1)
	if err := e.o.Log.Append(ctx, spool.Entry{Changes: changes, Done: done}); err != nil {
		return err
	}
	return done.wait(ctx)
}
