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
	type change = func(*bridge.Bridge, context.Context, string, string) error
	mux.HandleFunc("GET /api/v1/routes", s.answerBridge(func(_ context.Context, b *bridge.Bridge, _ *query, _ *http.Request) (any, error) {
		return Routes{b.Routes(), b.Orphans()}, nil
	}))
	mux.HandleFunc("GET /api/v1/routes/{name}", s.answerBridge(func(_ context.Context, b *bridge.Bridge, _ *query, r *http.Request) (any, error) {
		return b.Route(r.PathValue("name"))
	}))
	mux.HandleFunc("POST /api/v1/routes/{name}/retire", s.answerBridge(func(ctx context.Context, b *bridge.Bridge, _ *query, r *http.Request) (any, error) {
		return b.Retire(ctx, r.PathValue("name"))
	}))
	mux.HandleFunc("POST /api/v1/routes/{name}/failover", s.answerBridge(func(ctx context.Context, b *bridge.Bridge, q *query, r *http.Request) (any, error) {
		if err := b.Failover(ctx, r.PathValue("name"), q.text("to")); err != nil {
			return nil, err
		}
		return b.Route(r.PathValue("name"))
	}))
	for name, fn := range map[string]change{"pause": (*bridge.Bridge).Pause, "resume": (*bridge.Bridge).Resume} {
		mux.HandleFunc("POST /api/v1/routes/{name}/"+name, s.answerBridge(func(ctx context.Context, b *bridge.Bridge, q *query, r *http.Request) (any, error) {
			if err := fn(b, ctx, r.PathValue("name"), q.text("lane")); err != nil {
				return nil, err
			}
			return b.Route(r.PathValue("name"))
		}))
	}
}

// Routes describes every route.
func (c *Client) Routes(ctx context.Context) (Routes, error) {
	return call[Routes](ctx, c, http.MethodGet, "/routes", nil)
}

// Route describes one route with its lanes.
func (c *Client) Route(ctx context.Context, name string) (bridge.RouteInfo, error) {
	return call[bridge.RouteInfo](ctx, c, http.MethodGet, "/routes/"+name, nil)
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
	return call[bridge.RouteInfo](ctx, c, http.MethodPost, "/routes/"+name+"/failover", url.Values(v))
}

// Retire gives up what the spool keeps for a route that the configuration does not have.
func (c *Client) Retire(ctx context.Context, name string) (bridge.Orphan, error) {
	return call[bridge.Orphan](ctx, c, http.MethodPost, "/routes/"+name+"/retire", nil)
}

func (c *Client) changeRoute(ctx context.Context, name, lane, what string) (bridge.RouteInfo, error) {
	v := values{}
	v.text("lane", lane)
	return call[bridge.RouteInfo](ctx, c, http.MethodPost, "/routes/"+name+"/"+what, url.Values(v))
}
