package mqtt

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestHandshakesTakeTheirShareOfTheProcessors(t *testing.T) {
	f := func(share, n, processors int, want float64) {
		t.Helper()
		got := pausesOf(share, n, processors)
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%d %% of %d processors by %d slots: %v times, want %v", share, processors, n, got, want)
		}
	}
	f(50, 1, 2, 0) // half of them is what the slots are
	f(25, 1, 2, 1)
	f(10, 4, 8, 4)
	f(50, 1, 1, 1)
	f(50, 1, 3, 0) // a third: less than its share without a pause
}

func TestTrafficIsThatOfTheLastSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{}
		m, err := newMetrics(srv, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		srv.metrics = m
		go srv.watchTraffic(t.Context())
		f := func(after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := srv.traffic.flows.Load(); got != want {
				t.Errorf("traffic %v, want %v", got, want)
			}
		}
		f(3*trafficTick, false)
		m.received[1].Inc()
		f(2*trafficTick, true)
		f(trafficMemory/2, true)
		f(trafficMemory, false)
		m.received[0].Inc()
		f(2*trafficTick, true)
	})
}
