package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/forebay-gateway/forebay/bridge/downlink"
)

// Downlinks is the answer to GET /api/v1/downlinks.
type Downlinks struct {
	Downlinks []downlink.Info `json:"downlinks"`
}

// downlinks answers about downlinks:
//
//	GET  /api/v1/downlinks                 every one
//	GET  /api/v1/downlinks/{name}          one with its partitions
//	POST /api/v1/downlinks/{name}/pause    read nothing until it is resumed
//	POST /api/v1/downlinks/{name}/resume   go on, also behind gaps
func (s *server) downlinks(mux *http.ServeMux) {
	on := func(pattern string, fn func(context.Context, *downlink.Engine, *query) (any, error)) {
		mux.HandleFunc(pattern, s.answer(from(s.o.Downlinks, noDownlinks, fn)))
	}
	type change = func(*downlink.Engine, context.Context, string) error
	on("GET /api/v1/downlinks", func(_ context.Context, e *downlink.Engine, _ *query) (any, error) {
		return Downlinks{e.List()}, nil
	})
	on("GET /api/v1/downlinks/{name}", func(_ context.Context, e *downlink.Engine, q *query) (any, error) {
		return e.Show(q.path("name"))
	})
	for name, fn := range map[string]change{"pause": (*downlink.Engine).Pause, "resume": (*downlink.Engine).Resume} {
		on("POST /api/v1/downlinks/{name}/"+name, func(ctx context.Context, e *downlink.Engine, q *query) (any, error) {
			if err := fn(e, ctx, q.path("name")); err != nil {
				return nil, err
			}
			return e.Show(q.path("name"))
		})
	}
}

// Downlinks describes every downlink.
func (c *Client) Downlinks(ctx context.Context) (Downlinks, error) {
	return call[Downlinks](ctx, c, http.MethodGet, "/downlinks", nil)
}

// Downlink describes one downlink with its partitions.
func (c *Client) Downlink(ctx context.Context, name string) (downlink.Info, error) {
	return call[downlink.Info](ctx, c, http.MethodGet, "/downlinks/"+url.PathEscape(name), nil)
}

// PauseDownlink has a downlink read nothing until it is resumed.
func (c *Client) PauseDownlink(ctx context.Context, name string) (downlink.Info, error) {
	return call[downlink.Info](ctx, c, http.MethodPost, "/downlinks/"+url.PathEscape(name)+"/pause", nil)
}

// ResumeDownlink lets a downlink go on, also behind gaps.
func (c *Client) ResumeDownlink(ctx context.Context, name string) (downlink.Info, error) {
	return call[downlink.Info](ctx, c, http.MethodPost, "/downlinks/"+url.PathEscape(name)+"/resume", nil)
}
