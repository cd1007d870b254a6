package bridge

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// The child of a kill loop: a spool, a bridge, and devices that publish numbered records until it is killed. A record and
// its number become durable together, so that the next child goes on where this one was.
const (
	childSpool   = "FOREBAY_BRIDGE_CHILD" // directory of its spool; makes a test binary the child
	childBrokers = "FOREBAY_BRIDGE_BROKERS"
	childAfter   = "FOREBAY_BRIDGE_AFTER_CRASH"
	childOnce    = "FOREBAY_BRIDGE_DELIVERY"
	childDrain   = "FOREBAY_BRIDGE_DRAIN"  // publish nothing, deliver everything, end
	childFenced  = "FOREBAY_BRIDGE_FENCED" // tell of the first record when every partition has fenced what was before
	childTopic   = "FOREBAY_BRIDGE_TOPIC"  // what the Kafka topics begin with

	killClients = 24
	killTopics  = 3
	killSpace   = "kill-test"
)

func beKilled() {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	cfg := spool.DefaultConfig()
	cfg.Dir, cfg.MaxSize, cfg.MinFree = os.Getenv(childSpool), 4<<30, 0
	cfg.Journal.FileSize, cfg.Segment.MaxSize = 8<<20, 8<<20
	cfg.Streams = []spool.StreamConfig{{Name: "default", Partitions: 4}, {Name: "dead", Partitions: 1}}
	s, err := spool.Open(cfg, spool.Options{})
	fail(err)
	next := make([]uint64, killClients)
	poison := uint64(0)
	fail(s.Load(killSpace, func(key string, value []byte) error {
		if key == "poison" {
			poison = binary.BigEndian.Uint64(value)
			return nil
		}
		c, err := strconv.Atoi(key)
		next[c] = binary.BigEndian.Uint64(value) + 1
		return err
	}))
	kcfg := Config{
		Upstreams: []kafka.Config{{Name: "main", Brokers: []string{os.Getenv(childBrokers)}, Compression: "lz4"}},
		Routes: []RouteConfig{{
			Name: "all", Topic: os.Getenv(childTopic) + ".${topic[0]}", CreateTopics: &kafka.Create{Partitions: 2, Configs: []string{"max.message.bytes=20000"}},
			AfterCrash: os.Getenv(childAfter), Delivery: os.Getenv(childOnce),
		}},
		DeadLetterStream: "dead",
	}
	standby := os.Getenv(childStandby)
	if standby != "" {
		kcfg.Upstreams[0].Name = "plant"
		kcfg.Upstreams = append(kcfg.Upstreams, kafka.Config{Name: "cloud", Brokers: []string{standby}, Compression: "lz4"})
		kcfg.Routes[0].Upstream = "plant"
		kcfg.Routes[0].Failover = Failover{To: []string{"cloud"}, After: unit.Duration(5 * time.Second), FailBackAfter: unit.Duration(3 * time.Second)}
	}
	live := os.Getenv(childLive) != ""
	if live {
		route := &kcfg.Routes[0]
		route.CreateTopics.Configs = append(route.CreateTopics.Configs, "message.timestamp.type=LogAppendTime")
		if route.Drain, route.LiveAfter = LiveFirst, unit.Duration(2*time.Second); os.Getenv(childDrain) == "" {
			route.Rate, route.BacklogRate = 1<<19, 1<<17
		}
	}
	b, err := New(context.Background(), kcfg, Options{Log: FromSpool(s), GatewayID: "gw", Now: s.Now, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	fail(err)
	started := time.Now()
	go b.Run(context.Background())
	fmt.Println("ready")
	switch {
	case standby != "":
		go tell(b)
	case live:
		go tellLive(b)
	}
	if os.Getenv(childDrain) == "" {
		go func() {
			for b.Stats()[0].Sent == 0 || os.Getenv(childFenced) != "" && !fenced(b) {
				time.Sleep(time.Millisecond)
			}
			fmt.Println("first", time.Since(started).Milliseconds(), b.Stats()[0].Found)
		}()
		every := 2 * time.Millisecond
		switch {
		case standby != "": // two clusters
			every = 10 * time.Millisecond
		case live: // what an outage leaves has to last
			every = 25 * time.Millisecond
		}
		for tick := range time.Tick(every) {
			if tick.UnixNano()/2e6%200 == 0 { // too large for its topic
				poison++
				fail(s.Append(context.Background(), spool.Entry{
					Record: &spool.Record{
						Topic: fmt.Sprintf("l%d/x", poison%killTopics), ClientID: "poison", QoS: 1, Payload: []byte(noise(30_000)), ReceivedAt: s.Now().UnixNano(),
					},
					Changes: []spool.Change{{Space: killSpace, Key: "poison", Value: binary.BigEndian.AppendUint64(nil, poison)}},
				}))
			}
			for c := range killClients {
				n := binary.BigEndian.AppendUint64(nil, next[c])
				next[c]++
				fail(s.Append(context.Background(), spool.Entry{
					Record: &spool.Record{
						Topic: fmt.Sprintf("l%d/x", c%killTopics), ClientID: "c" + strconv.Itoa(c), QoS: 1, Payload: append(n, make([]byte, 100)...),
						ReceivedAt: s.Now().UnixNano(),
					},
					Changes: []spool.Change{{Space: killSpace, Key: strconv.Itoa(c), Value: n[:8:8]}},
				}))
			}
		}
	}
	for b.Stats()[0].Lag > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	found := b.Stats()[0].Found
	dead := make(map[string]bool)
	for q := (DeadLetterQuery{}); ; {
		page, err := b.DeadLetters().List(ctx, q)
		fail(err)
		for _, l := range page.Letters {
			dead[fmt.Sprint(l.ClientID, l.Partition, l.Offset)] = true
		}
		if q.At = page.Next; q.At == "" {
			break
		}
	}
	if uint64(len(dead)) != poison {
		fail(fmt.Errorf("%d records are dead letters, %d are poison", len(dead), poison))
	}
	fail(b.Close(ctx))
	fail(s.Close())
	out, _ := json.Marshal(next)
	fmt.Println("found", found)
	fmt.Println("drained", string(out))
}

// fenced reports whether all feeders of b know that nobody else commits.
func fenced(b *Bridge) bool {
	return !slices.ContainsFunc(b.feeders(), func(f *feeder) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.opened
	})
}

// killing is a kill loop.
type killing struct {
	t       *testing.T
	brokers []string
	topic   string // what the Kafka topics begin with
	once    string // delivery
	after   string // after_crash
	rounds  int
	during  func(round int) // runs while the child delivers and is killed; nil is nothing
	between func(round int)

	dir     string
	found   uint64        // records that a restart has found in Kafka
	slowest time.Duration // until the first record after a restart
	early   int           // kills before that
	waited  time.Duration // by then, at most
}

// child starts one on a directory.
func (k *killing) child(dir string, more ...string) (*exec.Cmd, *bufio.Scanner) {
	k.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childSpool+"="+dir, childBrokers+"="+strings.Join(k.brokers, ","), childAfter+"="+k.after,
		childOnce+"="+k.once, childTopic+"="+k.topic)
	cmd.Env = append(cmd.Env, more...)
	cmd.Stderr = io.Discard
	if os.Getenv("BRIDGE_TEST_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = cmd.Process.Kill() })
	s := bufio.NewScanner(out)
	if !s.Scan() || s.Text() != "ready" {
		k.t.Fatalf("child says %q", s.Text())
	}
	return cmd, s
}

// run kills children and returns what came of their records.
func (k *killing) run() (got tally, total int) {
	t := k.t
	t.Helper()
	if k.topic == "" {
		k.topic = "kill"
	}
	k.dir = t.TempDir()
	for round := range k.rounds {
		cmd, s := k.child(k.dir)
		var reading sync.WaitGroup
		first := make(chan struct{})
		reading.Go(func() {
			defer close(first)
			for s.Scan() {
				var ms int64
				var n uint64
				if _, err := fmt.Sscanf(s.Text(), "first %d %d", &ms, &n); err != nil {
					t.Errorf("child says %q", s.Text())
					continue
				}
				k.found += n
				k.slowest = max(k.slowest, time.Duration(ms)*time.Millisecond)
				first <- struct{}{}
			}
		})
		var fault sync.WaitGroup
		soon := time.Duration(200+rand.IntN(10_000)) * time.Millisecond
		select { // sometimes before anything was delivered
		case <-first:
			if k.during != nil {
				fault.Go(func() { k.during(round) })
				time.Sleep(time.Duration(rand.IntN(4000)) * time.Millisecond)
			}
			time.Sleep(time.Duration(rand.IntN(1200)) * time.Millisecond)
		case <-time.After(soon):
			k.early++
			k.waited = max(k.waited, soon)
			go func() {
				for range first {
				}
			}()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		reading.Wait()
		fault.Wait()
		if k.between != nil {
			k.between(round)
		}
	}
	return k.drain(k.dir)
}

// drain has a child deliver what is left in dir, and counts.
func (k *killing) drain(dir string) (got tally, total int) {
	t := k.t
	t.Helper()
	cmd, s := k.child(dir, childDrain+"=1")
	var next []int
	for s.Scan() {
		if rest, ok := strings.CutPrefix(s.Text(), "drained "); ok {
			if err := json.Unmarshal([]byte(rest), &next); err != nil {
				t.Fatal(err)
			}
		} else if rest, ok := strings.CutPrefix(s.Text(), "found "); ok {
			n, _ := strconv.ParseUint(rest, 10, 64)
			k.found += n
		} else {
			t.Fatalf("child says %q", s.Text())
		}
	}
	if err := cmd.Wait(); err != nil || len(next) != killClients {
		t.Fatalf("child ended with %v", err)
	}
	r := &rig{t: t, brokers: k.brokers, next: make(map[string]int)}
	for c, n := range next {
		r.next["c"+strconv.Itoa(c)] = n
		total += n
	}
	return r.tally(readAll(t, k.brokers, k.topic)), total
}

// readAll reads every committed record of the topics of a kill loop.
func readAll(t *testing.T, brokers []string, topic string) []*kgo.Record {
	t.Helper()
	var names []string
	for i := range killTopics {
		names = append(names, fmt.Sprintf("%s.l%d", topic, i))
	}
	records := readCommitted(t, brokers, names...)
	for _, r := range records {
		r.Value = r.Value[:8]
	}
	return records
}

// readCommitted reads every committed record of some topics.
func readCommitted(t *testing.T, brokers []string, names ...string) []*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(names...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, names...)
	if err != nil {
		t.Fatal(err)
	}
	left := make(map[string]int64) // by partition: the last offset; a control record where there are transactions
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[fmt.Sprint(o.Topic, o.Partition)] = o.Offset - 1
		}
	})
	var out []*kgo.Record
	for len(left) > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			t.Fatalf("%d records, left %v: %v", len(out), left, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			p := fmt.Sprint(r.Topic, r.Partition)
			if last, ok := left[p]; ok && r.Offset >= last {
				delete(left, p)
			}
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out
}

