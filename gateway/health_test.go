package gateway

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/bridge"
)

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var spoolProblem, bridgeProblem, worry error
		spool, _ := fake(&d, "spool")
		spool.needed, spool.health = true, func() error { return spoolProblem }
		spool.worry = func() error { return worry }
		routes, _ := fake(&d, "bridge")
		routes.health = func() error { return bridgeProblem }
		front, fail := fake(&d, "mqtt")
		g := &Gateway{life: newLifecycle(slog.New(slog.DiscardHandler), time.Minute, []part{spool, routes, front})}

		f := func(status string, notReady ...string) {
			t.Helper()
			h := g.Health()
			if h.Status != status || h.Ready != (len(notReady) == 0) || !slices.Equal(h.NotReady, notReady) {
				t.Errorf("%s, ready %v, %q; want %s, %q", h.Status, h.Ready, h.NotReady, status, notReady)
			}
		}
		f("starting", "spool: waiting", "bridge: waiting", "mqtt: waiting")
		if err := g.life.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		f("ok")

		bridgeProblem = errors.New("route a is stuck")
		f("degraded") // taking what comes while Kafka is away is what a gateway is for
		if h := g.Health(); h.Parts[1].Problem != "route a is stuck" {
			t.Errorf("bridge: %q", h.Parts[1].Problem)
		}
		spoolProblem = errors.New("spool full: free space")
		f("degraded", "spool: spool full: free space")
		spoolProblem, bridgeProblem = nil, nil
		f("ok")

		worry = errors.New("a file was set aside")
		f("degraded") // and ready
		if h := g.Health(); h.Parts[0].Problem != "a file was set aside" {
			t.Errorf("spool: %q", h.Parts[0].Problem)
		}
		worry = nil

		fail <- errors.New("listener closed")
		synctest.Wait()
		f("degraded", "mqtt: failed: listener closed")

		if err := g.life.stopAll(); err != nil {
			t.Fatal(err)
		}
		f("stopping", "spool: stopped", "bridge: stopped", "mqtt: stopped")
	})
}

func TestRoutesHealthTellsOfStuckRoutesOnly(t *testing.T) {
	if err := routesHealth([]bridge.RouteHealth{{Route: "a", State: bridge.OK}, {Route: "b", State: bridge.Idle}}); err != nil {
		t.Error(err)
	}
	err := routesHealth([]bridge.RouteHealth{
		{Route: "a", State: bridge.Stuck, Reason: "unknown_topic", Where: "topic t", Error: "no such topic", Hint: "make it"},
		{Route: "b", State: bridge.OK},
		{Route: "c", State: bridge.Stuck, Reason: "no_acknowledgement"},
	})
	if want := "route a: unknown_topic; topic t; no such topic; make it\nroute c: no_acknowledgement"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
