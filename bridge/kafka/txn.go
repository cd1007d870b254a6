package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Exactly sends the flights of the lanes of one route and spool partition exactly once: each transaction holds flights and,
// in a compacted topic of its own, the position of each of their lanes behind them. What is committed is delivered, and said
// so, in one step.
//
// Two producers share the work. The main one takes all flights that are ready in one transaction. One that fails, or does not
// end in time, ends the transaction, and its lane is left to the side producer, which takes one flight at a time: so a stuck
// or poisoned lane holds none but its like.
//
// There is one way out of every failure, a commit whose outcome is unknown included: the producer is closed; a new one of the
// same transactional ID is made, which fences the old one and ends its transaction; and only then the positions are read. They
// say which flights were committed. Reading before fencing would miss a commit that is on its way.
//
// A process that was fenced by another one must not come back that way: it would fence the other in turn, and both would deliver what
// their spools have (takeover.go).
type Exactly struct {
	c        *Client
	id       string
	epoch    string // positions of another one are another spool's, or of lanes that are not these
	offset   string // topic of the positions
	instance string // of this process

	main, side *transactor

	mu       sync.Mutex
	ready    []*Flight // for main
	aside    []*Flight // for side
	suspects map[string]bool
	took     time.Duration // until the outcomes of a transaction's flights, about
	closed   bool
	taken    bool // another process has taken over: this one sends nothing any more
}

// errStalled means that nothing of a transaction had an outcome in time.
var errStalled = errors.New("no answer to anything of a transaction")

// How transactions are bounded.
const (
	mainDeadline  = 400 * time.Millisecond // for the outcomes of a transaction's flights; longer where they take longer
	sideDeadline  = 2 * time.Second
	maxDeadline   = 15 * time.Second
	txnTimeout    = 60 * time.Second // the broker ends a transaction that nobody ends
	commitTimeout = 20 * time.Second
	openTimeout   = 30 * time.Second

	positionPartitions = 16 // of the topic of positions: readers of one wait for open transactions in it
)

// PositionsTopic holds the positions of lanes that deliver exactly once.
const PositionsTopic = "forebay.positions"

// NewExactly makes one; id is part of its transactional IDs and has to be the same for ever. Only positions of the same epoch
// are read.
func (c *Client) NewExactly(id, epoch string) *Exactly {
	e := &Exactly{c: c, id: id, epoch: epoch, offset: PositionsTopic, instance: rand.Text(), suspects: make(map[string]bool)}
	e.main = &transactor{e: e, id: id, wake: make(chan struct{}, 1)}
	e.side = &transactor{e: e, id: id + "/side", wake: make(chan struct{}, 1)}
	return e
}

// LaneKey names a lane among the positions: its Kafka partition, and over how many partitions keys are spread.
func LaneKey(topic string, spread, partition int32) string {
	return fmt.Sprintf("%s/%d/%d", topic, spread, partition)
}

// Open fences what an earlier process has left, and returns the positions of its lanes: the offset in the spool behind what is
// delivered. Nothing may be sent before.
func (e *Exactly) Open(ctx context.Context) (map[string]uint64, error) {
	fence := func(t *transactor) func() error {
		return func() error {
			if err := t.notTaken(ctx); err != nil { // it has been opened before: another gateway may have been there since
				return err
			}
			return t.fence(ctx)
		}
	}
	// Both before either is read.
	if err := together(
		func() error { return e.c.EnsurePositions(ctx) },
		fence(e.main),
		fence(e.side),
	); err != nil {
		return nil, err
	}
	read := func(t *transactor) func() error {
		return func() error {
			err := t.read(ctx)
			if err != nil {
				t.drop()
			}
			return err
		}
	}
	if err := together(read(e.main), read(e.side)); err != nil {
		return nil, err
	}
	positions := maps.Clone(e.main.positions)
	for k, v := range e.side.positions {
		positions[k] = max(positions[k], v)
	}
	return positions, nil
}