func killRounds(short, long int) int {
	if os.Getenv("FOREBAY_CRASH") == "long" {
		return long
	}
	return short
}

// kill -9 of the gateway under load, a broker in another process, real spool, real time.
func TestKillLosesAndDoublesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	c, err := kfake.NewCluster()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k := killing{t: t, brokers: c.ListenAddrs(), after: ReadBack, rounds: killRounds(6, 50)}
	k.complete()
}

// complete fails the test unless every record came once and in order.
func (k *killing) complete() {
	k.t.Helper()
	got, total := k.run()
	k.t.Logf("%d kills of the gateway, %d records: %+v; %d known from kafka, first delivery after at most %v; %d kills came before one, after at most %v",
		k.rounds, total, got, k.found, k.slowest, k.early, k.waited)
	if got != (tally{}) {
		k.t.Errorf("records %+v, want every one once and in order", got)
	}
}

// The control: without reading back the same kills double what was in the air, and lose nothing.
func TestKillWithoutReadingBackDoubles(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	c, err := kfake.NewCluster()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k := killing{t: t, brokers: c.ListenAddrs(), after: Resend, rounds: killRounds(6, 20)}
	got, total := k.run()
	t.Logf("%d kills, %d records: %+v", k.rounds, total, got)
	if got.missing != 0 || got.doubled == 0 {
		t.Errorf("records %+v, want some doubled: otherwise the test above shows nothing", got)
	}
}

// The same with transactions, brokers killed with transactions open, and what reads only what is committed.
func TestKafkaExactlyOnceKillLoop(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})
	k := killing{t: t, brokers: c.Brokers(), once: ExactlyOnce, rounds: killRounds(5, 50), between: killNode(t, c, 3)}
	k.complete()
}

func TestKafkaKillLoop(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})
	k := killing{t: t, brokers: c.Brokers(), after: ReadBack, rounds: killRounds(5, 50), between: killNode(t, c, 3)}
	k.complete()
}

// killNode kills the only broker too, in every fifth round.
func killNode(t *testing.T, c *kafkatest.Cluster, in int) func(round int) {
	return func(round int) {
		if round%5 != in {
			return
		}
		c.Node(0).Kill()
		if err := c.Node(0).Start(); err != nil {
			t.Fatal(err)
		}
	}
}
