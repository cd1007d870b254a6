package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/spool"
)

// downFront is the MQTT front as downlinks see it.
type downFront struct{ *mqtt.Server }

var _ downlink.Front = downFront{}

// Publish implements downlink.Front.
func (f downFront) Publish(ctx context.Context, e spool.Entry) error {
	err := f.Server.Publish(ctx, e)
	if errors.Is(err, mqtt.ErrUnpublishable) {
		return fmt.Errorf("%w: %w", downlink.ErrRefused, err)
	}
	return err
}

func (g *Gateway) downlinkPart() part {
	var e *downlink.Engine
	return part{
		name: "downlink",
		start: func(context.Context) error {
			made, err := g.bridge.NewDownlinks(downFront{g.mqtt}, g.ID())
			if err != nil {
				return err
			}
			e = made
			g.put(func() { g.down = e })
			return nil
		},
		run:    func() error { return e.Run(context.Background()) },
		stop:   func(ctx context.Context) error { return e.Close(ctx) },
		health: func() error { return downlinksHealth(e.List()) },
		hint:   "nothing comes from Kafka until a restart; positions are kept",
	}
}

// downlinks is the engine of the downlinks for those who look into it.
func (g *Gateway) downlinks() *downlink.Engine {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.down
}

// downlinksHealth is what the downlinks have to say: one line for each that is stuck or paused.
func downlinksHealth(links []downlink.Info) error {
	var errs []error
	for _, l := range links {
		if l.State != downlink.Stuck && l.State != downlink.Paused {
			continue
		}
		problem := fmt.Sprintf("downlink %s: %s", l.Downlink, l.Reason)
		if !l.Since.IsZero() {
			problem += " since " + l.Since.UTC().Format(time.RFC3339)
		}
		for _, more := range []string{l.Where, l.Error, l.Hint} {
			if more != "" {
				problem += "; " + more
			}
		}
		errs = append(errs, errors.New(problem))
	}
	return errors.Join(errs...)
}
