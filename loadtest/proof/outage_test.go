package proof

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// flat is how much the gateway's memory may grow while its upstream is away, however long that is. What waits is on the
// disk; buffers are bounded, but not all of them are full before, and the Go runtime takes twice of what it holds.
const flat = 48 << 20

// TestOutageOfTheUpstreamLosesNothing takes Kafka away under load. Devices are acknowledged as before, memory stays flat,
// and everything arrives in order once Kafka is back, without anybody's help.
func TestOutageOfTheUpstreamLosesNothing(t *testing.T) {
	away := 5 * time.Second
	if long() {
		away = 30 * time.Second
	}
	outage(t, newKafka(t), away)
}

// The same with a real Apache Kafka, killed.
func TestKafkaOutageLosesNothing(t *testing.T) {
	away := 10 * time.Second
	if long() {
		away = 30 * time.Second
	}
	outage(t, newApacheKafka(t), away)
}

func outage(t *testing.T, k *kafka, away time.Duration) {
	g := newGateway(t, k.addr)
	g.start()
	g.awaitReady()
	cfg := usual(g, k)
	cfg.Rate = 4000
	l := startLoad(t, cfg)
	l.await("records in Kafka", func(s fleet.Snapshot) bool { return s.Bridged > 16_000 })
	before, acknowledged := g.resident(), l.Snapshot().Acknowledged
	k.stop()
	memory := sample(g.resident)
	time.Sleep(away)
	l.await("acknowledgements while the upstream is away", func(s fleet.Snapshot) bool {
		return s.Acknowledged > acknowledged+int64(away.Seconds()*cfg.Rate/2)
	})
	grown := memory.stop() - before
	during := l.Snapshot()
	k.start()
	began := time.Now()
	l.await("an empty backlog", func(s fleet.Snapshot) bool { return s.ToBridge < 500 })
	t.Logf("after %v: %d records waited, memory %+d KiB, drained %v after the return", away, during.ToBridge, grown>>10, time.Since(began).Round(time.Millisecond))
	if before > 0 && grown > flat {
		t.Errorf("memory grew by %d MiB during the outage, more than %d MiB", grown>>20, flat>>20)
	}
	l.finish()
}
