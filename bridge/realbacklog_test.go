package bridge

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// A real cluster, a real spool, devices under load. The cluster is killed or frozen and comes back: new records are delivered within
// moments while the backlog drains, and the gateway is killed with SIGKILL in the middle of that. Nothing is lost or doubled, and each
// device's records are in order within the backlogs and without.
func TestKafkaLiveFirstAfterAnOutage(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})
	k := killing{t: t, brokers: c.Brokers(), after: ReadBack, once: AtLeastOnce, topic: "live"}
	dir := t.TempDir()
	rounds := killRounds(1, 6)
	for round := range rounds {
		g := k.failing(dir, childLive+"=1")
		g.live("delivers", func(l liveNow) bool { return l.sent > 1000 })
		if round%2 == 0 {
			c.Node(0).Kill()
		} else {
			c.Node(0).Pause()
		}
		time.Sleep(4 * time.Second)
		if round%3 == 1 { // the backlog is put aside by the next one
			g.kill()
			g = k.failing(dir, childLive+"=1")
		}
		if round%2 == 0 {
			if err := c.Node(0).Start(); err != nil {
				t.Fatal(err)
			}
		} else {
			c.Node(0).Resume()
		}
		begun := g.live("the backlog is put aside", func(l liveNow) bool { return l.backlog > 1000 })
		fresh := g.live("new records go out at once", func(l liveNow) bool { return l.backlog > 0 && l.lag < time.Second && l.sent > begun.sent+500 })
		g.kill()
		g = k.failing(dir, childLive+"=1")
		again := g.live("new records go out at once behind kill -9", func(l liveNow) bool { return l.backlog > 0 && l.lag < time.Second && l.sent > 500 })
		t.Logf("a backlog of %d records; new ones are %v old with %d left of it, and %v with %d left behind kill -9", begun.backlog, fresh.lag, fresh.backlog,
			again.lag, again.backlog)
		g.kill()
	}
	next := k.failing(dir, childLive+"=1", childDrain+"=1").drained()
	r := &rig{t: t, brokers: k.brokers, next: make(map[string]int)}
	total := 0
	for c, n := range next {
		r.next["c"+strconv.Itoa(c)], total = n, total+n
	}
	got, old := r.split(readAll(t, k.brokers, k.topic))
	t.Logf("%d rounds, %d records, %d of them by backlogs: %+v", rounds, total, old, got)
	if got != (tally{}) || old < 1000 {
		t.Errorf("records %+v, want every one once and in order; %d of backlogs", got, old)
	}
}

// childLive makes the child's route one with drain: live_first.
const childLive = "FOREBAY_BRIDGE_LIVE"

// liveNow is what such a child says of its route.
type liveNow struct {
	backlog, sent uint64
	lag           time.Duration // of new records
}

func tellLive(b *Bridge) {
	for range time.Tick(20 * time.Millisecond) {
		s := b.Stats()[0]
		fmt.Println("live", s.Backlog, s.Sent, int64(s.LiveLagAge))
	}
}

// live waits until the child's route is as it should be.
func (f *failing) live(what string, is func(liveNow) bool) (l liveNow) {
	f.t.Helper()
	deadline := time.After(failoverWait)
	for {
		line := f.look(deadline, what)
		if _, err := fmt.Sscanf(line, "live %d %d %d", &l.backlog, &l.sent, &l.lag); err == nil && is(l) {
			return l
		}
	}
}
