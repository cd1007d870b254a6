package bridge

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

func TestMain(m *testing.M) {
	if os.Getenv(childSpool) != "" {
		beKilled()
		return
	}
	goleak.VerifyTestMain(m)
}

// rig is a bridge between a log in memory and a fake cluster, all in virtual time.
type rig struct {
	t       *testing.T
	log     *memLog
	net     *kfake.VirtualNetwork
	cluster *kfake.Cluster
	brokers []string
	b       *Bridge
	ran     chan struct{}
	next    map[string]int                                                    // by client: number of its next record
	dial    func(ctx context.Context, network, host string) (net.Conn, error) // nil is net's
	source  func() Log                                                        // nil is log
	await   map[string]Await                                                  // nobody waits when nil
	handler slog.Handler                                                      // of the log, nil for what BRIDGE_TEST_LOG says
}

func newRig(t *testing.T, l *memLog, opts ...kfake.Opt) *rig {
	r := &rig{t: t, log: l, net: new(kfake.VirtualNetwork), next: make(map[string]int)}
	r.startCluster(opts...)
	return r
}

// startCluster starts the brokers, always on the same ports.
func (r *rig) startCluster(opts ...kfake.Opt) {
	r.t.Helper()
	opts = append([]kfake.Opt{kfake.Ports(9001, 9002, 9003), kfake.ListenFn(r.net.Listen)}, opts...)
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.cluster, r.brokers = c, c.ListenAddrs()
}

func (r *rig) logger() *slog.Logger {
	if r.handler != nil {
		return slog.New(r.handler)
	}
	if os.Getenv("BRIDGE_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// start builds a bridge and runs it.
func (r *rig) start(cfg Config) *Bridge {
	r.t.Helper()
	if len(cfg.Upstreams) == 0 {
		// Not zstd: the decoder of the consumer has a finalizer, which runs outside of the bubble. Not lz4: the race detector
		// looks at its whole table each time.
		cfg.Upstreams = []kafka.Config{{Name: "main", Brokers: r.brokers, Compression: "snappy"}}
	}
	dial := r.dial
	if dial == nil {
		dial = r.net.DialContext
	}
	source := Log(r.log)
	if r.source != nil {
		source = r.source()
	}
	b, err := New(context.Background(), cfg, Options{Log: source, GatewayID: "gw1", Logger: r.logger(), Dial: dial, Await: r.await})
	if err != nil {
		r.t.Fatal(err)
	}
	r.b, r.ran = b, make(chan struct{})
	go func() {
		defer close(r.ran)
		if err := b.Run(context.Background()); err != nil && !errors.Is(err, ErrClosed) { // Close may come before it
			r.t.Error(err)
		}
	}()
	return b
}

func (r *rig) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.b.Close(ctx); err != nil {
		r.t.Error(err)
	}
	<-r.ran
}

func (r *rig) end() {
	r.stop()
	r.cluster.Close()
}

// publish adds n records of each of some clients, numbered per client, spread over the partitions of stream default.
func (r *rig) publish(topic func(client int) string, clients, n int) {
	parts := len(r.log.streams["default"])
	for range n {
		for c := range clients {
			id := "c" + strconv.Itoa(c)
			r.log.add("default", c%parts, spool.Record{
				Topic: topic(c), ClientID: id, QoS: 1, Payload: binary.BigEndian.AppendUint64(nil, uint64(r.next[id])),
			})
			r.next[id]++
		}
	}
}

func oneTopic(topic string) func(int) string { return func(int) string { return topic } }

// consume reads everything that the cluster has of some topics.
func (r *rig) consume(topics ...string) []*kgo.Record {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.Dialer(r.net.DialContext), kgo.ConsumeTopics(topics...), kgo.FetchMaxWait(time.Second))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	want := int64(0)
	for _, topic := range topics {
		for _, p := range r.cluster.PartitionInfos(topic) {
			want += p.HighWatermark - p.LogStartOffset
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for int64(len(out)) < want {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			r.t.Fatalf("%d of %d records: %v", len(out), want, err)
		}
		out = append(out, fs.Records()...)
	}
	return out
}

// tally is what came of the numbered records.
type tally struct{ missing, doubled, reordered int }

func (r *rig) tally(records []*kgo.Record) tally {
	var out tally
	seen := make(map[string]map[uint64]int)
	highest := make(map[string]uint64)
	for _, rec := range records {
		client, n := string(rec.Key), binary.BigEndian.Uint64(rec.Value)
		if seen[client] == nil {
			seen[client] = make(map[uint64]int)
		}
		if seen[client][n]++; seen[client][n] > 1 {
			out.doubled++
			continue
		}
		if n < highest[client] {
			out.reordered++
		}
		highest[client] = max(highest[client], n)
	}
	for client, n := range r.next {
		out.missing += n - len(seen[client])
	}
	return out
}

// complete fails the test unless every record came once and in order.
func (r *rig) complete(topics ...string) {
	r.t.Helper()
	if got := r.tally(r.consume(topics...)); got != (tally{}) {
		r.t.Errorf("records %+v, want every one once and in order", got)
	}
}

// until waits for a condition, in virtual time.
func (r *rig) until(what string, limit time.Duration, cond func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %v: %s\nhealth %+v\nstats %+v", limit, what, r.b.Health(), r.b.Stats())
		}
	}
}