// together runs steps that do not need each other, each of which may wait for the cluster, and returns the first error.
func together(steps ...func() error) error {
	errs := make([]error, len(steps))
	var running sync.WaitGroup
	for i, step := range steps {
		running.Go(func() { errs[i] = step() })
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Ship sends f, whose Done is called when it is committed or cannot be.
func (e *Exactly) Ship(f *Flight) {
	e.mu.Lock()
	closed := e.closed
	switch {
	case closed:
	case e.suspects[f.lane()]:
		e.aside = append(e.aside, f)
	default:
		e.ready = append(e.ready, f)
	}
	e.mu.Unlock()
	if closed {
		go f.Done(f, Result{Verdict: Classify(kgo.ErrClientClosed)})
		return
	}
	signal(e.main.wake)
	signal(e.side.wake)
}

func (f *Flight) lane() string { return LaneKey(f.Topic.Name, f.Spread, f.Partition) }

// next is the position behind f.
func (f *Flight) next() uint64 { return f.Messages[len(f.Messages)-1].Offset + 1 }

// Taken reports whether another process has taken over: this one sends nothing any more.
func (e *Exactly) Taken() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.taken
}

// Run sends until ctx ends. Then what has no outcome is given back; a transaction that is open is ended by the next Open.
func (e *Exactly) Run(ctx context.Context) {
	e.mu.Lock()
	e.closed = false // it may run again
	e.mu.Unlock()
	var work sync.WaitGroup
	work.Go(func() { e.runMain(ctx) })
	work.Go(func() { e.runSide(ctx) })
	work.Wait()
	e.mu.Lock()
	e.closed = true
	left := append(e.ready, e.aside...)
	e.ready, e.aside = nil, nil
	e.mu.Unlock()
	e.main.drop()
	e.side.drop()
	for _, f := range left {
		f.Done(f, Result{Verdict: Classify(kgo.ErrClientClosed)})
	}
}

func (e *Exactly) take(which *[]*Flight, most int) []*Flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(*which), most)
	out := slices.Clone((*which)[:n])
	*which = (*which)[n:]
	return out
}

func (e *Exactly) runMain(ctx context.Context) {
	for ctx.Err() == nil {
		flights := e.take(&e.ready, 1<<20)
		if len(flights) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-e.main.wake:
			}
			continue
		}
		done, faulty, err := e.main.try(ctx, flights, e.deadline(mainDeadline))
		e.mu.Lock()
		var again []*Flight
		for _, f := range flights {
			switch {
			case slices.Contains(done, f):
			case slices.Contains(faulty, f):
				e.suspects[f.lane()] = true
				e.aside = append(e.aside, f)
			default:
				again = append(again, f)
			}
		}
		e.ready = append(again, e.ready...)
		e.mu.Unlock()
		e.report(done)
		signal(e.side.wake)
		if err != nil && len(done) == 0 && len(faulty) == 0 {
			e.refuse(ctx, &e.ready, err)
		}
	}
}

func (e *Exactly) runSide(ctx context.Context) {
	for ctx.Err() == nil {
		flights := e.take(&e.aside, 1)
		if len(flights) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-e.side.wake:
			}
			continue
		}
		f := flights[0]
		done, faulty, err := e.side.try(ctx, flights, e.deadline(sideDeadline))
		switch {
		case len(done) == 1:
			e.mu.Lock()
			delete(e.suspects, f.lane())
			e.mu.Unlock()
			e.report(done)
		case len(faulty) == 1:
			v := Classify(f.err)
			v.Unknown = false // nothing of an aborted transaction is read
			f.Done(f, Result{Verdict: v})
		default: // stuck, or the producer is: the others of its like first
			e.mu.Lock()
			e.aside = append(e.aside, f)
			e.mu.Unlock()
			if err != nil && !errors.Is(err, errStalled) {
				e.refuse(ctx, &e.aside, err)
			}
		}
	}
}

// deadline is d, or more where flights take longer.
func (e *Exactly) deadline(d time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return min(max(d, 4*e.took), maxDeadline)
}

// refuse tells lanes that wait why they do, and rests.
func (e *Exactly) refuse(ctx context.Context, which *[]*Flight, err error) {
	if v := Classify(err); v.Class == Fault {
		for _, f := range e.take(which, 1<<20) {
			f.Done(f, Result{Verdict: v})
		}
	}
	sleep(ctx, 500*time.Millisecond)
}

func (e *Exactly) report(done []*Flight) {
	for _, f := range done {
		f.Done(f, Result{Acked: len(f.Messages)})
	}
}

