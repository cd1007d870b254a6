package bridge

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/spool"
)

func TestPausedRouteSendsNothingUntilItIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := []string{"t.l0", "t.l1", "t.l2"}
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(2, topics...))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		r.publish(levels(3), 12, 100)
		r.drained(time.Minute)
		for range 2 {
			if err := r.b.Pause(t.Context(), "all", ""); err != nil {
				t.Fatal(err)
			}
		}
		paused := func() {
			t.Helper()
			sent := r.b.Stats()[0].Sent
			r.publish(levels(3), 12, 5000)
			time.Sleep(10 * time.Minute)
			s, h := r.b.Stats()[0], r.b.Health()[0]
			if s.Sent != sent || s.Lag == 0 || s.Detaches != 0 {
				t.Errorf("stats while paused %+v", s)
			}
			if h.State != Paused || h.Since.IsZero() || !strings.Contains(h.Hint, "route resume all") {
				t.Errorf("health %+v, want paused", h)
			}
		}
		paused()
		r.stop()
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[1]}"}))
		paused()
		if err := r.b.Resume(t.Context(), "all", ""); err != nil {
			t.Fatal(err)
		}
		r.drained(time.Minute)
		r.complete(topics...)
		if n := r.log.stored(pausedSpace); n != 0 {
			t.Errorf("%d entries left", n)
		}
		if h := r.b.Health()[0]; h.State != Idle {
			t.Errorf("health %+v, want idle", h)
		}
	})
}

func TestPausedLaneHoldsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.SeedTopics(4, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.publish(oneTopic("a"), 16, 100)
		if err := r.b.Pause(t.Context(), "all", "telemetry/2"); err != nil {
			t.Fatal(err)
		}
		before := r.cluster.PartitionInfos("telemetry")[2].HighWatermark
		r.publish(oneTopic("a"), 16, 1000)
		time.Sleep(5 * time.Minute)
		r.stop()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		r.publish(oneTopic("a"), 16, 1000)
		time.Sleep(5 * time.Minute)
		infos := r.cluster.PartitionInfos("telemetry")
		if got := infos[2].HighWatermark; got > before+1600 {
			t.Errorf("paused partition went from %d to %d", before, got)
		}
		h := r.b.Health()[0]
		if h.State != Paused || h.Where != "lane telemetry/2" || !strings.Contains(h.Hint, "--lane telemetry/2") {
			t.Errorf("health %+v", h)
		}
		info, err := r.b.Route("all")
		if err != nil || len(info.PausedLanes) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		for _, l := range info.LaneList {
			if want := l.Lane == "telemetry/2"; (l.State == LanePaused) != want {
				t.Errorf("lane %+v", l)
			}
		}
		if at, end := r.log.cursors["route/all"].Position(0), len(r.log.streams["default"][0].records); int(at) != end {
			t.Errorf("cursor at %d of %d: the paused lane holds it", at, end)
		}
		if err := r.b.Resume(t.Context(), "all", "telemetry/2"); err != nil {
			t.Fatal(err)
		}
		r.drained(time.Minute)
		r.complete("telemetry")
	})
}

func TestPauseSaysWhatItCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		if err := r.b.Pause(t.Context(), "other", ""); !errors.Is(err, ErrUnknownRoute) {
			t.Errorf("%v, want ErrUnknownRoute", err)
		}
		for _, lane := range []string{"telemetry", "telemetry/x", "/1", "telemetry/-1"} {
			if err := r.b.Pause(t.Context(), "all", lane); !errors.Is(err, spool.ErrInvalid) {
				t.Errorf("lane %s: %v, want ErrInvalid", lane, err)
			}
		}
	})
}
