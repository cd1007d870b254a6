package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Options are what the program wires.
type Options struct {
	GatewayID string
	Logger    *slog.Logger
	Dial      func(ctx context.Context, network, host string) (net.Conn, error) // nil is TCP
	NoRoute   bool                                                              // no route is behind it, and hints speak of none

	eager bool // for the test of the gate: requests are made while a flight is being appended
}

// Client is one upstream. Its methods may be called by many goroutines at the same time.
type Client struct {
	cfg  Config
	log  *slog.Logger
	dial dialFunc
	gate gate

	noRoute bool // Options.NoRoute

	login    *login
	tls      *tlsFiles // nil without TLS
	identity []kgo.Opt // who the gateway is, for each client of the cluster

	maxAirTime time.Duration
	linger     time.Duration

	shipC, probeC, topicC, scanC chan struct{}
	stop                         context.CancelFunc
	running                      sync.WaitGroup
	air                          sync.WaitGroup // flights whose Done was not called yet

	mu       sync.Mutex
	closed   bool
	producer *kgo.Client // nil while it is being built anew
	admin    *kadm.Client
	topics   map[string]*Topic
	named    int       // topics that the producer may know: those that were, too
	ready    []*Flight // to be appended
	watchers []*func()
	scans    []*Scan   // that wait for their turn
	builtAt  time.Time // the producer
	upAt     time.Time // the cluster was not reachable before

	flying      int // flights with the producer
	outstanding int // messages without an outcome
	flightTime  time.Duration
	torn        uint64

	up        atomic.Bool // written with mu held
	aliveAt   time.Time   // the last sign of life: an acknowledgement or a ping
	connErr   error       // the last error of a connection
	connErrAt time.Time
	downAt    time.Time       // when a ping first failed since the last sign of life; zero while none has
	told      map[string]bool // the reasons of it that the log has
	said      map[string]said // of the producer's own log, by message

	condemned  *Verdict // why the producer is of no use any more
	rebuilds   uint64
	inARow     int // rebuilds with less than a minute between them
	rebuiltAt  time.Time
	initCount  int // InitProducerID requests since initSince
	initSince  time.Time
	connErrors map[string]uint64 // by reason
	throttled  time.Duration
}

// How the producer is replaced.
const (
	rebuildPause  = 30 * time.Second // longest time between two rebuilds in a row
	maxInitPerSec = 20               // InitProducerID requests: more is the producer spinning (some brokers' REQUEST_TIMED_OUT)
)

