package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/gateway/admin"
	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Health is how the gateway and each of its parts are now. It asks the parts and does not block.
//
// Ready means that a publisher can be acknowledged: every part runs, and the spool and the MQTT front are well. An upstream
// that is down degrades a gateway and does not make it unready, because taking what comes meanwhile is what it is for.
func (g *Gateway) Health() admin.Health {
	h := admin.Health{
		Status:        "ok",
		Gateway:       g.ID(),
		Version:       g.build.Version,
		UptimeSeconds: time.Since(g.created).Seconds(),
	}
	inOrder := map[state]string{waiting: "starting", starting: "starting", stopping: "stopping", stopped: "stopping"}
	for _, p := range g.life.parts {
		s, err := g.life.look(p)
		shown := admin.Part{Name: p.name, State: string(s)}
		worry := g.life.worries(p, s)
		if all := errors.Join(err, worry); all != nil {
			shown.Problem = all.Error()
		}
		h.Parts = append(h.Parts, shown)

		switch {
		case s == failed:
			h.NotReady = append(h.NotReady, fmt.Sprintf("%s: failed: %v", p.name, err))
			h.Status = "degraded"
		case s != running:
			h.NotReady = append(h.NotReady, p.name+": "+string(s))
		case err != nil && p.needed:
			h.NotReady = append(h.NotReady, fmt.Sprintf("%s: %v", p.name, err))
			h.Status = "degraded"
		case err != nil, worry != nil:
			h.Status = "degraded"
		}
	}
	if err := admin.Descriptors(); err != nil {
		h.NotReady = append(h.NotReady, err.Error())
		h.Status = "degraded"
	}
	// What is on its way somewhere says so first: its parts are expected to be incomplete.
	for _, p := range h.Parts {
		if on := inOrder[state(p.State)]; on != "" {
			h.Status = on
		}
	}
	h.Ready = len(h.NotReady) == 0
	return h
}

// upstreamsHealth names the upstreams that do not answer: at once, while the routes are patient.
func upstreamsHealth(upstreams []bridge.UpstreamHealth) error {
	var errs []error
	for _, u := range upstreams {
		if u.Down.IsZero() {
			continue
		}
		problem := fmt.Sprintf("upstream %s is not reachable since %s; records wait in the spool", u.Upstream, u.Down.UTC().Format(time.RFC3339))
		for _, more := range []string{u.Reason, u.Error, u.Hint} {
			if more != "" {
				problem += "; " + more
			}
		}
		errs = append(errs, errors.New(problem))
	}
	return errors.Join(errs...)
}

// routesHealth is what the routes have to say: one line for each that is stuck, paused or not on its first upstream.
func routesHealth(routes []bridge.RouteHealth) error {
	var errs []error
	for _, r := range routes {
		if r.State == bridge.OK || r.State == bridge.Idle {
			continue
		}
		problem := fmt.Sprintf("route %s: %s", r.Route, r.Reason)
		if !r.Since.IsZero() {
			problem += " since " + r.Since.UTC().Format(time.RFC3339)
		}
		for _, more := range []string{r.Where, r.Error, r.Hint} {
			if more != "" {
				problem += "; " + more
			}
		}
		errs = append(errs, errors.New(problem))
	}
	return errors.Join(errs...)
}

// orphansHealth names what keeps records in the spool for nobody: sooner or later it is full of them.
func orphansHealth(orphans []bridge.Orphan) error {
	var errs []error
	for _, o := range orphans {
		errs = append(errs, fmt.Errorf("%s: %d records, %s on disk; %s", o.Problem, o.Lag, unit.Bytes(o.Bytes).Approx(), o.Hint))
	}
	return errors.Join(errs...)
}
