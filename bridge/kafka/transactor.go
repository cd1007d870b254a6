package kafka

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// errStalled means that nothing of a transaction had an outcome in time.
var errStalled = errors.New("no answer to anything of a transaction")

// How transactions are bounded.
const (
	txnTimeout    = 60 * time.Second // the broker ends a transaction that nobody ends
	commitTimeout = 20 * time.Second
	openTimeout   = 30 * time.Second
)

// transactor is one transactional producer and its part of the positions.
type transactor struct {
	e    *Exactly
	id   string
	wake chan struct{}

	opened    bool        // in this process: positions have a mark of it
	producer  *kgo.Client // nil: to be opened
	positions map[string]uint64
	seen      int64 // behind the last that it has committed among the positions: what was before is in positions, what others do comes later
	born      int64 // behind the first mark of this process, in the same partition; 0 while there is none
	noted     int64 // seen, when the open transaction is committed; to be read once all of it has an outcome
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
	t.noted = t.seen
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
			t.noted = max(t.noted, r.Offset+1)
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

// commit ends the transaction. After an error its outcome is unknown: the next open says.
func (t *transactor) commit(ctx context.Context, flights []*Flight) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := t.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	for _, f := range flights {
		t.positions[f.lane()] = f.next()
	}
	t.seen = t.noted
	return nil
}

// drop closes the producer. What is on its way has an outcome then.
func (t *transactor) drop() {
	if t.producer != nil {
		t.producer.Close()
		t.producer = nil
	}
}

// open makes the producer and says where the lanes are, after a look whose they are now (takeover.go).
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

// answered takes note of a transaction's flights that had their outcomes.
func (c *Client) answered(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flightTime += (took - c.flightTime) / 8
	c.aliveLocked(time.Now())
}
