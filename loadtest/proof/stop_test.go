package proof

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// TestStopUnderLoadLosesNothing stops the gateway in order (SIGTERM) under load and starts it again.
func TestStopUnderLoadLosesNothing(t *testing.T) {
	k := newKafka(t)
	g := newGateway(t, k.addr)
	g.start()
	g.awaitReady()
	l := startLoad(t, usual(g, k))
	for range 2 {
		before := l.Snapshot().Acknowledged
		l.await("progress", func(s fleet.Snapshot) bool { return s.Acknowledged > before+1000 })
		if took := g.terminate(); g.err != nil {
			t.Errorf("exit after %v: %v", took, g.err)
		} else {
			t.Logf("stopped in %v", took.Round(time.Millisecond))
		}
		g.start()
		g.awaitReady()
	}
	l.finish()
}

// TestStopDrainsToTheUpstream stops the gateway the moment the last publish was acknowledged: what the bridge had not sent
// yet arrives in Kafka before the process ends.
func TestStopDrainsToTheUpstream(t *testing.T) {
	k := newKafka(t)
	g := newGateway(t, k.addr)
	g.start()
	g.awaitReady()
	cfg := usual(g, k)
	cfg.Count, cfg.Subscribers = 6000, 0
	l := startLoad(t, cfg)
	l.await("all acknowledgements", func(s fleet.Snapshot) bool { return s.Published == 6000 && s.InFlight == 0 })
	t.Logf("stopped in %v", g.terminate().Round(time.Millisecond))
	if g.err != nil {
		t.Errorf("exit: %v", g.err)
	}
	l.await("everything in Kafka without a gateway", func(s fleet.Snapshot) bool { return s.ToBridge == 0 })
	l.finish()
}
