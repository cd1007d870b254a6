package api

import (
	"context"
	"net/http"

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
	type change = func(*downlink.Engine, context.Context, string) error
	mux.HandleFunc("GET /api/v1/downlinks", s.answerDownlinks(func(_ context.Context, e *downlink.Engine, _ *http.Request) (any, error) {
		return Downlinks{e.List()}, nil
	}))
	mux.HandleFunc("GET /api/v1/downlinks/{name}", s.answerDownlinks(func(_ context.Context, e *downlink.Engine, r *http.Request) (any, error) {
		return e.Show(r.PathValue("name"))
	}))
	for name, fn := range map[string]change{"pause": (*downlink.Engine).Pause, "resume": (*downlink.Engine).Resume} {
		mux.HandleFunc("POST /api/v1/downlinks/{name}/"+name, s.answerDownlinks(func(ctx context.Context, e *downlink.Engine, r *http.Request) (any, error) {
			if err := fn(e, ctx, r.PathValue("name")); err != nil {
				return nil, err
			}
			return e.Show(r.PathValue("name"))
		}))
	}
}

func (s *server) answerDownlinks(fn func(context.Context, *downlink.Engine, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, ok := s.admit(w, r)
		if !ok {
			return
		}
		defer leave()
		var e *downlink.Engine
		if s.o.Downlinks != nil {
			e = s.o.Downlinks()
		}
		if e == nil {
			write(w, http.StatusServiceUnavailable, fault{"the downlinks have not started: see /readyz"})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), maxLook)
		defer cancel()
		v, err := fn(ctx, e, r)
		if err != nil {
			write(w, statusOf(err), fault{err.Error()})
			return
		}
		write(w, http.StatusOK, v)
	}
}

// Downlinks describes every downlink.
func (c *Client) Downlinks(ctx context.Context) (Downlinks, error) {
	return call[Downlinks](ctx, c, http.MethodGet, "/downlinks", nil)
}

// Downlink describes one downlink with its partitions.
func (c *Client) Downlink(ctx context.Context, name string) (downlink.Info, error) {
	return call[downlink.Info](ctx, c, http.MethodGet, "/downlinks/"+name, nil)
}

// PauseDownlink has a downlink read nothing until it is resumed.
func (c *Client) PauseDownlink(ctx context.Context, name string) (downlink.Info, error) {
	return call[downlink.Info](ctx, c, http.MethodPost, "/downlinks/"+name+"/pause", nil)
}

// ResumeDownlink lets a downlink go on, also behind gaps.
func (c *Client) ResumeDownlink(ctx context.Context, name string) (downlink.Info, error) {
	return call[downlink.Info](ctx, c, http.MethodPost, "/downlinks/"+name+"/resume", nil)
}
