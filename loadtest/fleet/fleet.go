package fleet

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fleet is one run.
type Fleet struct {
	cfg    Config
	opts   Options
	log    *slog.Logger
	run    string // names this run in client IDs, topics and payloads
	url    *url.URL
	origin time.Time // all times of the run count from here on the monotonic clock
	began  time.Duration

	ledger      *ledger
	devices     []*device
	subscribers []*subscriber
	consumer    *consumer // nil without Kafka

	ackTimes     [4]*latency // several, so that devices do not queue for one lock
	reconnects   atomic.Int64
	sessionsLost atomic.Int64
	dialing      chan struct{}

	phase    atomic.Int32
	stopOnce sync.Once
	stop     chan struct{}

	mu      sync.Mutex
	reasons map[byte]int64 // refusals by reason code
	failure error          // first fault of the fleet itself
	ended   time.Duration  // when the last device stopped publishing
}

// Phase is where a run stands.
type Phase int32

// A run goes through its phases in this order.
const (
	Connecting Phase = iota
	Publishing
	Draining
	Done
)

// String names the phase.
func (p Phase) String() string {
	return [...]string{"connecting", "publishing", "draining", "done"}[p]
}

// New prepares a run. Nothing is connected yet.
func New(cfg Config, opts Options) (*Fleet, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	u, err := brokerURL(cfg.Broker)
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		cfg: cfg, opts: opts, log: opts.Logger, url: u, origin: time.Now(), run: strings.ToLower(rand.Text()[:6]),
		ledger:  newLedger(cfg.Devices, cfg.Mix),
		dialing: make(chan struct{}, 64), // half of the smallest listen queue one meets
		stop:    make(chan struct{}),
		reasons: make(map[byte]int64),
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	for i := range f.ackTimes {
		f.ackTimes[i] = newLatency()
	}
	for id := range cfg.Subscribers {
		f.subscribers = append(f.subscribers, newSubscriber(f, id))
	}
	if len(cfg.Kafka) > 0 {
		f.consumer = newConsumer(f)
	}
	for id := range cfg.Devices {
		f.devices = append(f.devices, newDevice(f, id))
	}
	return f, nil
}

// Stop ends publishing early; what is under way is still waited for. To give that up too, end Run's context.
func (f *Fleet) Stop() { f.stopOnce.Do(func() { close(f.stop) }) }

// Run publishes, waits for what is under way, and returns the report. Its error is a fault of the run itself, as when
// the broker cannot be reached; whether the messages reconcile stands in the report.
func (f *Fleet) Run(ctx context.Context) (*Report, error) {
	witness, dismiss := context.WithCancel(context.WithoutCancel(ctx)) // checkers see the end whatever happens
	var watching sync.WaitGroup
	defer watching.Wait()
	defer dismiss()
	if err := f.connect(ctx, witness, &watching); err != nil {
		f.closeDevices()
		return nil, err
	}
	f.publish(ctx)
	f.phase.Store(int32(Draining))
	f.drain(ctx)
	f.closeDevices()
	dismiss()
	watching.Wait()
	f.phase.Store(int32(Done))
	return f.report(), f.failed()
}

// connect brings up the checkers, so that nothing is published unseen, and then the devices.
func (f *Fleet) connect(ctx, witness context.Context, watching *sync.WaitGroup) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Drain)
	defer cancel()
	if f.consumer != nil {
		if err := f.consumer.start(ctx); err != nil {
			return err
		}
		watching.Go(func() { f.consumer.run(witness) })
	}
	for _, s := range f.subscribers {
		err := s.start(ctx)
		watching.Go(func() { s.run(witness) })
		if err != nil {
			return fmt.Errorf("mqtt %s: %w", f.cfg.Broker, err)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(f.devices))
	for i, d := range f.devices {
		wg.Go(func() { _, errs[i] = d.client.Connect(ctx) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("mqtt %s: %w", f.cfg.Broker, err)
		}
	}
	return nil
}

// publish runs the devices until they sent everything, or the time is over, or somebody stops the run.
func (f *Fleet) publish(ctx context.Context) {
	f.mu.Lock()
	f.began = f.since()
	f.mu.Unlock()
	f.phase.Store(int32(Publishing))
	pub, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.cfg.Duration > 0 {
		pub, cancel = context.WithTimeout(pub, f.cfg.Duration)
		defer cancel()
	}
	go func() {
		select {
		case <-f.stop:
			cancel()
		case <-pub.Done():
		}
	}()
	var wg sync.WaitGroup
	for _, d := range f.devices {
		wg.Go(func() {
			d.publish(pub)
			d.drain(pub) // while others still publish, stay connected and settle what is in flight
		})
	}
	wg.Wait()
	f.mu.Lock()
	f.ended = f.since()
	f.mu.Unlock()
}

// drain waits until every message is settled and has arrived where it was promised, and nothing comes any more. It
// gives up when cfg.Drain passes without progress.
func (f *Fleet) drain(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, d := range f.devices {
		wg.Go(func() { d.drain(ctx) })
	}
	open, arrived := int64(-1), int64(-1)
	progress, quiet := time.Now(), time.Now()
	for sleep(ctx, 10*time.Millisecond) {
		now := time.Now()
		if n := f.open(); n != open {
			open, progress = n, now
		}
		if n := f.arrived(); n != arrived {
			arrived, quiet = n, now
		}
		if open == 0 && now.Sub(quiet) >= f.cfg.Settle || now.Sub(progress) >= f.cfg.Drain {
			return
		}
	}
}

// open is how much is still under way.
func (f *Fleet) open() int64 {
	var flying int64
	for _, d := range f.devices {
		flying += int64(d.client.InFlight())
	}
	for _, c := range f.ledger.checkers {
		flying += c.pending.Load()
	}
	return flying
}

// arrived is how much came in, doubles too.
func (f *Fleet) arrived() int64 {
	var n int64
	for _, c := range f.ledger.checkers {
		n += c.arrived.Load()
	}
	return n
}

func (f *Fleet) closeDevices() {
	var wg sync.WaitGroup
	for _, d := range f.devices {
		wg.Go(d.close)
	}
	wg.Wait()
}

// since is the run's clock.
func (f *Fleet) since() time.Duration { return time.Since(f.origin) }

// clientID names a client so that nobody else's session is met.
func (f *Fleet) clientID(kind string, n int) string {
	return fmt.Sprintf("%s-%s-%s-%05d", f.cfg.TopicPrefix, f.run, kind, n)
}

// refusal counts a reason code.
func (f *Fleet) refusal(reason byte) {
	f.mu.Lock()
	f.reasons[reason]++
	f.mu.Unlock()
}

// fail notes a fault of the fleet itself, and ends publishing.
func (f *Fleet) fail(err error) {
	f.mu.Lock()
	if f.failure == nil {
		f.failure = err
	}
	f.mu.Unlock()
	f.Stop()
}

func (f *Fleet) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// sleep waits and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
