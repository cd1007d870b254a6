package proof

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// TestKillKeepsWhatWasAcknowledged kills the gateway (kill -9) again and again under load. Devices and the subscriber keep
// their sessions and come back. In the end everything acknowledged is in Kafka and at the subscriber, QoS 2 once there.
func TestKillKeepsWhatWasAcknowledged(t *testing.T) {
	kills := 3
	if long() {
		kills = 60
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	k := newKafka(t)
	g := newGateway(t, k.addr)
	g.start()
	g.awaitReady()
	l := startLoad(t, usual(g, k))
	var slowest time.Duration
	for range kills {
		before := l.Snapshot().Acknowledged
		l.await("progress", func(s fleet.Snapshot) bool { return s.Acknowledged > before+100 })
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // anywhere in the life of the journal's files
		g.kill()
		g.start()
		slowest = max(slowest, g.awaitReady())
	}
	before := l.Snapshot().Acknowledged
	l.await("progress after the last kill", func(s fleet.Snapshot) bool { return s.Acknowledged > before+100 })
	r := l.finish()
	t.Logf("%d kills, slowest start %v", kills, slowest.Round(time.Millisecond))
	if r.Reconnects == 0 {
		t.Error("no device had to reconnect: nothing was killed under load")
	}
}

// TestKillDuringOutageKeepsTheBacklog kills the gateway while its upstream is away: what waits in the spool must survive
// and arrive in order.
func TestKillDuringOutageKeepsTheBacklog(t *testing.T) {
	k := newKafka(t)
	g := newGateway(t, k.addr)
	g.start()
	g.awaitReady()
	l := startLoad(t, usual(g, k))
	l.await("records in Kafka", func(s fleet.Snapshot) bool { return s.Bridged > 500 })
	k.stop()
	l.await("a backlog", func(s fleet.Snapshot) bool { return s.ToBridge > 2000 })
	g.kill()
	g.start()
	g.awaitReady()
	before := l.Snapshot().Acknowledged
	l.await("progress without the upstream", func(s fleet.Snapshot) bool { return s.Acknowledged > before+500 })
	k.start()
	l.finish()
}

// TestKillDuringCatchUpKeepsTheBacklog kills the gateway with deliveries of every partition in flight, lets the subscribers
// come back only when they have more to get than half of the circle of packet identifiers, and kills it again while it
// serves them from the segments.
func TestKillDuringCatchUpKeepsTheBacklog(t *testing.T) {
	backlog, kills := int64(60_000), 1
	if long() {
		backlog, kills = 300_000, 5
	}
	k := newKafka(t)
	g := newGateway(t, k.addr)
	g.start()
	g.awaitReady()
	cfg := usual(g, k)
	cfg.Rate, cfg.Payload = 0, 128
	l := startLoad(t, cfg)
	l.await("deliveries", func(s fleet.Snapshot) bool { return s.Delivered > 5000 })
	g.kill()
	l.SubscribersAway(true)
	g.start()
	g.awaitReady()
	l.await("a backlog", func(s fleet.Snapshot) bool { return s.ToDeliver > backlog })
	l.Stop()
	l.SubscribersAway(false)
	for range kills {
		before := l.Snapshot().Delivered
		l.await("deliveries from the backlog", func(s fleet.Snapshot) bool { return s.Delivered > before+3000 })
		g.kill()
		g.start()
		g.awaitReady()
	}
	l.finish()
}
