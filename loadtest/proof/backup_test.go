package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// twice has one route of each delivery.
const twice = `
gateway: {id: proof, data_dir: %s, stop_timeout: 20s}
admin: {address: %s}
mqtt:
  listeners:
    - {name: tcp, type: tcp, address: "%s"}
spool:
  max_size: 1GiB
  min_free: 1MiB
%s
bridge:
  upstreams:
    - {name: kafka, brokers: ["%s"]}
  routes:
    - {name: least, topic: least}
    - {name: once, topic: once, delivery: exactly_once}
`

// command runs forebay and returns what it prints.
func (g *gateway) command(args ...string) string {
	g.t.Helper()
	cmd := exec.Command(binary, append(args, "--config", g.config)...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("forebay %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// delivery is one record of a Kafka topic.
type delivery struct {
	id, payload string
	late        bool // it is behind the ends that were asked for
}

// deliveries reads a topic up to its end, each partition in its order.
func deliveries(t *testing.T, k *kafka, topic string, ends map[int32]int64) (out []delivery) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.addr), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	left := endsOf(t, k, topic)
	for p, end := range left {
		if end == 0 {
			delete(left, p)
		}
	}
	// A partition may end in the mark of a transaction, which nobody is given: what comes later than a moment is not waited for.
	for len(left) > 0 {
		quiet, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		fetches := cl.PollFetches(quiet)
		done := quiet.Err() != nil
		cancel()
		fetches.EachRecord(func(rec *kgo.Record) {
			d := delivery{payload: string(rec.Value), late: ends != nil && rec.Offset >= ends[rec.Partition]}
			for _, h := range rec.Headers {
				if h.Key == "forebay.id" {
					d.id = string(h.Value)
				}
			}
			out = append(out, d)
			if rec.Offset+1 >= left[rec.Partition] {
				delete(left, rec.Partition)
			}
		})
		if done {
			break
		}
	}
	return out
}

func endsOf(t *testing.T, k *kafka, topic string) map[int32]int64 {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listed, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	ends := make(map[int32]int64)
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends
}

// TestKafkaBackupUnderLoadRestoredElsewhere publishes without a pause while a gateway is backed up, again and again, and killed in between.
// The last backup is restored on a second directory. There is every message that was acknowledged before it began; sessions that were away
// get theirs, retained messages are there, and routes go on: nothing is lost, nothing that was delivered well before the backup comes again,
// not even while the restored gateway gives offsets to new messages that the first one had given to others, which Kafka has.
func TestKafkaBackupUnderLoadRestoredElsewhere(t *testing.T) {
	rounds, devices := 1, 8
	if long() {
		rounds, devices = 10, 20
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	k := newApacheKafka(t)
	topics := []string{"least", "once"}
	for _, topic := range topics {
		makeTopicOf(t, k, topic)
	}
	root := t.TempDir()
	url := "file://" + filepath.Join(root, "backups")
	made := func(name string) *gateway {
		return newGatewayWith(t, func(admin, mqtt string) string {
			return fmt.Sprintf(twice, filepath.Join(root, name), admin, mqtt, small, k.addr)
		})
	}
	a := made("first")
	a.start()
	a.awaitReady()
	away := []*rawSubscriber{subscribeRaw(t, a, "away-1", "drill/#", 1), subscribeRaw(t, a, "away-2", "drill/#", 2)}
	fleet := machines(t, a, "m", devices)
	more := func(all []*machine, n int) {
		t.Helper()
		var want []int64
		for _, m := range all {
			want = append(want, m.acked.Load()+int64(n))
		}
		for i, m := range all {
			for began := time.Now(); m.acked.Load() < want[i]; time.Sleep(5 * time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatalf("%s is at %d, want %d", m.id, m.acked.Load(), want[i])
				}
			}
		}
	}
	more(fleet, 50)
	for _, s := range away {
		s.stop()
	}
	for round := range rounds {
		more(fleet, 50)
		out := a.command("spool", "backup", url, "--keep", "2")
		t.Logf("round %d: %s", round, strings.TrimSpace(out))
		more(fleet, random.IntN(50))
		a.kill()
		a.start()
		a.awaitReady()
		if round%3 == 2 { // with a backlog
			k.stop()
			more(fleet, 100)
			k.start()
		}
	}
	more(fleet, 50)
	delivered := make(map[string]map[string]bool)
	for _, topic := range topics {
		delivered[topic] = make(map[string]bool)
		for _, d := range deliveries(t, k, topic, nil) {
			delivered[topic][d.payload] = true
		}
	}
	time.Sleep(2 * time.Second) // cursors are stored by then
	acked := make(map[string]int)
	for _, m := range fleet {
		acked[m.id] = int(m.acked.Load())
	}
	t.Log(strings.TrimSpace(a.command("spool", "backup", url, "--keep", "2", "--verify")))
	more(fleet, 150)
	for _, m := range fleet {
		m.stop()
	}
	// Kafka has what came after the backup, too.
	last := fmt.Sprintf("%s/%d", fleet[0].id, fleet[0].acked.Load()-1)
	for began := time.Now(); !slices.ContainsFunc(deliveries(t, k, "once", nil), func(d delivery) bool { return d.payload == last }); {
		if time.Since(began) > time.Minute {
			t.Fatalf("%s is not delivered", last)
		}
	}
	a.kill()
	ends := map[string]map[int32]int64{"least": endsOf(t, k, "least"), "once": endsOf(t, k, "once")}
	k.stop()

	b := made("second")
	t.Log(strings.TrimSpace(b.command("spool", "restore", url)))
	b.start()
	b.awaitReady()
	fresh := machines(t, b, "n", devices)
	more(fresh, 250)
	b.kill()
	b.start()
	b.awaitReady()
	for _, s := range away {
		s.connect(b)
	}
	more(fresh, 50)
	for _, m := range fresh {
		m.stop()
	}
	k.start()

	log := newSpoolLog(t, b.command("spool", "dump", "default", "--admin", b.admin, "-o", "json"))
	for _, m := range fleet {
		if n := log.last[m.id] + 1; n < acked[m.id] || n > int(m.acked.Load())+1 {
			t.Errorf("%s: %d messages were acknowledged before the backup, %d in all, and %d are there", m.id, acked[m.id], m.acked.Load(), n)
		}
	}
	for _, m := range fresh {
		if n := log.last[m.id] + 1; n < int(m.acked.Load()) {
			t.Errorf("%s: %d messages were acknowledged, %d are there", m.id, m.acked.Load(), n)
		}
	}
	for _, s := range away {
		log.wantIn(t, s)
	}
	log.wantRetained(t, subscribeRaw(t, b, "late", "drill/#", 1))
	for _, topic := range topics {
		log.wantDelivered(t, k, topic, ends[topic], delivered[topic])
	}
}
