package proof

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
	"github.com/forebay-gateway/forebay/spool/crashtest/image"
)

// newGatewayOn is newGateway with its data on a disk whose power can be cut.
func newGatewayOn(t *testing.T, disk *image.Disk, kafka string) *gateway {
	t.Helper()
	g := newGatewayIn(t, filepath.Join(disk.Mount, "data"), kafka, small, "telemetry")
	disk.Attach()
	g.start()
	g.awaitReady()
	return g
}

// cutPower stops the program as it is, takes the disk as it is, and starts the program on that after off. What the program
// had written and not synced is gone, which kill -9 does not show.
func (g *gateway) cutPower(disk *image.Disk, off time.Duration) {
	g.t.Helper()
	g.freeze()
	disk.Cut(g.kill)
	time.Sleep(off)
	disk.Attach()
	g.start()
	g.awaitReady()
}

// freeze returns when no thread of the program runs any more.
func (g *gateway) freeze() {
	g.t.Helper()
	pid := g.cmd.Process.Pid
	if err := g.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		g.t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		stopped := len(stats) > 0
		for _, name := range stats {
			b, err := os.ReadFile(name)
			i := bytes.LastIndexByte(b, ')') // the name before it may hold anything
			stopped = stopped && err == nil && i > 0 && bytes.HasPrefix(b[i:], []byte(") T"))
		}
		if stopped {
			return
		}
		if time.Since(began) > 10*time.Second {
			g.t.Fatal("the gateway does not stop")
		}
	}
}

// TestPowerCutKeepsWhatWasAcknowledged cuts the power again and again under load. As with kill -9, everything acknowledged is
// in Kafka and at the subscribers in the end, in order, and QoS 2 once.
func TestPowerCutKeepsWhatWasAcknowledged(t *testing.T) {
	cuts := 2
	if long() {
		cuts = 30
	}
	disk := image.New(t, "ext4", 512<<20)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	k := newKafka(t)
	g := newGatewayOn(t, disk, k.addr)
	l := startLoad(t, usual(g, k))
	for range cuts {
		before := l.Snapshot().Acknowledged
		l.await("progress", func(s fleet.Snapshot) bool { return s.Acknowledged > before+100 })
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		g.cutPower(disk, 0)
	}
	before := l.Snapshot().Acknowledged
	l.await("progress after the last cut", func(s fleet.Snapshot) bool { return s.Acknowledged > before+100 })
	if r := l.finish(); r.Reconnects == 0 {
		t.Error("no device had to reconnect: no power was cut under load")
	}
}