// drained waits until the routes have delivered everything.
func (r *rig) drained(limit time.Duration) {
	r.t.Helper()
	r.until("everything delivered", limit, func() bool {
		for _, s := range r.b.Stats() {
			if s.Lag > 0 {
				return false
			}
		}
		return true
	})
}

func oneRoute(route RouteConfig) Config {
	if route.Name == "" {
		route.Name = "all"
	}
	return Config{Routes: []RouteConfig{route}}
}

func TestRouteDeliversWithKeyHeadersAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(3, "telemetry"))
		defer r.end()
		at := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
		r.log.add("default", 1, spool.Record{
			Topic: "plant/7/temp", ClientID: "pump-7", QoS: 2, Retain: true, Payload: []byte("21.5"), ReceivedAt: at.UnixNano(),
			Properties: &spool.Properties{
				PayloadFormat: 1, HasPayloadFormat: true, ContentType: "text/plain", ResponseTopic: "re/7", CorrelationData: []byte{0, 1},
				User: []spool.UserProperty{{Name: "a", Value: "1"}, {Name: "b", Value: "2"}, {Name: "a", Value: "3"}, {Name: "forebay.id", Value: "forged"}},
			},
		})
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.drained(10 * time.Second)
		records := r.consume("telemetry")
		if len(records) != 1 {
			t.Fatalf("%d records, want 1", len(records))
		}
		rec := records[0]
		if string(rec.Key) != "pump-7" || string(rec.Value) != "21.5" || !rec.Timestamp.Equal(at) {
			t.Errorf("key %q value %q time %v, want pump-7 21.5 %v", rec.Key, rec.Value, rec.Timestamp, at)
		}
		var headers []string
		for _, h := range rec.Headers {
			headers = append(headers, h.Key+"="+string(h.Value))
		}
		want := "mqtt.topic=plant/7/temp mqtt.client_id=pump-7 mqtt.qos=2 mqtt.retain=true forebay.id=gw1/default/1/0 " +
			"mqtt.payload_format=1 content-type=text/plain mqtt.response_topic=re/7 mqtt.correlation_data=\x00\x01 " +
			"a=1 b=2 a=3 user.forebay.id=forged"
		if got := strings.Join(headers, " "); got != want {
			t.Errorf("headers\n %q, want\n %q", got, want)
		}
		if got := r.log.cursors["route/all"].Position(1); got != 1 {
			t.Errorf("cursor at %d, want 1", got)
		}
	})
}

func TestManyTopicsCompleteAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var topics []string
		for i := range 5 {
			topics = append(topics, fmt.Sprintf("telemetry.l%d", i))
		}
		r := newRig(t, newMemLog(map[string]int{"default": 3}))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 4}}))
		for range 20 {
			r.publish(func(c int) string { return fmt.Sprintf("site/l%d/x", c%5) }, 30, 50)
			time.Sleep(10 * time.Millisecond)
		}
		r.drained(time.Minute)
		r.complete(topics...)
		if s := r.b.Stats()[0]; s.Sent != 30_000 || s.DetachedLanes != 0 || s.BufferedRecords != 0 {
			t.Errorf("stats %+v, want 30000 sent and nothing left", s)
		}
	})
}

// request sends an admin request to the cluster.
func (r *rig) request(req kmsg.Request) {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.Dialer(r.net.DialContext))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	if _, err := cl.Request(context.Background(), req); err != nil {
		r.t.Fatal(err)
	}
}

// completeByTime is complete for a topic whose keys have moved to other partitions: records of a client are put in the order
// of their partition's offsets, and the numbers of a partition must not overlap with those of another one.
func (r *rig) completeByTime(topic string) {
	r.t.Helper()
	if got := r.tally(byTime(r.consume(topic))); got != (tally{}) {
		r.t.Errorf("records %+v, want every one once and in order", got)
	}
}

// byTime puts each client's records in the order of the partitions that they were in, one after the other.
func byTime(records []*kgo.Record) []*kgo.Record {
	type place struct {
		client    string
		partition int32
	}
	first := make(map[place]uint64)
	of := func(rec *kgo.Record) place { return place{string(rec.Key), rec.Partition} }
	for _, rec := range records {
		n := binary.BigEndian.Uint64(rec.Value)
		if lowest, ok := first[of(rec)]; !ok || n < lowest {
			first[of(rec)] = n
		}
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return cmp.Compare(first[of(a)], first[of(b)]) })
	return records
}

// noise does not compress: a broker's limit counts compressed bytes.
func noise(n int) string { return noiseOf(1, n) }

func noiseOf(seed byte, n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return string(b)
}

// consumeCommitted reads everything of some topics that is committed, up to their ends.
func (r *rig) consumeCommitted(topics ...string) []*kgo.Record {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.Dialer(r.net.DialContext), kgo.ConsumeTopics(topics...), kgo.FetchMaxWait(time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	left := make(map[string]int64)
	for _, topic := range topics {
		for _, p := range r.cluster.PartitionInfos(topic) {
			if p.HighWatermark > 0 {
				left[fmt.Sprint(topic, p.Partition)] = p.HighWatermark - 1
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for len(left) > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			r.t.Fatalf("%d records, left %v: %v", len(out), left, err)
		}
		fs.EachRecord(func(rec *kgo.Record) {
			if last, ok := left[fmt.Sprint(rec.Topic, rec.Partition)]; ok && rec.Offset >= last {
				delete(left, fmt.Sprint(rec.Topic, rec.Partition))
			}
			if !rec.Attrs.IsControl() {
				out = append(out, rec)
			}
		})
	}
	return out
}
