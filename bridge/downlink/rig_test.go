package downlink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memLog is log and front in memory. What it accepts is durable at once.
type memLog struct {
	mu      sync.Mutex
	records []spool.Record
	letters []spool.Record
	state   map[string]map[string][]byte
	full    map[string]bool         // by MQTT topic: there is no room
	refuse  func(spool.Entry) error // of the front
}

func newMemLog() *memLog {
	return &memLog{state: make(map[string]map[string][]byte), full: make(map[string]bool)}
}

func (l *memLog) Append(_ context.Context, e spool.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Record != nil && l.full[e.Record.Topic] {
		return spool.ErrFull
	}
	for _, c := range e.Changes {
		if l.state[c.Space] == nil {
			l.state[c.Space] = make(map[string][]byte)
		}
		if c.Value == nil {
			delete(l.state[c.Space], c.Key)
		} else {
			l.state[c.Space][c.Key] = slices.Clone(c.Value)
		}
	}
	switch {
	case e.Record != nil && e.Stream == "dead":
		l.letters = append(l.letters, *e.Record)
	case e.Record != nil:
		e.Record.Offset = spool.Offset(len(l.records))
		l.records = append(l.records, *e.Record)
	}
	if e.Done != nil {
		e.Done.Durable(e.Record, nil)
	}
	return nil
}

func (l *memLog) Publish(ctx context.Context, e spool.Entry) error {
	l.mu.Lock()
	refuse := l.refuse
	l.mu.Unlock()
	if refuse != nil {
		if err := refuse(e); err != nil {
			return err
		}
	}
	return l.Append(ctx, e)
}

func (l *memLog) Load(space string, fn func(key string, value []byte) error) error {
	l.mu.Lock()
	entries := maps.Clone(l.state[space])
	l.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		if err := fn(k, entries[k]); err != nil {
			return err
		}
	}
	return nil
}

func (l *memLog) setFull(topic string, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full[topic] = full
}

func (l *memLog) all() []spool.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

func (l *memLog) dead() []spool.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.letters)
}

// clone is the log as another process finds it after a crash.
func (l *memLog) clone() *memLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newMemLog()
	c.records, c.letters = slices.Clone(l.records), slices.Clone(l.letters)
	for space, kv := range l.state {
		c.state[space] = maps.Clone(kv)
	}
	return c
}

// rig is an engine between a fake cluster and a log in memory, in virtual time.
type rig struct {
	t       *testing.T
	log     *memLog
	net     *kfake.VirtualNetwork
	cluster *kfake.Cluster
	client  *kafka.Client
	admin   *kadm.Client
	cl      *kgo.Client
	e       *Engine
	ran     chan struct{}
}

func newRig(t *testing.T, opts ...kfake.Opt) *rig {
	t.Helper()
	r := &rig{t: t, log: newMemLog(), net: new(kfake.VirtualNetwork)}
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.Ports(9001, 9002, 9003), kfake.ListenFn(r.net.Listen)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	r.cluster = c
	r.client, err = kafka.New(kafka.Config{Name: "main", Brokers: c.ListenAddrs(), Compression: "snappy"}, kafka.Options{GatewayID: "gw1", Dial: r.net.DialContext})
	if err != nil {
		t.Fatal(err)
	}
	r.cl, err = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.Dialer(r.net.DialContext), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.ProducerBatchCompression(kgo.SnappyCompression()))
	if err != nil {
		t.Fatal(err)
	}
	r.admin = kadm.NewClient(r.cl)
	return r
}

func (r *rig) logger() *slog.Logger {
	if os.Getenv("BRIDGE_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func defaults(cfgs []Config) []Config {
	out := make([]Config, len(cfgs))
	for i, c := range cfgs {
		out[i] = c.WithDefaults("main")
	}
	return out
}

func (r *rig) start(cfgs ...Config) {
	r.t.Helper()
	r.startOn(r.log, r.log, cfgs...)
}

func (r *rig) startOn(log Log, front Front, cfgs ...Config) {
	r.t.Helper()
	cfgs = defaults(cfgs)
	for _, c := range cfgs {
		if err := c.Validate([]string{"main"}, true); err != nil {
			r.t.Fatal(err)
		}
	}
	e, err := New(cfgs, Options{
		Log: log, Front: front, GatewayID: "gw1", DeadLetters: "dead", Logger: r.logger(),
		Upstream: func(string) *kafka.Client { return r.client },
		Bury: func(l Letter) (*spool.Record, error) {
			return &spool.Record{Topic: "dead/" + l.Reason, Payload: l.Record.Value}, nil
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.e, r.ran = e, make(chan struct{})
	go func() {
		defer close(r.ran)
		if err := e.Run(context.Background()); err != nil && !errors.Is(err, ErrClosed) {
			r.t.Error(err)
		}
	}()
}

func (r *rig) stop() {
	r.t.Helper()
	if err := r.e.Close(context.Background()); err != nil {
		r.t.Error(err)
	}
	<-r.ran
}

func (r *rig) end() {
	r.stop()
	r.cl.Close()
	r.client.Close()
	r.cluster.Close()
}

// produce writes numbered values to a partition: n, n+1, and so on.
func (r *rig) produce(topic string, partition int32, from, n int) {
	r.t.Helper()
	var recs []*kgo.Record
	for i := range n {
		recs = append(recs, &kgo.Record{Topic: topic, Partition: partition, Key: fmt.Append(nil, "p", partition), Value: fmt.Append(nil, from+i)})
	}
	r.write(recs...)
}

func (r *rig) write(recs ...*kgo.Record) {
	r.t.Helper()
	if err := r.cl.ProduceSync(context.Background(), recs...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			info := []Info{}
			for _, d := range r.e.all() {
				info = append(info, d.info(time.Now()))
			}
			r.t.Fatalf("not in time: %s; %d records, %d letters\n%+v", what, len(r.log.all()), len(r.log.dead()), info)
		}
	}
}

func (r *rig) untilRecords(n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d records", n), func() bool { return len(r.log.all()) >= n })
}

// inOrder fails the test unless every topic has the numbers from 0 on, each once and in order, n in all.
func (r *rig) inOrder(n int) {
	r.t.Helper()
	next := make(map[string]int)
	all := r.log.all()
	for _, rec := range all {
		if got := string(rec.Payload); got != fmt.Sprint(next[rec.Topic]) {
			r.t.Fatalf("topic %s has %s where %d has to come", rec.Topic, got, next[rec.Topic])
		}
		next[rec.Topic]++
	}
	if len(all) != n {
		r.t.Errorf("%d records, want %d", len(all), n)
	}
}

func (r *rig) info(name string) Info {
	r.t.Helper()
	i, err := r.e.Show(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return i
}

func commands() Config {
	return Config{Name: "down", Topics: []string{"commands"}, Topic: "cmd/${topic}/${key}", From: FromBeginning}
}
