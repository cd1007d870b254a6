package gateway

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/spool"
)

// applyTimeout is how long downlinks may take to end and begin: their last records have to become durable.
const applyTimeout = 15 * time.Second

// errStarting means that there is nothing to reload yet.
var errStarting = errors.New("the gateway has not started: see /readyz")

// Reload reads again what may change while the gateway runs: the files of mqtt.auth, certificates, keys, CAs and revocation lists, and the
// configuration. Of that, downlinks change at once; whatever else is different waits for a restart, and is named. What has a fault stays as
// it was.
func (g *Gateway) Reload(ctx context.Context) (api.Reloaded, error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	select {
	case <-g.ready:
	default:
		return api.Reloaded{}, errStarting
	}
	r, err := g.reloadConfig(ctx)
	err = errors.Join(g.front().Reload(), err)
	if err != nil {
		g.log.Error("reload: what has a fault stays as it was", "err", err)
	}
	if len(r.Waiting) > 0 {
		g.log.Warn("configuration has changed, and what is named here waits for a restart", "keys", strings.Join(r.Waiting, " "))
	}
	if err == nil {
		g.log.Info("reloaded", "changed", strings.Join(r.Changed, " "))
	}
	return r, err
}

func (g *Gateway) reloadConfig(ctx context.Context) (r api.Reloaded, err error) {
	r.Changed, r.Waiting = []string{}, []string{}
	if g.load == nil {
		return r, nil
	}
	next, err := g.load()
	if err != nil {
		return r, fmt.Errorf("configuration: %w: %w", err, spool.ErrInvalid)
	}
	next = next.Resolved()
	if mixed, ok := g.withDownlinks(next); ok {
		ctx, cancel := context.WithTimeout(ctx, applyTimeout)
		defer cancel()
		if err = g.downlinks().Apply(ctx, mixed.Bridge.DownlinkConfigs()); err == nil {
			r.Changed = config.Changes(g.inUse, mixed)
			g.inUse = mixed
		}
	}
	r.Waiting = append(r.Waiting, config.Changes(g.inUse, next)...)
	g.waiting.Store(int64(len(r.Waiting)))
	return r, err
}

// withDownlinks is what runs with the downlinks of next, false when they are the same, or need something of next that does not run: an upstream,
// a stream of dead letters.
func (g *Gateway) withDownlinks(next config.Config) (mixed config.Config, ok bool) {
	if g.downlinks() == nil {
		return mixed, false
	}
	mixed = g.inUse
	mixed.Bridge.Downlinks = next.Bridge.Downlinks
	if reflect.DeepEqual(mixed.Bridge.DownlinkConfigs(), g.inUse.Bridge.DownlinkConfigs()) || mixed.Validate() != nil {
		return mixed, false
	}
	streams := func(c config.Config) (names []string) {
		for _, s := range c.Spool.Streams {
			names = append(names, s.Name)
		}
		return names
	}
	return mixed, slices.Equal(streams(mixed.Resolved()), streams(g.inUse))
}