// New makes a client and starts it. It does not wait for the cluster.
func New(cfg Config, opts Options) (*Client, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.ClientID == "" {
		cfg.ClientID = "forebay/" + opts.GatewayID + "/" + cfg.Name
	}
	c := &Client{
		cfg:        cfg,
		log:        opts.Logger,
		dial:       opts.Dial,
		noRoute:    opts.NoRoute,
		maxAirTime: maxAirTime,
		linger:     linger,
		shipC:      make(chan struct{}, 1),
		probeC:     make(chan struct{}, 1),
		topicC:     make(chan struct{}, 1),
		scanC:      make(chan struct{}, 1),
		topics:     make(map[string]*Topic),
		connErrors: make(map[string]uint64),
		said:       make(map[string]said),
		told:       make(map[string]bool),
	}
	if opts.eager {
		c.linger = 0
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.log = c.log.With("upstream", cfg.Name)
	if c.dial == nil {
		c.dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	c.secure()
	if err := c.build(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.running.Go(func() { c.ship(ctx) })
	c.running.Go(func() { c.watch(ctx) })
	c.running.Go(func() { c.lookUp(ctx) })
	c.running.Go(func() { c.readBack(ctx) })
	if c.tls != nil {
		c.running.Go(func() { c.tls.watch(ctx) })
	}
	return c, nil
}

// Name is the upstream's name.
func (c *Client) Name() string { return c.cfg.Name }

// MaxBuffered is the memory that lanes of this upstream share.
func (c *Client) MaxBuffered() int64 { return int64(c.cfg.MaxBuffered) }

// Watch has fn called whenever the upstream or one of its topics changed its state, until unwatch is called. It must not block.
func (c *Client) Watch(fn func()) (unwatch func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &fn
	c.watchers = append(c.watchers, w)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watchers = slices.DeleteFunc(slices.Clone(c.watchers), func(have *func()) bool { return have == w }) // notify may have the old one
	}
}

// idleTimeout keeps connections for records that come now and then. The producer may take twice as long to notice, which is what
// brokers allow by default (connections.max.idle.ms, ten minutes). The system's keep-alive probes keep them open on the way, and
// find out when they are not.
const idleTimeout = 5 * time.Minute

const maxRequest = 100 << 20 // largest request of Kafka's brokers by default (socket.request.max.bytes)

// build makes the producer. Its settings and their reasons:
func (c *Client) build() error {
	p, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.BrokerList()...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.SoftwareNameAndVersion("forebay", "1"),
		kgo.WithLogger(kgoLogger{c}),
		kgo.WithHooks(hooks{c}),
		kgo.Dialer(c.gate.dialer(c.dial)),
		kgo.RequiredAcks(kgo.AllISRAcks()), // idempotent: up to five requests in flight, sequence numbers keep their order
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(c.linger),
		// Lanes cut flights to the topic's limit, which may change. The producer would ask for it once for each partition, and
		// hold it against the bytes before compression.
		kgo.ProducerBatchMaxBytes(maxRequest - 1<<20),
		kgo.BrokerMaxWriteBytes(maxRequest),
		// Only a guard: the lanes bound what is buffered, and Produce must never block behind the closed gate.
		kgo.MaxBufferedRecords(1 << 30),
		// A clone: the client sorts in place what it is given.
		kgo.ProducerBatchCompression(slices.Clone(codecs[c.cfg.Compression])...),
		// No RecordDeliveryTimeout: it counts from the record's timestamp, so that what waited an hour in the spool would
		// fail at once. No limit of retries: the spool waits as long as it takes.
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.RequestTimeoutOverhead(5 * time.Second),
		kgo.ConnIdleTimeout(idleTimeout),
		kgo.MetadataMinAge(250 * time.Millisecond), // the default of 5 s is how long a moved leader is not found
		kgo.MetadataMaxAge(time.Minute),
		kgo.ProducerOnDataLossDetected(func(topic string, partition int32) {
			c.log.Warn("broker lost track of the producer; it takes a new epoch and repeats", "topic", topic, "partition", partition)
		}),
		kgo.DisableClientMetrics(),
	}, c.identity...)...)
	if err != nil {
		return fmt.Errorf("upstream %s: %w", c.cfg.Name, err)
	}
	c.mu.Lock()
	c.producer, c.admin = p, kadm.NewClient(p)
	c.initCount = 0
	c.builtAt = time.Now()
	c.named = len(c.topics)
	c.mu.Unlock()
	signal(c.shipC)
	signal(c.topicC)
	return nil
}

// condemnLocked has the producer replaced.
func (c *Client) condemnLocked(v Verdict) {
	if c.condemned == nil && !c.closed {
		c.condemned = &v
		signal(c.probeC)
	}
}

// rebuild replaces the producer. Closing the old one ends every flight with an unknown outcome; lanes send those again.
func (c *Client) rebuild(ctx context.Context) {
	c.mu.Lock()
	v, old := c.condemned, c.producer
	c.producer, c.admin = nil, nil
	// One fault may need many attempts, such as a missing ACL: not more often than the lanes probe.
	pause := time.Duration(0)
	if since := time.Since(c.rebuiltAt); since < time.Minute {
		pause = min(rebuildPause, time.Second<<min(c.inARow, 5))
	} else {
		c.inARow = 0
	}
	c.inARow++
	c.rebuilds++
	c.rebuiltAt = time.Now()
	c.mu.Unlock()

	c.log.Warn("producer is of no use any more and is built anew", "reason", v.Reason, "err", v.Err, "hint", v.Hint)
	old.Close()
	if !sleep(ctx, pause) {
		return
	}
	c.mu.Lock()
	c.condemned = nil
	for _, t := range c.topics {
		t.purging = false // a new producer knows no topic
		c.releaseLocked(t)
	}
	c.mu.Unlock()
	if err := c.build(); err != nil { // the options were good before
		panic("BUG: kafka: " + err.Error())
	}
}

// Close ends the client. Flights that have no outcome yet end with an unknown one; their Done is called before Close
// returns. It may be called twice.
func (c *Client) Close() {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.running.Wait()
	if again {
		return
	}
	c.mu.Lock()
	producer := c.producer
	never := c.ready
	c.ready = nil
	for _, t := range c.topics {
		for _, s := range t.slots {
			never = append(never, s.waiting...)
			s.waiting = nil
		}
	}
	for _, f := range never {
		c.outstanding -= len(f.Messages)
	}
	c.mu.Unlock()
	if producer != nil {
		producer.Close()
	}
	for _, f := range never {
		f.Done(f, Result{Acked: f.to, Verdict: Classify(kgo.ErrClientClosed)})
		c.air.Done()
	}
	c.air.Wait()
}

// sleep waits, false when ctx ends first.
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
