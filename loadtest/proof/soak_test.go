package proof

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

var (
	soakFor  = flag.Duration("soak", 0, "how long TestSoak lets a fleet publish; 0 skips it")
	soakRate = flag.Float64("soak-rate", 5000, "messages a second of TestSoak")
)

// soakConfiguration keeps so little that a steady state is reached within seconds: the log turns over all the time.
const soakConfiguration = `
gateway: {id: soak, data_dir: %s, stop_timeout: 20s}
log: {level: info}
admin: {address: "%s"}
mqtt: {listeners: [{name: tcp, type: tcp, address: "%s"}]}
spool:
  max_size: 96MiB
  min_free: 1MiB
  queue_size: 2MiB
  tail_size: 4MiB
  journal: {file_size: 4MiB, files: 3}
  segment: {max_size: 2MiB}
  streams: [{name: default, partitions: 4, max_size: 64MiB, when_full: drop_oldest}]
`

// What may grow between the second and the last third of a run: what a garbage collector's turn and a segment that is being
// read make of noise.
const (
	soakMemory      = 12 << 20 // bytes, and a tenth
	soakGoroutines  = 8
	soakDescriptors = 8
)

// TestSoak publishes and subscribes at a steady rate, with clients that come and go beside it. Memory, goroutines and
// descriptors are flat after the first third, and every message is accounted for.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("-soak says how long")
	}
	data := filepath.Join(t.TempDir(), "data")
	g := newGatewayWith(t, func(admin, mqtt string) string { return fmt.Sprintf(soakConfiguration, data, admin, mqtt) })
	g.start()
	g.awaitReady()
	l := startLoad(t, fleet.Config{
		Broker: g.mqtt, TopicPrefix: "soak", Devices: 50, Rate: *soakRate, Mix: fleet.Mix{5, 80, 15}, Window: 50,
		Subscribers: 2, SubscriberQoS: 1, Protocol: fleet.Both, Drain: 20 * time.Second,
	})
	l.await("acknowledgements", func(s fleet.Snapshot) bool { return s.Acknowledged > 1000 })

	var seen []vitals
	began := time.Now()
	tick := time.NewTicker(max(*soakFor/300, 200*time.Millisecond))
	defer tick.Stop()
	for time.Since(began) < *soakFor {
		select {
		case <-tick.C:
		case <-l.done:
			t.Fatalf("the load has ended: %v", l.err)
		}
		v, err := g.vitals()
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, v)
		visit(t, g, len(seen))
	}
	middle, last := seen[len(seen)/3:2*len(seen)/3], seen[2*len(seen)/3:]
	t.Logf("after a third: %v", middle[0])
	t.Logf("at the end:    %v", last[len(last)-1])
	flat := func(what string, of func(vitals) float64, slack float64) {
		t.Helper()
		before, after := medianOf(middle, of), medianOf(last, of)
		t.Logf("%s: median %.0f in the second third, %.0f in the last", what, before, after)
		if after > before+slack {
			t.Errorf("%s grow from %.0f to %.0f", what, before, after)
		}
	}
	flat("bytes of memory", resident, soakMemory+medianOf(middle, resident)/10)
	flat("goroutines", goroutines, soakGoroutines)
	flat("descriptors", descriptors, soakDescriptors)
	l.finish()
}

// visit is a client that comes, subscribes and goes: what connections leave behind adds up. Each has a client ID of its own.
func visit(t *testing.T, g *gateway, n int) {
	t.Helper()
	f, err := fleet.New(fleet.Config{
		Broker: g.mqtt, TopicPrefix: "visit", Devices: 3, Count: 6, Subscribers: 1, SubscriberQoS: 1, Settle: time.Millisecond,
	}, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := f.Run(t.Context()); err != nil || !r.Verdict.Reconciled {
		t.Fatalf("visit %d: %v", n, err)
	}
}
