package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const downConfiguration = `
gateway: {id: proof, data_dir: %s, stop_timeout: 20s}
admin: {address: %s}
mqtt:
  listeners:
    - {name: tcp, type: tcp, address: %s}
spool:
  max_size: 1GiB
  min_free: 1MiB
%s
bridge:
  upstreams:
    - {name: kafka, brokers: ["%s"]}
  routes:
    - {name: up, topic: telemetry}
  downlinks:
    - {name: down, topics: [commands, telemetry], topic: "cmd/${key}", qos: "2", from: beginning}
`

// producer writes numbered commands for as long as it is let.
type producer struct {
	t    *testing.T
	cl   *kgo.Client
	quit chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	keys   int
	next   []int // by key
	poison int
}

// Keys keep their partitions when there are more of them.
func (p *producer) run() {
	for n := 0; ; n++ {
		select {
		case <-p.quit:
			return
		case <-time.After(10 * time.Millisecond):
		}
		var recs []*kgo.Record
		p.mu.Lock()
		for key := range p.keys {
			for range 2 {
				recs = append(recs, p.recordLocked("commands", key))
			}
		}
		if n%20 == 0 {
			p.poison++
			recs = append(recs, &kgo.Record{Topic: "commands", Partition: int32(n % p.keys), Key: []byte("a/#"), Value: []byte("poison")})
		}
		p.mu.Unlock()
		if err := p.cl.ProduceSync(context.Background(), recs...).FirstErr(); err != nil {
			p.t.Errorf("produce: %v", err)
			return
		}
	}
}

func (p *producer) recordLocked(topic string, key int) *kgo.Record {
	for len(p.next) <= key {
		p.next = append(p.next, 0)
	}
	r := &kgo.Record{Topic: topic, Partition: int32(key), Key: fmt.Append(nil, "k", key), Value: fmt.Appendf(nil, "k%d %d", key, p.next[key])}
	p.next[key]++
	return r
}

func (p *producer) total() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.next {
		n += m
	}
	return n
}

// transactor writes numbered commands in transactions, of which it commits the half, aborts a quarter and leaves a quarter open, as a producer that
// was killed; its successor ends those.
type transactor struct {
	t    *testing.T
	addr string
	quit chan struct{}
	wg   sync.WaitGroup

	mu        sync.Mutex // held where a broker that is killed would leave an outcome unknown
	committed int
	aborted   int
}

const transactional = 6 // partitions that it writes to