// transactor is one transactional producer and its part of the positions.
type transactor struct {
	e    *Exactly
	id   string
	wake chan struct{}

	opened    bool        // in this process: positions have a mark of it
	producer  *kgo.Client // nil: to be opened
	positions map[string]uint64
}

func (t *transactor) partition() int32 {
	h := fnv.New32a()
	h.Write([]byte(t.id))
	return int32(h.Sum32() % positionPartitions)
}

// try sends flights in one transaction. done are committed; faulty have failed, or did not end in time. err says what else
// was wrong.
func (t *transactor) try(ctx context.Context, flights []*Flight, deadline time.Duration) (done, faulty []*Flight, err error) {
	if t.producer == nil {
		if err := t.open(ctx); err != nil {
			return nil, nil, err
		}
		// What a commit of unknown outcome has delivered.
		for _, f := range flights {
			if t.positions[f.lane()] >= f.next() {
				done = append(done, f)
			}
		}
		if len(done) > 0 {
			return done, nil, nil
		}
	}
	if err := t.producer.BeginTransaction(); err != nil {
		t.drop()
		return nil, nil, err
	}
	began := time.Now()
	ended, well, noted := t.produce(flights)
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	ok := false
	select {
	case <-ended:
		ok = noted() == nil && !slices.ContainsFunc(flights, func(f *Flight) bool { return f.err != nil })
	default:
	}
	if !ok {
		healthy := well() // before the rest is failed
		t.drop()          // fails what is on its way: all have an outcome now
		<-ended
		for _, f := range flights {
			if f.err == nil {
				continue
			}
			if v := Classify(f.err); v.Class == Dead || v.Reason == "transaction_authorization" || v.Reason == "producer_reset" {
				err = f.err
				continue
			}
			_, told := errors.AsType[*kerr.Error](f.err)
			if ctx.Err() == nil && (told || healthy > 0) {
				faulty = append(faulty, f)
			}
		}
		if err == nil && len(faulty) == 0 && !errors.Is(noted(), kgo.ErrClientClosed) {
			err = noted()
		}
		switch {
		case err != nil:
			faulty = nil // the producer's fault, or that of the positions' topic
		case len(faulty) == 0:
			err = errStalled // the cluster's
		}
		return nil, faulty, err
	}
	took := time.Since(began)
	t.e.mu.Lock()
	t.e.took += (took - t.e.took) / 4
	t.e.mu.Unlock()
	t.e.c.answered(took)
	if err := t.commit(ctx, flights); err != nil {
		t.drop()
		return nil, nil, err
	}
	return flights, nil, nil
}

// produce hands the flights over, and the positions behind them: both are there or none is, so that they need not wait for each
// other. The channel is closed when everything has an outcome; well is how many flights have been taken as a whole so far, noted
// why a position was not taken.
func (t *transactor) produce(flights []*Flight) (_ <-chan struct{}, well func() int, noted func() error) {
	var mu sync.Mutex
	var positions error
	left, taken := len(flights), 0
	for _, f := range flights {
		left += len(f.Messages)
		f.err, f.left = nil, len(f.Messages)
	}
	ended := make(chan struct{})
	for _, f := range flights {
		promise := func(_ *kgo.Record, err error) { // one for all
			mu.Lock()
			defer mu.Unlock()
			if err != nil && (f.err == nil || errors.Is(f.err, kgo.ErrClientClosed)) {
				f.err = err
			}
			if f.left--; f.left == 0 && f.err == nil {
				taken++
			}
			if left--; left == 0 {
				close(ended)
			}
		}
		for i := range f.Messages {
			m := &f.Messages[i]
			m.rec.Topic, m.rec.Partition = f.Topic.Name, f.Partition
			m.attempts++
			t.producer.Produce(context.Background(), &m.rec, promise)
		}
	}
	for _, f := range flights {
		r := t.record(t.e.epoch+"\x00"+f.lane(), strconv.AppendUint(nil, f.next(), 10))
		t.producer.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil && positions == nil {
				positions = err
			}
			if left--; left == 0 {
				close(ended)
			}
		})
	}
	leave(t.producer)
	return ended, func() int {
			mu.Lock()
			defer mu.Unlock()
			return taken
		}, func() error {
			mu.Lock()
			defer mu.Unlock()
			return positions
		}
}

