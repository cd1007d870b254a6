package mqtt

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

const (
	// mostHandshakeShare is the percent of the processors that handshakes have when nobody else needs them: the other half is for
	// accepting, CONNECTs and the spool.
	mostHandshakeShare = 50

	trafficTick = 100 * time.Millisecond

	// trafficMemory is how long after the last publish clients count as publishing: one every ten seconds is a client too, but thousands
	// that come need not wait for it.
	trafficMemory = time.Second
)

// traffic knows whether clients that are in publish.
type traffic struct{ flows atomic.Bool }

// watchTraffic looks at what has come. A look costs less than a microsecond, and a publish nothing.
func (srv *Server) watchTraffic(ctx context.Context) {
	tick := time.NewTicker(trafficTick)
	defer tick.Stop()
	var before uint64
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if n := sum(srv.metrics.received); n != before {
				before, last = n, now
			}
			srv.traffic.flows.Store(!last.IsZero() && now.Sub(last) < trafficMemory)
		}
	}
}

// newSlots lets handshakes compute on half of the processors, one at least, and while clients publish on share percent of all: each slot
// then rests after a computation. The time of the computation is that of the clock: where others hold it up, the rests grow with it.
func newSlots(share int, t *traffic) *transport.Slots {
	processors := runtime.GOMAXPROCS(0)
	n := max(1, processors/2)
	pauses := pausesOf(share, n, processors)
	return transport.NewSlots(n, func(held time.Duration) time.Duration {
		if !t.flows.Load() {
			return 0
		}
		return time.Duration(pauses * float64(held))
	})
}

// pausesOf is how many times as long as it was held one of n slots rests, so that all of them take share percent of the processors.
func pausesOf(share, n, processors int) float64 {
	return max(0, float64(100*n)/float64(share*processors)-1)
}