func (x *transactor) run() {
	var cl *kgo.Client
	defer func() {
		if cl != nil {
			cl.Close()
		}
	}()
	for n, at := 0, time.Duration(0); ; n++ {
		select {
		case <-x.quit:
			return
		case <-time.After(at):
		}
		at = time.Duration(n%7) * 20 * time.Millisecond
		var err error
		if n%4 == 0 { // the first, or one after a transaction that was left open
			if cl != nil {
				cl.Close()
			}
			if cl, err = kgo.NewClient(kgo.SeedBrokers(x.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID("commander")); err != nil {
				x.t.Error(err)
				return
			}
		}
		if err := x.one(cl, n, at); err != nil {
			x.t.Errorf("transaction %d: %v", n, err)
			return
		}
	}
}

func (x *transactor) one(cl *kgo.Client, n int, open time.Duration) error {
	commit := n%2 == 0
	var recs []*kgo.Record
	for p := range transactional {
		for i := range 3 {
			r := &kgo.Record{Topic: "commands", Partition: int32(p), Key: fmt.Append(nil, "t", p), Value: fmt.Appendf(nil, "aborted %d/%d/%d", n, p, i)}
			if commit {
				r.Value = fmt.Appendf(nil, "t%d %d", p, n/2*3+i)
			}
			recs = append(recs, r)
		}
	}
	x.mu.Lock()
	err := cl.BeginTransaction()
	if err == nil {
		err = cl.ProduceSync(context.Background(), recs...).FirstErr()
	}
	x.mu.Unlock()
	if err != nil {
		return err
	}
	time.Sleep(open) // records of others come behind it meanwhile, and brokers and gateways are killed
	x.mu.Lock()
	defer x.mu.Unlock()
	if !commit {
		x.aborted += len(recs)
	}
	if n%4 == 3 {
		return nil // left open
	}
	if err := cl.EndTransaction(context.Background(), kgo.TransactionEndTry(commit)); err != nil {
		return err
	}
	if commit {
		x.committed += len(recs)
	}
	return nil
}

// counted tells how often the payloads of keys came, and whether the first arrivals of each key were in order.
func counted(payloads []string) (distinct, doubled, reordered int) {
	seen := make(map[string]bool)
	last := make(map[string]int)
	for _, p := range payloads {
		if seen[p] {
			doubled++
			continue
		}
		seen[p] = true
		var n int
		key, number, _ := strings.Cut(p, " ")
		fmt.Sscan(number, &n)
		if n < last[key] {
			reordered++
		}
		last[key] = n
	}
	return len(seen), doubled, reordered
}

// dumped is the payload and topic of each record of a stream of a stopped gateway.
func (g *gateway) dumped(stream string) (lines []map[string]any) {
	g.t.Helper()
	cmd := exec.Command(binary, "spool", "dump", stream, "--config", g.config, "-o", "json")
	cmd.Env = environment()
	out, err := cmd.Output()
	if err != nil {
		g.t.Fatalf("spool dump: %v", err)
	}
	for line := range bytes.Lines(out) {
		var l map[string]any
		if json.Unmarshal(line, &l) == nil && l["topic"] != nil {
			lines = append(lines, l)
		}
	}
	return lines
}

// TestKafkaDownlinkKillLoop kills the gateway, and the broker, while commands come down: none is lost, none is in the spool twice, QoS 2 comes
// once to a subscriber that comes back, in the order of its key. Another program writes commands in transactions: nothing of those that are
// aborted, or left open, comes through. A route sends everything that is published up to a topic that the
// downlink reads too: nothing goes round. Bad records are dead letters, once each. The topic gets partitions, and is made anew in the end.
func TestKafkaDownlinkKillLoop(t *testing.T) {
	kills := 4
	if long() {
		kills = 30
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	k := newApacheKafka(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	ctx := t.Context()
	if _, err := admin.CreateTopic(ctx, 6, 1, nil, "commands"); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	g := newGatewayWith(t, func(admin, mqtt string) string {
		return fmt.Sprintf(downConfiguration, data, admin, mqtt, small, k.addr)
	})
	g.start()
	g.awaitReady()
	once, least := subscribeRaw(t, g, "once", "cmd/#", 2), subscribeRaw(t, g, "least", "cmd/#", 1)
	publishRaw(t, g, "dev/1", "a", "b", "c") // it goes up, and must not come down
	p := &producer{t: t, cl: cl, quit: make(chan struct{}), keys: 6}
	p.wg.Go(p.run)
	x := &transactor{t: t, addr: k.addr, quit: make(chan struct{})}
	x.wg.Go(x.run)
	stop := sync.OnceFunc(func() {
		close(p.quit)
		p.wg.Wait()
		close(x.quit)
		x.wg.Wait()
		if cl, err := kgo.NewClient(kgo.SeedBrokers(k.addr), kgo.TransactionalID("commander")); err != nil {
			t.Error(err)
		} else { // ends what was left open
			defer cl.Close()
			if _, _, err := cl.ProducerID(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(stop)
	await := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(90 * time.Second); !cond(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %s after 90 s: %d at QoS 2, %d at QoS 1, %d produced", what, len(once.all()), len(least.all()), p.total())
			}
		}
	}
	for round := range kills {
		before := len(once.all())
		await("progress", func() bool { return len(once.all()) > before+200 })
		time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond)
		g.kill()
		if round%10 == 1 {
			x.mu.Lock()
			k.stop() // kill -9 of the broker
			k.start()
			x.mu.Unlock()
		}
		if round == 2 {
			if _, err := admin.UpdatePartitions(ctx, 8, "commands"); err != nil {
				t.Fatal(err)
			}
			await("new partitions, known to the producer", func() bool {
				cl.ForceMetadataRefresh()
				leader, _, err := cl.PartitionLeader("commands", 7)
				return err == nil && leader >= 0
			})
			p.mu.Lock()
			p.keys = 8
			p.mu.Unlock()
		}
		g.start()
		g.awaitReady()
	}
	stop()
	want := p.total() + x.committed
	arrived := func() bool {
		a, _, _ := counted(once.all())
		b, _, _ := counted(least.all())
		return a >= want && b >= want
	}
	await("end of the commands", arrived)

	// Another topic of the same name.
	if _, err := admin.DeleteTopics(ctx, "commands"); err != nil {
		t.Fatal(err)
	}
	await("a topic that can be made again", func() bool {
		r, err := admin.CreateTopic(ctx, 8, 1, nil, "commands")
		return err == nil && r.Err == nil
	})
	cl.PurgeTopicsFromClient("commands")
	var recs []*kgo.Record
	p.mu.Lock()
	for range 100 {
		recs = append(recs, p.recordLocked("commands", 0))
	}
	p.mu.Unlock()
	if err := cl.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	want = p.total() + x.committed
	await("commands of the new topic", arrived)
	time.Sleep(500 * time.Millisecond) // for what comes too often
	g.terminate()

	for _, payload := range slices.Concat(once.all(), least.all()) {
		if strings.HasPrefix(payload, "aborted") {
			t.Fatalf("%q came through: it is of a transaction that was not committed", payload)
		}
	}
	t.Logf("in transactions: %d committed, %d not", x.committed, x.aborted)
	if x.committed == 0 || x.aborted == 0 {
		t.Error("there was no transaction of each kind")
	}
	n, doubled, reordered := counted(once.all())
	t.Logf("%d kills, %d commands: %d at QoS 2, doubled %d, out of order %d", kills, want, n, doubled, reordered)
	if n != want || doubled != 0 || reordered != 0 {
		t.Errorf("QoS 2: %d of %d, doubled %d, out of order %d", n, want, doubled, reordered)
	}
	n, doubled, reordered = counted(least.all())
	t.Logf("at QoS 1: %d, came again after a kill %d, out of order %d", n, doubled, reordered)
	if n != want || reordered != 0 {
		t.Errorf("QoS 1: %d of %d, out of order %d", n, want, reordered)
	}
	inSpool := make(map[string]int)
	for _, l := range g.dumped("default") {
		inSpool[fmt.Sprint(l["payload"])]++
	}
	for payload, times := range inSpool {
		if times != 1 {
			t.Errorf("%s is in the spool %d times", payload, times)
		}
	}
	t.Logf("%d records in the spool", len(inSpool))
	if dead := len(g.dumped("deadletter")); dead != p.poison {
		t.Errorf("%d dead letters of %d bad records", dead, p.poison)
	}
	ends, err := admin.ListEndOffsets(ctx, "telemetry")
	if err != nil {
		t.Fatal(err)
	}
	went := int64(0)
	ends.Each(func(o kadm.ListedOffset) { went += o.Offset })
	if went != 3 {
		t.Errorf("%d records went up, want the 3 of a device", went)
	}
}
