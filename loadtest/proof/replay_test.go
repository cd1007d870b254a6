package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// coldConfiguration stores every segment in a directory as soon as it is sealed, and keeps no local copy.
const coldConfiguration = `
gateway:
  id: proof
  data_dir: %[1]s/data
admin:
  address: %[2]s
mqtt:
  listeners:
    - {name: tcp, type: tcp, address: "%[3]s"}
spool:
  max_size: 4GiB
  min_free: 1MiB
  segment: {max_size: %[5]s, max_age: 2s, codec: none}
bridge:
  upstreams:
    - {name: kafka, brokers: ["%[4]s"]}
  routes:
    - {name: telemetry, topic: telemetry}
tiering:
  url: file://%[1]s/store
  streams:
    - {name: default, keep_local: 1s}
`

// replayed is what forebay replay prints, as far as it is looked at.
type replayed struct {
	ID, State      string
	Sent, Refused  int
	Lost, Bytes    uint64
	Created, Ended time.Time
}

// forebay runs a command on the gateway and reads what it prints as JSON.
func (g *gateway) forebay(args ...string) (r replayed) {
	g.t.Helper()
	cmd := exec.Command(binary, append(args, "--config", g.config, "--output", "json")...)
	cmd.Env = environment()
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		g.t.Fatalf("forebay %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		g.t.Fatalf("forebay %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return r
}

// message is a Kafka record, as far as replays are concerned.
type message struct {
	id, topic, replay string
	at                time.Time
}

// readAll reads a topic up to its end.
func readAll(t *testing.T, k *kafka, topic string) (out []message) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.addr), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	ends.Each(func(o kadm.ListedOffset) { want += o.Offset })
	for int64(len(out)) < want {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("%d of %d records of %s: %v", len(out), want, topic, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			m := message{at: rec.Timestamp}
			for _, h := range rec.Headers {
				switch h.Key {
				case "forebay.id":
					m.id = string(h.Value)
				case "mqtt.topic":
					m.topic = string(h.Value)
				case "forebay.replay":
					m.replay = string(h.Value)
				}
			}
			out = append(out, m)
		})
	}
	return out
}

// local counts the segments of the default stream that have a file in the spool.
func (g *gateway) local(data string) (n int) {
	_ = filepath.WalkDir(filepath.Join(data, "spool"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, "default") && strings.HasSuffix(path, ".db") {
			n++
		}
		return nil
	})
	return n
}