func (t *transactor) commit(ctx context.Context, flights []*Flight) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := t.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	for _, f := range flights {
		t.positions[f.lane()] = f.next()
	}
	return nil
}

func (t *transactor) record(key string, value []byte) *kgo.Record {
	return &kgo.Record{Topic: t.e.offset, Partition: t.partition(), Key: []byte(t.id + "\x00" + key), Value: value}
}

// drop closes the producer. What is on its way has an outcome then.
func (t *transactor) drop() {
	if t.producer != nil {
		t.producer.Close()
		t.producer = nil
	}
}

func (t *transactor) open(ctx context.Context) error {
	if err := t.notTaken(ctx); err != nil {
		return err
	}
	if err := t.fence(ctx); err != nil {
		return err
	}
	if err := t.read(ctx); err != nil {
		t.drop()
		return err
	}
	return nil
}

// fence makes the producer: from here on no other one of its ID can write, and what that had open is aborted.
func (t *transactor) fence(ctx context.Context) error {
	t.drop()
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	c := t.e.c
	p, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.BrokerList()...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.SoftwareNameAndVersion("forebay", "1"),
		kgo.Dialer(c.dial),
		kgo.WithHooks(txnHooks{hooks{c}}),
		kgo.TransactionalID(t.id),
		kgo.TransactionTimeout(txnTimeout),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(linger),
		kgo.ProducerBatchMaxBytes(maxRequest - 1<<20),
		kgo.BrokerMaxWriteBytes(maxRequest),
		kgo.MaxBufferedRecords(1 << 30),
		kgo.ProducerBatchCompression(slices.Clone(codecs[c.cfg.Compression])...),
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.ConnIdleTimeout(idleTimeout),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Minute),
		kgo.DisableClientMetrics(),
	}, c.identity...)...)
	if err != nil {
		return err
	}
	if _, _, err := p.ProducerID(ctx); err != nil {
		p.Close()
		return err
	}
	t.producer = p
	return nil
}

// read reads the positions up to a record that this producer writes first: what comes behind it is its own.
func (t *transactor) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	reader, err := t.reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	positions := make(map[string]uint64)
	mark := t.e.instance + "/" + strconv.FormatInt(time.Now().UnixNano(), 10)
	if err := t.producer.BeginTransaction(); err != nil {
		return err
	}
	// The producer does not give up a record of which nobody knows whether the broker has it, whatever its context: closing it does.
	written := make(chan error, 1)
	t.producer.Produce(ctx, t.record("", []byte(mark)), func(_ *kgo.Record, err error) { written <- err })
	select {
	case err := <-written:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := t.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	prefix := t.id + "\x00" + t.e.epoch + "\x00"
	for {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		end := false
		fetches.EachRecord(func(r *kgo.Record) {
			key, value := string(r.Key), string(r.Value)
			if lane, ok := strings.CutPrefix(key, prefix); ok {
				if n, err := strconv.ParseUint(value, 10, 64); err == nil {
					positions[lane] = n
				}
			}
			end = end || key == t.id+"\x00" && value == mark
		})
		if end {
			t.positions, t.opened = positions, true
			return nil
		}
	}
}

// reader reads what is committed in the partition of t's positions, from its start.
func (t *transactor) reader(more ...kgo.Opt) (*kgo.Client, error) {
	c := t.e.c
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.BrokerList()...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.Dialer(c.dial),
		kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.e.offset: {t.partition(): kgo.NewOffset().AtStart()}}),
	}, slices.Concat(c.identity, more)...)...)
}

// answered takes note of a transaction's flights that had their outcomes.
func (c *Client) answered(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flightTime += (took - c.flightTime) / 8
	c.aliveLocked(time.Now())
}

// EnsurePositions makes the topic of positions when it is not there.
func (c *Client) EnsurePositions(ctx context.Context) error {
	c.mu.Lock()
	admin := c.admin
	c.mu.Unlock()
	if admin == nil {
		return errors.New("the producer is being built anew")
	}
	compact, unclean := "compact", "false"
	_, err := admin.CreateTopic(ctx, positionPartitions, -1, map[string]*string{
		"cleanup.policy": &compact, "unclean.leader.election.enable": &unclean,
	}, PositionsTopic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("topic %s: %w", PositionsTopic, err)
	}
	return nil
}
