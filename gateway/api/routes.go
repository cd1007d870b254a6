package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/forebay-gateway/forebay/bridge"
)

// Routes is the answer to a question about all routes.
type Routes struct {
	Routes  []bridge.RouteInfo `json:"routes"`
	Orphans []bridge.Orphan    `json:"orphans"` // routes of earlier configurations that keep records
}

// routes serves
//
//	GET  /api/v1/routes                 all routes
//	GET  /api/v1/routes/{name}          one, with its lanes
//	POST /api/v1/routes/{name}/pause    and resume; parameter lane: <Kafka topic>/<Kafka partition>
//	POST /api/v1/routes/{name}/failover go on with another upstream of the route; parameter to: its name
//	POST /api/v1/routes/{name}/retire   give up what the spool keeps for a route that the configuration does not have
func (s *server) routes(mux *http.ServeMux) {
	on := func(pattern string, fn func(context.Context, *bridge.Bridge, *query) (any, error)) {
		mux.HandleFunc(pattern, s.answer(from(s.o.Bridge, noBridge, fn)))
	}
	type change = func(*bridge.Bridge, context.Context, string, string) error
	on("GET /api/v1/routes", func(_ context.Context, b *bridge.Bridge, _ *query) (any, error) {
		return Routes{b.Routes(), b.Orphans()}, nil
	})
	on("GET /api/v1/routes/{name}", func(_ context.Context, b *bridge.Bridge, q *query) (any, error) {
		return b.Route(q.path("name"))
	})
	on("POST /api/v1/routes/{name}/retire", func(ctx context.Context, b *bridge.Bridge, q *query) (any, error) {
		return b.Retire(ctx, q.path("name"))
	})
	on("POST /api/v1/routes/{name}/failover", func(ctx context.Context, b *bridge.Bridge, q *query) (any, error) {
		if err := b.Failover(ctx, q.path("name"), q.text("to")); err != nil {
			return nil, err
		}
		return b.Route(q.path("name"))
	})
	for name, fn := range map[string]change{"pause": (*bridge.Bridge).Pause, "resume": (*bridge.Bridge).Resume} {
		on("POST /api/v1/routes/{name}/"+name, func(ctx context.Context, b *bridge.Bridge, q *query) (any, error) {
			if err := fn(b, ctx, q.path("name"), q.text("lane")); err != nil {
				return nil, err
			}
			return b.Route(q.path("name"))
		})
	}
}

// Routes describes every route.
func (c *Client) Routes(ctx context.Context) (Routes, error) {
	return call[Routes](ctx, c, http.MethodGet, "/routes", nil)
}

// Route describes one route with its lanes.
func (c *Client) Route(ctx context.Context, name string) (bridge.RouteInfo, error) {
	return call[bridge.RouteInfo](ctx, c, http.MethodGet, "/routes/"+url.PathEscape(name), nil)
}

// Pause keeps a route, or one lane of it, from sending until Resume.
func (c *Client) Pause(ctx context.Context, name, lane string) (bridge.RouteInfo, error) {
	return c.changeRoute(ctx, name, lane, "pause")
}

// Resume ends a Pause.
func (c *Client) Resume(ctx context.Context, name, lane string) (bridge.RouteInfo, error) {
	return c.changeRoute(ctx, name, lane, "resume")
}

// Failover has a route go on with another one of its upstreams.
func (c *Client) Failover(ctx context.Context, name, to string) (bridge.RouteInfo, error) {
	v := values{}
	v.text("to", to)
	return call[bridge.RouteInfo](ctx, c, http.MethodPost, "/routes/"+url.PathEscape(name)+"/failover", url.Values(v))
}

// Retire gives up what the spool keeps for a route that the configuration does not have.
func (c *Client) Retire(ctx context.Context, name string) (bridge.Orphan, error) {
	return call[bridge.Orphan](ctx, c, http.MethodPost, "/routes/"+url.PathEscape(name)+"/retire", nil)
}

func (c *Client) changeRoute(ctx context.Context, name, lane, what string) (bridge.RouteInfo, error) {
	v := values{}
	v.text("lane", lane)
	return call[bridge.RouteInfo](ctx, c, http.MethodPost, "/routes/"+url.PathEscape(name)+"/"+what, url.Values(v))
}