// TestKafkaReplay is the restore drill: messages are published and delivered, all but the active segment go to a store and lose
// their local copies, and a range of time and a filter are replayed to a real Kafka while live traffic goes on: exactly those, and the live
// route neither stops nor sends anything twice. Then everything is replayed once more, with the gateway killed in between.
func TestKafkaReplay(t *testing.T) {
	n, segment, rate := 50_000, "1MiB", "10000/s"
	if long() {
		n, segment, rate = 1_000_000, "16MiB", "5000/s"
	}
	k := newApacheKafka(t)
	for _, topic := range []string{"again", "fast", "killed"} {
		makeTopicOf(t, k, topic)
	}
	dir := t.TempDir()
	g := newGatewayWith(t, func(admin, mqtt string) string {
		return fmt.Sprintf(coldConfiguration, dir, admin, mqtt, k.addr, segment)
	})
	if err := os.Mkdir(filepath.Join(dir, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	g.start()
	g.awaitReady()
	load := fleet.Config{
		Broker: g.mqtt, TopicPrefix: "drill", Devices: 20, Count: n, Mix: fleet.Mix{0, 100, 0}, Payload: 200, Window: 200,
		Kafka: []string{k.addr}, KafkaTopic: []string{"telemetry"}, IDHeader: "forebay.id", Drain: 3 * time.Minute,
	}
	filled := startLoad(t, load)
	<-filled.done
	if filled.err != nil || !filled.r.Verdict.Reconciled {
		t.Fatalf("%v\n%s", filled.err, filled.text())
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		stored, err := filepath.Glob(filepath.Join(dir, "store", "default", "seg", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		local := g.local(filepath.Join(dir, "data"))
		if len(stored) > 0 && local <= 2 {
			t.Logf("%d segments are stored, %d have a local copy", len(stored), local)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d segments are stored, %d have a local copy", len(stored), local)
		}
	}

	truth := readAll(t, k, "telemetry")
	times := make([]time.Time, len(truth))
	for i := range truth {
		times[i] = truth[i].at
	}
	slices.SortFunc(times, time.Time.Compare)
	from, to := times[len(times)/4], times[3*len(times)/4]
	wanted := func(m message) bool { // the record's time is that of reception in milliseconds, and so are the bounds
		device := strings.Split(m.topic, "/")[2]
		return !m.at.Before(from) && m.at.Before(to) && device < "00010"
	}
	want := make(map[string]bool)
	for _, m := range truth {
		if wanted(m) {
			want[m.id] = true
		}
	}
	again := func(topic, rate string) replayed {
		args := []string{
			"replay", "--upstream", "kafka", "--topic", topic, "--rate", rate,
			"--from", from.UTC().Format(time.RFC3339Nano), "--to", to.UTC().Format(time.RFC3339Nano),
		}
		for d := range 10 {
			args = append(args, "--filter", fmt.Sprintf("drill/+/%05d/telemetry", d))
		}
		r := g.forebay(args...)
		took := r.Ended.Sub(r.Created)
		t.Logf("replayed %d of %d records from cold in %v, rate %s: %.0f records/s, %.1f MB/s of payload", r.Sent, n, took.Round(time.Millisecond),
			rate, float64(r.Sent)/took.Seconds(), float64(r.Bytes)/1e6/took.Seconds())
		return r
	}
	live := load
	live.TopicPrefix, live.Count, live.Rate, live.Window = "live", 0, 1000, 50
	var r replayed
	if long() {
		exactly(t, k, "fast", again("fast", "0"), want)
		t.Logf("live alone: %s", p99(t, live, nil))
	}
	t.Logf("live beside the replay: %s", p99(t, live, func() { r = again("again", rate) }))
	exactly(t, k, "again", r, want)
	if t.Failed() {
		return
	}
	killedReplay(t, g, k, truth)
}

// exactly checks what a replay has sent to a topic: what was wanted, each once.
func exactly(t *testing.T, k *kafka, topic string, r replayed, want map[string]bool) {
	t.Helper()
	got := make(map[string]int)
	for _, m := range readAll(t, k, topic) {
		if m.replay != r.ID {
			t.Fatalf("record %s has forebay.replay %q, want %q", m.id, m.replay, r.ID)
		}
		got[m.id]++
	}
	for id, times := range got {
		if !want[id] || times != 1 {
			t.Errorf("record %s came %d times, wanted %v", id, times, want[id])
			break
		}
	}
	if len(got) != len(want) || r.Sent != len(want) || r.Lost != 0 || r.Refused != 0 {
		t.Errorf("got %d records, want %d; %+v", len(got), len(want), r)
	}
}

// killedReplay replays what the first load has published, and kills the gateway in between.
func killedReplay(t *testing.T, g *gateway, k *kafka, truth []message) {
	const kills, partitions = 3, 8
	rate := 5000 // ten seconds of it
	if long() {
		rate = 20_000
	}
	page := rate / 20 // a twentieth of a second of the rate
	want := make(map[string]bool, len(truth))
	for _, m := range truth {
		want[m.id] = true
	}
	id := g.forebay("replay", "--upstream", "kafka", "--topic", "killed", "--rate", fmt.Sprintf("%d/s", rate), "--filter", "drill/#", "--detach").ID
	seed := rand.Uint64()
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	killed := 0
	for range kills {
		time.Sleep(time.Duration(100+rnd.IntN(500)) * time.Millisecond) // a random point; nothing depends on where
		s := g.forebay("replay", "show", id)
		if s.State != "running" {
			break
		}
		g.kill()
		killed++
		g.start()
		g.awaitReady()
	}
	var s replayed
	for end := time.Now().Add(3 * time.Minute); s.State != "done"; time.Sleep(100 * time.Millisecond) {
		if s = g.forebay("replay", "show", id); s.State == "failed" || time.Now().After(end) {
			t.Fatalf("%+v", s)
		}
	}
	got := make(map[string]int)
	doubled := 0
	for _, m := range readAll(t, k, "killed") {
		if got[m.id]++; got[m.id] > 1 {
			doubled++
		}
	}
	for id := range maps.Keys(got) {
		if !want[id] {
			t.Fatalf("record %s was not wanted", id)
		}
	}
	t.Logf("%d kills: %d records, %d missing, %d doubled; the replay counts %d", killed, len(got), len(want)-len(got), doubled, s.Sent)
	if len(got) != len(want) || doubled > killed*page*partitions {
		t.Errorf("got %d records, want %d; %d doubled, at most %d", len(got), len(want), doubled, killed*page*partitions)
	}
	if killed == 0 {
		t.Error("it was done before the first kill")
	}
}

// p99 publishes until during has returned, or for 20 seconds, and tells the latencies. Nothing may be lost or come twice.
func p99(t *testing.T, cfg fleet.Config, during func()) string {
	t.Helper()
	l := startLoad(t, cfg)
	l.await("live traffic", func(s fleet.Snapshot) bool { return s.Bridged > 1000 })
	if during != nil {
		during()
	} else {
		time.Sleep(20 * time.Second)
	}
	r := l.finish()
	if !long() {
		return fmt.Sprintf("%d messages reconcile", r.Rates["acknowledged"])
	}
	ack, kafka := r.Latency["acknowledged"], r.Latency["kafka"]
	return fmt.Sprintf("acknowledged p50 %.2f p99 %.2f ms, in Kafka p50 %.2f p99 %.2f ms", ack.P50, ack.P99, kafka.P50, kafka.P99)
}

func makeTopicOf(t *testing.T, k *kafka, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 6, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
}
