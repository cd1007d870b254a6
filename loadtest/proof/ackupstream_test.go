package proof

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// waiting is a configuration whose publishers wait for Kafka as the words of the stream say.
const waiting = `
gateway:
  id: proof
  data_dir: %s
  stop_timeout: 20s
admin:
  address: %s
mqtt:
  listeners:
    - name: tcp
      type: tcp
      address: %s
spool:
  max_size: 1GiB
  min_free: 1MiB
  streams:
    - {name: default, %s}
%s
bridge:
  upstreams:
    - name: kafka
      brokers: ["%s"]
  routes:
    - name: telemetry
      upstream: kafka
      topic: telemetry
      create_topics: {partitions: 6, replication: 1}
      delivery: %s
`

// TestKafkaHasWhatIsAcknowledgedWithoutTheSpool is the promise of ack: upstream. Under load a real Apache Kafka is killed, the gateway
// is killed, and with the gateway goes its whole data directory. Whatever was acknowledged with success must be in Kafka all the same.
func TestKafkaHasWhatIsAcknowledgedWithoutTheSpool(t *testing.T) {
	for _, delivery := range []string{"at_least_once", "exactly_once"} {
		t.Run(delivery, func(t *testing.T) {
			rounds := 2
			switch {
			case long() && delivery == "exactly_once":
				rounds = 8
			case long():
				rounds = 20
			case delivery == "exactly_once":
				t.Skip("in the long form (FOREBAY_CRASH=long)")
			}
			withoutTheSpool(t, delivery, rounds)
		})
	}
}

func withoutTheSpool(t *testing.T, delivery string, rounds int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	k := newApacheKafka(t)
	data := filepath.Join(t.TempDir(), "data")
	g := newGatewayWith(t, func(admin, mqtt string) string {
		return fmt.Sprintf(waiting, data, admin, mqtt, "ack: upstream, ack_timeout: 3s, ack_fallback: refuse", small, k.addr, delivery)
	})
	g.start()
	g.awaitReady()
	cfg := usual(g, k)
	cfg.Subscribers, cfg.IDHeader, cfg.Drain = 0, "", 10*time.Second // sessions go with the directory, and offsets come again
	l := startLoad(t, cfg)
	progress := func(what string) {
		t.Helper()
		before := l.Snapshot().Acknowledged
		l.await("progress "+what, func(s fleet.Snapshot) bool { return s.Acknowledged > before+1000 })
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
	}
	for round := range rounds {
		t.Logf("round %d: %d acknowledged", round, l.Snapshot().Acknowledged)
		progress("before a kill of kafka")
		k.stop()
		time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond) // up to longer than an acknowledgement may wait
		k.start()
		progress("before a kill of the gateway")
		g.kill()
		g.start()
		g.awaitReady()
		progress("before everything goes")
		g.kill()
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		g.start()
		g.awaitReady()
	}
	progress("at the end")
	l.Stop()
	g.kill()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	g.start()
	g.awaitReady()
	<-l.done
	if l.err != nil {
		t.Fatal(l.err)
	}
	t.Log(l.text()) // which complains of lost sessions: they went with the directory
	for _, check := range l.r.Verdict.Checks {
		if n := check.Missing.Total(); n > 0 {
			t.Errorf("%s: %d messages were acknowledged with success and are not there", check.Name, n)
		}
		if check.Invented > 0 || check.Reordered > 0 {
			t.Errorf("%s: %d invented, %d out of order", check.Name, check.Invented, check.Reordered)
		}
	}
	if len(l.r.Verdict.Checks) != 1 || l.r.Verdict.Acknowledged.Total() < 1000 {
		t.Error("nothing was looked for in kafka")
	}
	if l.r.Reconnects == 0 {
		t.Error("no device had to reconnect: nothing was killed under load")
	}
}

// BenchmarkKafkaAckUpstream measures how long publishers wait for PUBACK, with ack: local and ack: upstream in turns, at 2,000 messages a
// second of 50 devices. b.N is not used: a round takes ten seconds.
func BenchmarkKafkaAckUpstream(b *testing.B) {
	k := newApacheKafka(b)
	for _, ack := range []string{"local", "upstream", "local", "upstream"} {
		g := newGatewayWith(b, func(admin, mqtt string) string {
			return fmt.Sprintf(waiting, filepath.Join(b.TempDir(), "data"), admin, mqtt, "ack: "+ack, "", k.addr, "at_least_once")
		})
		g.start()
		g.awaitReady()
		for _, warm := range []bool{true, false} {
			l := startLoad(b, fleet.Config{
				Broker: g.mqtt, TopicPrefix: "ack", Devices: 50, Rate: 2000, Payload: 200, Window: 100, Duration: 5 * time.Second,
				Kafka: []string{k.addr}, KafkaTopic: []string{"telemetry"},
			})
			<-l.done
			if l.err != nil || !l.r.Verdict.Reconciled {
				b.Fatalf("%v\n%s", l.err, l.text())
			}
			if !warm {
				b.Logf("%s: %s", ack, l.text())
			}
		}
		g.terminate()
	}
}
